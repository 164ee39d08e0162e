"""The page: the answer in words, the evidence in charts and tables, and what it all rests on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from kplan.config.plan import Plan, PolicyResult
from kplan.report import figures, tables
from kplan.report.text import answer_k, load, number

# Nothing is fetched, by the page's own rule: it shows the same with the network off.
_RULES = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_report(plan: Plan) -> str:
    """One self-contained HTML page for ``plan`` (about 5 MB: plotly.js is inside)."""
    charts = [chart for chart in _charts(plan) if chart.figure is not None]
    drawn = {chart.name: _bare(chart.figure) for chart in charts if chart.figure is not None}
    title = f"{answer_k(plan.answer)} at {load(plan.question)}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_RULES}">
<title>kplan: {escape(title)}</title>
<style>{_asset("style.css")}</style>
</head>
<body>
{_header(plan)}
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
{"".join(_chart(chart) for chart in charts)}
</div>
<h2>What this rests on</h2>
{tables.assumptions(plan.assumptions)}
<details><summary>The question, with every default</summary>
{tables.question(plan.question)}
</details>
</main>
{_footer(plan)}
<script>{get_plotlyjs()}</script>
<script id="figures" type="application/json">{_script_json(drawn)}</script>
<script>{_asset("charts.js")}</script>
</body>
</html>
"""


@dataclass(frozen=True)
class _Chart:
    """A chart's element id, heading, what it shows in words, and its figure (None: nothing to draw)."""

    name: str
    heading: str
    note: str
    figure: go.Figure | None


def _charts(plan: Plan) -> list[_Chart]:
    batch = f"{number(plan.k_curve[0].batch)} requests" if plan.k_curve else ""
    return [
        _Chart(
            "chart-tpot",
            "Time per output token by policy",
            "Lower is better. The diamond is the recommended policy.",
            figures.tpot(plan),
        ),
        _Chart(
            "chart-throughput",
            "Throughput by policy",
            "Below saturation every policy serves the load offered; they differ in how fast a token comes.",
            figures.throughput(plan),
        ),
        _Chart(
            "chart-k-curve",
            "Tokens per second and step time by K",
            f"A fixed K at the load's own batch ({batch}), expected from acceptance and step price.",
            figures.k_curve(plan),
        ),
        _Chart(
            "chart-split",
            "Where a step's time goes",
            "Means over the steps of the run. A step emits as many tokens as the acceptance length says.",
            figures.split(plan),
        ),
        _Chart(
            "chart-roofline",
            "The load on the roofline",
            "Each point is the target pass at one K (the number). On the slope the step waits for memory and "
            "more drafts are nearly free; on the flat part they cost their full compute.",
            figures.roofline(plan),
        ),
        _Chart(
            "chart-k-share",
            "Which K the adaptive policies used",
            "Share of decode steps at each K.",
            figures.k_share(plan),
        ),
    ]


def _chart(chart: _Chart) -> str:
    heading = escape(chart.heading)
    return (
        f'<section><h2>{heading}</h2><p class="quiet">{escape(chart.note)}</p>'
        f'<div id="{chart.name}" role="img" aria-label="{heading}"></div></section>\n'
    )


def _bare(figure: go.Figure) -> dict[str, object]:
    """The figure without plotly's template: the page brings its own, light or dark."""
    content = figure.to_plotly_json()
    content["layout"].pop("template", None)
    return {"data": content["data"], "layout": content["layout"]}


def _header(plan: Plan) -> str:
    asked = plan.question
    what = asked.workload if asked.traces is None else f"traces {asked.traces}"
    where = f"{asked.model} on {asked.hardware}, TP {asked.tp}, {asked.proposer} drafts, {what}"
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
    tiles = [("recommended", answer_k(answer)), ("replicas", str(answer.replicas))]
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


def _asset(name: str) -> str:
    return files("kplan.report").joinpath("assets", name).read_text(encoding="utf-8")


def _script_json(content: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(content, default=list, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
