"""Other loads, and the trade of latency against throughput."""

from __future__ import annotations

from html import escape
from itertools import pairwise

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kplan.config.evidence import Crossing, FrontPoint, Sweep, SweepCurve
from kplan.config.plan import Plan
from kplan.report.marks import BLUE, GREY, LEGEND, error_bar, line_styles, shade
from kplan.report.text import number, short_names


def sweep(plan: Plan) -> go.Figure | None:
    """TPOT and output tokens per second against the load, a line per policy, with intervals and crossings."""
    swept = plan.evidence and plan.evidence.sweep
    if not swept:
        return None
    names = [curve.policy for curve in swept.curves]
    styles = line_styles(names, plan.answer.policy)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.6, 0.4])
    for curve, label in zip(swept.curves, short_names(names), strict=True):
        style = styles[curve.policy]
        colour = style["line"]["color"]
        steady = [(p, p.tpot_ms) for p in curve.points if p.tpot_ms is not None]
        figure.add_scatter(
            x=[p.load for p, _ in steady],
            y=[tpot for _, tpot in steady],
            error_y=error_bar([tpot for _, tpot in steady], [p.tpot_ci95 for p, _ in steady], colour),
            mode="lines+markers",
            name=label,
            legendgroup=label,
            hovertext=[
                f"<b>{escape(curve.policy)}</b><br>{number(p.load)} {swept.unit}<br>TPOT {number(tpot)} ms"
                for p, tpot in steady
            ],
            hoverinfo="text",
            **style,
            row=1,
            col=1,
        )
        figure.add_scatter(
            x=[p.load for p in curve.points],
            y=[p.output_tok_s for p in curve.points],
            error_y=error_bar(
                [p.output_tok_s for p in curve.points], [p.output_tok_s_ci95 for p in curve.points], colour
            ),
            mode="lines+markers",
            name=label,
            legendgroup=label,
            showlegend=False,
            hovertext=[_rate_hover(curve, i, swept) for i in range(len(curve.points))],
            hoverinfo="text",
            line=style["line"],
            marker=style["marker"]
            | {"symbol": [_open(style["marker"]["symbol"], open=p.saturated) for p in curve.points]},
            row=2,
            col=1,
        )
    crossed = [(one, _tpot_at(swept, one)) for one in swept.crossings]
    told = [(one, tpot) for one, tpot in crossed if tpot is not None]
    if told:
        figure.add_scatter(
            x=[one.load for one, _ in told],
            y=[tpot for _, tpot in told],
            mode="markers",
            name="crossing",
            marker={"symbol": "circle-open", "size": 16, "color": GREY, "line": {"width": 2.5}},
            hovertext=[_crossing(one, swept.unit) for one, _ in told],
            hoverinfo="text",
            row=1,
            col=1,
        )
    for row in (1, 2):
        figure.add_vline(x=swept.asked, line={"color": GREY, "width": 1, "dash": "dash"}, row=row, col=1)
    figure.add_annotation(
        x=swept.asked, y=1, yref="y domain", text="asked", showarrow=False, xanchor="left", yanchor="top",
        xshift=4,
    )  # fmt: skip
    figure.update_yaxes(rangemode="tozero", automargin=True)
    figure.update_yaxes(title_text="TPOT (ms)", row=1, col=1)
    figure.update_yaxes(title_text="output (tokens/s)", row=2, col=1)
    figure.update_xaxes(title_text=f"load ({swept.unit})", rangemode="tozero", row=2, col=1)
    figure.update_layout(height=560, legend=LEGEND, margin={"l": 62, "r": 16, "t": 56, "b": 52})
    return figure


def crossing_words(swept: Sweep) -> tuple[str, ...]:
    """Which policy is faster on which side of each crossing, or that there is none, as HTML-safe text."""
    if not swept.crossings and len(swept.curves) > 1:
        return (
            "Neither the recommended line nor that of no speculation crosses another on every replication.",
        )
    return tuple(_crossing(one, swept.unit) for one in swept.crossings)


def _crossing(one: Crossing, unit: str) -> str:
    ends = "" if one.ci95 is None else f" (95% {number(one.ci95[0])} to {number(one.ci95[1])})"
    below, above = short_names([one.below, one.above])
    return f"{below} is faster below {number(one.load)} {escape(unit)}{ends}, {above} above."


def _rate_hover(curve: SweepCurve, at: int, swept: Sweep) -> str:
    point = curve.points[at]
    told = "sustains no more than" if point.saturated else "serves"
    return (
        f"<b>{escape(curve.policy)}</b><br>{number(point.load)} {swept.unit} asked<br>"
        f"{told} {number(point.output_tok_s)} tokens/s"
    )


def _open(symbol: str, *, open: bool) -> str:  # noqa: A002
    return f"{symbol}-open" if open else symbol


def _tpot_at(swept: Sweep, one: Crossing) -> float | None:
    """TPOT at the crossing, on the line that its policy is drawn with."""
    curve = next(curve for curve in swept.curves if curve.policy == one.below)
    for left, right in pairwise(curve.points):
        if left.tpot_ms is not None and right.tpot_ms is not None and left.load <= one.load <= right.load:
            return left.tpot_ms + (right.tpot_ms - left.tpot_ms) * (one.load - left.load) / (
                right.load - left.load
            )
    return None


def front(plan: Plan) -> go.Figure | None:
    """The Pareto front over every K and batch, marked by K, beside no speculation, and where the load is."""
    if plan.evidence is None or not plan.evidence.front.best:
        return None
    best, off = plan.evidence.front.best, plan.evidence.front.off
    largest = max(max(one.k for one in best), 1)
    figure = go.Figure()
    figure.add_scatter(
        x=[one.tok_s_gpu for one in off],
        y=[one.tpot_ms for one in off],
        mode="lines",
        line={"color": GREY, "width": 2, "dash": "dot"},
        name="no speculation",
        hovertext=[_trade(one) for one in off],
        hoverinfo="text",
    )
    figure.add_scatter(
        x=[one.tok_s_gpu for one in best],
        y=[one.tpot_ms for one in best],
        mode="lines",
        line={"color": GREY, "width": 1.5},
        showlegend=False,
        hoverinfo="skip",
    )
    for k in sorted({one.k for one in best}):
        points = [one for one in best if one.k == k]
        figure.add_scatter(
            x=[one.tok_s_gpu for one in points],
            y=[one.tpot_ms for one in points],
            mode="markers",
            marker={
                "size": 10,
                "symbol": ("circle", "square", "diamond", "triangle-up", "cross")[k % 5],
                "color": shade(k, largest),
                "line": {"color": GREY, "width": 1},
            },
            name=f"best: K = {k}" if k else "best: none",
            hovertext=[_trade(one) for one in points],
            hoverinfo="text",
        )
    _add_operating_point(figure, plan)
    figure.update_xaxes(title_text="output tokens per second and GPU", rangemode="tozero", automargin=True)
    figure.update_yaxes(title_text="TPOT (ms)", rangemode="tozero", automargin=True)
    figure.update_layout(height=460, legend=LEGEND, margin={"l": 62, "r": 16, "t": 64, "b": 52})
    return figure


def _add_operating_point(figure: go.Figure, plan: Plan) -> None:
    gpus = plan.answer.replicas * plan.question.tp * plan.question.dp
    here = next((one for one in plan.policies if one.name == plan.answer.policy), None)
    if here is not None and here.tpot_ms is not None:
        figure.add_scatter(
            x=[here.output_tok_s / gpus],
            y=[here.tpot_ms.mean],
            mode="markers",
            marker={"symbol": "star", "size": 16, "color": BLUE, "line": {"color": "#FFFFFF", "width": 1}},
            name="recommended (simulated)",
            hovertext=[f"<b>{escape(here.name)}</b><br>TPOT {number(here.tpot_ms.mean)} ms"],
            hoverinfo="text",
        )


def _trade(one: FrontPoint) -> str:
    return (
        f"K = {one.k}, batch {one.batch:,}<br>TPOT {number(one.tpot_ms)} ms, "
        f"{number(one.tok_s_gpu)} tokens/s per GPU"
    )
