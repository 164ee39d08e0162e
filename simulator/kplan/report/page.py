"""The page: the answer in words, the evidence in charts and tables, and what it all rests on."""

from __future__ import annotations

from html import escape

from kplan.config.loads import ranks_words, requests_words
from kplan.config.plan import Plan, PolicyResult
from kplan.report import figures, tables
from kplan.report.document import Chart, document
from kplan.report.text import answer_k, load, number


def render_report(plan: Plan) -> str:
    """One self-contained HTML page for ``plan``."""
    charts = [chart for chart in _charts(plan) if chart.figure is not None]
    body = f"""{_header(plan)}
<main>
{_answer(plan)}
{_tiles(plan)}
{_batch_table(plan)}
<h2>Policies compared</h2>
<p class="quiet">Simulated under the same arrivals, lengths and acceptance for every policy.
Times are per request. Small figures: 95% interval of the mean.</p>
{tables.policies(plan)}
<noscript><p>The charts need JavaScript; the tables hold the same figures.</p></noscript>
<div class="charts">
{"".join(chart.section() for chart in charts)}
</div>
<h2>What this rests on</h2>
{tables.assumptions(plan.assumptions)}
<details><summary>The question, with every default</summary>
{tables.question(plan.question)}
</details>
</main>
{_footer(plan)}"""
    return document(f"{answer_k(plan.answer)} at {load(plan.question)}", body, charts)


def _charts(plan: Plan) -> list[Chart]:
    batch = f"{number(plan.k_curve[0].batch)} requests" if plan.k_curve else ""
    return [
        Chart(
            "chart-tpot",
            "Time per output token by policy",
            "Lower is better. The diamond is the recommended policy.",
            figures.tpot(plan),
        ),
        Chart(
            "chart-throughput",
            "Throughput by policy",
            "Below saturation every policy serves the load offered; they differ in how fast a token comes.",
            figures.throughput(plan),
        ),
        Chart(
            "chart-k-curve",
            "Tokens per second and step time by K",
            f"A fixed K at the load's own batch ({batch}), expected from acceptance and step price.",
            figures.k_curve(plan),
        ),
        Chart(
            "chart-split",
            "Where a step's time goes",
            "Means over the steps of the run. A step emits as many tokens as the acceptance length says.",
            figures.split(plan),
        ),
        Chart(
            "chart-roofline",
            "The load on the roofline",
            "Each point is the target pass at one K (the number). On the slope the step waits for memory and "
            "more drafts are nearly free; on the flat part they cost their full compute.",
            figures.roofline(plan),
        ),
        Chart(
            "chart-k-share",
            "Which K the adaptive policies used",
            "Share of decode steps at each K.",
            figures.k_share(plan),
        ),
    ]


def _header(plan: Plan) -> str:
    asked = plan.question
    what = requests_words(asked)
    where = f"{asked.model} on {asked.hardware}, {ranks_words(asked)}, {asked.proposer} drafts, {what}"
    return (
        f"<header><h1>What K at {escape(load(asked))}?</h1>"
        f'<p class="quiet">{escape(where)}, {escape(asked.engine)}</p></header>'
    )


def _answer(plan: Plan) -> str:
    answer = plan.answer
    why = "".join(f"<li>{escape(line)}</li>" for line in answer.why)
    kind = "answer" if answer.feasible and not answer.saturated else "answer bad"
    return (
        f'<section class="{kind}"><p><strong>{escape(answer.words)}</strong></p>'
        f"{f'<ul>{why}</ul>' if why else ''}</section>"
    )


def _tiles(plan: Plan) -> str:
    answer = plan.answer
    result = next((r for r in plan.policies if r.name == answer.policy), None)
    gpus = plan.question.tp * plan.question.dp
    replicas = "replicas" if gpus == 1 else f"replicas of {gpus} GPUs"
    tiles = [("recommended", answer_k(answer)), (replicas, str(answer.replicas))]
    if result is not None:
        tiles += _result_tiles(result)
    if answer.max_qps is not None:
        tiles.append(("largest load these replicas sustain", f"{number(answer.max_qps)} req/s"))
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _result_tiles(result: PolicyResult) -> list[tuple[str, str]]:
    tiles = []
    if result.tpot_ms is not None:
        tiles.append((f"TPOT, p99 {number(result.tpot_ms.p99)} ms", f"{number(result.tpot_ms.mean)} ms"))
    if result.speedup_vs_off is not None:
        tiles.append(
            (
                _with_interval("speedup over no speculation", result.speedup_ci95),
                f"{number(result.speedup_vs_off)}×",
            )
        )
    if result.ttft_ms is not None:
        tiles.append((f"TTFT, p99 {number(result.ttft_ms.p99)} ms", f"{number(result.ttft_ms.mean)} ms"))
    tiles.append(("output tokens per second", number(result.output_tok_s)))
    tiles.append(("goodput", f"{number(result.goodput_qps)} req/s"))
    tiles.append(("tokens per step and request", number(result.acceptance_length)))
    return tiles


def _with_interval(name: str, interval: tuple[float, float] | None) -> str:
    return name if interval is None else f"{name}, {number(interval[0])} to {number(interval[1])}"


def _batch_table(plan: Plan) -> str:
    table = tables.batch_table(plan.answer, plan.question)
    return f"<h2>K by batch size</h2>{table}" if table else ""


def _footer(plan: Plan) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in plan.versions.items())
    return (
        f'<footer class="quiet">Scenario {escape(plan.scenario_hash)}, seed {plan.question.seed}, '
        f"{plan.question.replications} replications of {plan.question.requests:,} requests. "
        f"Predicted by simulation, not measured. {escape(versions)}.</footer>"
    )
