"""The page: the answer in words, the evidence in charts and tables, and what it all rests on."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kplan.config.loads import ranks_words, requests_words
from kplan.config.plan import Plan, PolicyResult
from kplan.report import answer_figures, figures, load_figures, map_figure, tables
from kplan.report.document import Chart, document
from kplan.report.limits import limits
from kplan.report.text import answer_k, load, number


def render_report(plan: Plan) -> str:
    """One self-contained HTML page for ``plan``."""
    asked, inside = (
        [chart for chart in charts if chart.figure is not None]
        for charts in (_load_charts(plan), _charts(plan))
    )
    body = f"""{_header(plan)}
<main>
{_answer(plan)}
{_tiles(plan)}
{_batch_table(plan)}
{"".join(chart.section() for chart in asked)}
<h2>Policies compared</h2>
<p class="quiet">Simulated under the same arrivals, lengths and acceptance for every policy.
Times are per request. Small figures: 95% interval of the mean.</p>
{tables.policies(plan)}
<noscript><p>The charts need JavaScript; the tables hold the figures of the load asked about.</p></noscript>
<div class="charts">
{"".join(chart.section() for chart in inside)}
</div>
<h2>Known limitations of this answer</h2>
{_listed([escape(line) for line in limits(plan)])}
<h2>What this rests on</h2>
{tables.assumptions(plan.assumptions)}
<details><summary>The question, with every default</summary>
{tables.question(plan.question)}
</details>
</main>
{_footer(plan)}"""
    return document(f"{answer_k(plan.answer)} at {load(plan.question)}", body, [*asked, *inside])


def _load_charts(plan: Plan) -> list[Chart]:
    """Those as wide as the page: other loads, and what would change the answer."""
    swept = plan.evidence.sweep if plan.evidence else None
    return [
        Chart(
            "chart-sweep",
            "Latency and throughput against the load",
            "Simulated, on the same requests for every policy; bars: 95% interval over the "
            "replications. A line of TPOT ends where its queue would grow without end; hollow: what is "
            "sustained there.",
            load_figures.sweep(plan),
            load_figures.crossing_words(swept) if swept else (),
        ),
        Chart(
            "chart-changes",
            "What would change the answer",
            "By input and K: percent by which a token comes later than at the best K there (a dash: not "
            "sustained on these replicas). First row: simulated; the others change it by a closed form, at "
            "the batch where the load balances. A longer context is a longer prompt; SLOs are left aside.",
            answer_figures.changes(plan),
            tuple(answer_figures.change_words(plan)),
        ),
    ]


def _charts(plan: Plan) -> list[Chart]:
    return [
        Chart(
            "chart-tpot",
            "Time per output token by policy",
            "At the load asked about; lower is better. The diamond is the recommended policy.",
            figures.tpot(plan),
        ),
        Chart(
            "chart-slo",
            "Goodput against the SLO",
            "Share of the simulated requests that meet an SLO on TPOT, and on TTFT. Dotted: the 90% that "
            "must meet it; dashed: the SLO asked for.",
            answer_figures.slo(plan),
        ),
        Chart(
            "chart-k-map",
            "Best K by batch and context",
            "The fixed K of most expected tokens per second in a steady step (closed form). Diamond: the "
            "load, with the batches of 90% of its steps; line: where it goes as the load grows. Blank: no "
            "room in the KV cache.",
            map_figure.k_map(plan),
        ),
        Chart(
            "chart-front",
            "Latency against throughput per GPU",
            "The best trades over every K and batch, prefills included (closed form): right and low is good.",
            load_figures.front(plan),
        ),
        Chart(
            "chart-acceptance",
            "Acceptance by depth",
            "Along the walk of the longest drafts asked about. A draft that is not offered counts as not "
            "accepted.",
            answer_figures.acceptance(plan),
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


def _listed(lines: Sequence[str]) -> str:
    """HTML lines as a list."""
    return "<ul>" + "".join(f"<li>{line}</li>" for line in lines) + "</ul>"


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
    told = plan.evidence.limits if plan.evidence else ()
    why = [escape(line) for line in answer.why if line not in told]  # the others stand among the limitations
    kind = "answer" if answer.feasible and not answer.saturated else "answer bad"
    return (
        f'<section class="{kind}"><p><strong>{escape(answer.words)}</strong></p>'
        f"{_listed(why) if why else ''}</section>"
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
