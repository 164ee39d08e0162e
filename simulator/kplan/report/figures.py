"""The charts of the report as plotly figures; colours of text and grid come from the page's theme.

A chart whose plan holds nothing to draw is None: an empty frame would say that something is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kplan.config.plan import Plan, PolicyResult
from kplan.report.text import labels, number

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, GREY = "#56B4E9", "#CC79A7", "#8A8F98"
"""Okabe-Ito colours that show on white and on black, and a grey that does too."""

_ROW_PX, _FRAME_PX = 27, 120
_LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": 1.0,
    "yanchor": "bottom",
    "traceorder": "normal",
}


def tpot(plan: Plan) -> go.Figure | None:
    """Mean TPOT with its interval, and the p99, per policy."""
    if not plan.policies:
        return None
    results, names = plan.policies, labels(plan.policies)
    known = [(n, r, r.tpot_ms) for n, r in zip(names, results, strict=True) if r.tpot_ms is not None]
    figure = go.Figure()
    figure.add_scatter(
        x=[s.mean for _, _, s in known],
        y=[n for n, _, _ in known],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [s.ci95[1] - s.mean if s.ci95 else 0 for _, _, s in known],
            "arrayminus": [s.mean - s.ci95[0] if s.ci95 else 0 for _, _, s in known],
            "color": BLUE,
            "thickness": 2,
            "width": 5,
        },
        mode="markers",
        name="mean, 95% CI",
        marker={
            "size": 10,
            "color": BLUE,
            "symbol": ["diamond" if r.name == plan.answer.policy else "circle" for _, r, _ in known],
        },
        hovertext=[_hover(r, f"TPOT {number(s.mean)} ms") for _, r, s in known],
        hoverinfo="text",
    )
    figure.add_scatter(
        x=[s.p99 for _, _, s in known],
        y=[n for n, _, _ in known],
        mode="markers",
        name="p99 of requests",
        marker={"size": 10, "color": ORANGE, "symbol": "line-ns-open", "line": {"width": 2.5}},
        hovertext=[_hover(r, f"p99 TPOT {number(s.p99)} ms") for _, r, s in known],
        hoverinfo="text",
    )
    _mark_missing(figure, results, names)
    if plan.question.slo_tpot_ms is not None:
        _limit(figure, plan.question.slo_tpot_ms, names)
    set_rows(figure, names, "time per output token (ms)")
    return figure


def throughput(plan: Plan) -> go.Figure | None:
    """Output tokens per second per policy with intervals; hatched where the queue grows."""
    if not plan.policies:
        return None
    results, names = plan.policies, labels(plan.policies)
    figure = go.Figure()
    for name, saturated, colour in (("keeps up", False, GREEN), ("saturated", True, VERMILLION)):
        rows = [(n, r) for n, r in zip(names, results, strict=True) if r.saturated is saturated]
        figure.add_bar(
            x=[r.output_tok_s for _, r in rows],
            y=[n for n, _ in rows],
            orientation="h",
            name=name,
            error_x={
                "array": [
                    r.output_tok_s_ci95[1] - r.output_tok_s if r.output_tok_s_ci95 else 0 for _, r in rows
                ],
                "arrayminus": [
                    r.output_tok_s - r.output_tok_s_ci95[0] if r.output_tok_s_ci95 else 0 for _, r in rows
                ],
                "thickness": 1,
            },
            marker={"color": colour, "pattern": {"shape": "/" if saturated else ""}},
            hovertext=[
                _hover(r, f"{number(r.output_tok_s)} tok/s, {number(r.goodput_qps)} good requests/s")
                for _, r in rows
            ],
            hoverinfo="text",
            showlegend=bool(rows),
        )
    figure.update_layout(barmode="stack")
    set_rows(figure, names, "output tokens per second, all replicas")
    return figure


def split(plan: Plan) -> go.Figure | None:
    """Mean milliseconds of a step by what they were spent on, per policy."""
    if not plan.policies:
        return None
    results, names = plan.policies, labels(plan.policies)
    figure = go.Figure()
    for part, colour in (("verify", BLUE), ("draft", ORANGE), ("sampling", GREEN), ("overhead", PURPLE)):
        ms = [1e3 * getattr(result.split, f"{part}_s") for result in results]
        figure.add_bar(
            x=ms,
            y=names,
            orientation="h",
            name=part,
            marker={"color": colour},
            hovertext=[
                _hover(r, f"{part} {number(value)} ms per step") for r, value in zip(results, ms, strict=True)
            ],
            hoverinfo="text",
        )
    figure.update_layout(barmode="stack")
    set_rows(figure, names, "mean time of one step (ms)")
    return figure


def k_share(plan: Plan) -> go.Figure | None:
    """Share of decode steps at each K, for the policies that use several."""
    mixed = [r for r in plan.policies if sum(share > 0 for share in r.k_share.values()) > 1]
    if not mixed:
        return None
    names = labels(mixed)
    ks = sorted({int(k) for r in mixed for k in r.k_share})
    figure = go.Figure()
    for k in ks:
        shares = [100 * r.k_share.get(str(k), 0.0) for r in mixed]
        figure.add_bar(
            x=shares,
            y=names,
            orientation="h",
            name=f"K = {k}",
            marker={"color": _shade(k, max(ks)), "line": {"color": GREY, "width": 0.5}},
            hovertext=[
                _hover(r, f"K = {k} in {number(share)}% of decode steps")
                for r, share in zip(mixed, shares, strict=True)
            ],
            hoverinfo="text",
        )
    figure.update_layout(barmode="stack")
    set_rows(figure, names, "share of decode steps (%)")
    return figure


def k_curve(plan: Plan) -> go.Figure | None:
    """Step time and expected tokens per second against K, at the load's own batch."""
    points = sorted(plan.k_curve, key=lambda p: p.k)
    if not points:
        return None
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09)
    hover = [f"K = {p.k}, batch {number(p.batch)}, context {number(p.context)} tokens" for p in points]
    for row, ys, unit, colour in (
        (1, [p.tokens_per_s for p in points], "tok/s", GREEN),
        (2, [p.step_ms for p in points], "ms", BLUE),
    ):
        figure.add_scatter(
            x=[p.k for p in points],
            y=ys,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 8, "color": colour},
            hovertext=[f"{text}<br>{number(y)} {unit}" for text, y in zip(hover, ys, strict=True)],
            hoverinfo="text",
            showlegend=False,
            row=row,
            col=1,
        )
    figure.update_yaxes(title_text="tokens/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="step (ms)", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(dtick=1 if len(points) <= 16 else None)
    figure.update_xaxes(title_text="K (draft tokens)", row=2, col=1)
    figure.update_layout(height=400, margin={"l": 62, "r": 16, "t": 16, "b": 48})
    return figure


def roofline(plan: Plan) -> go.Figure | None:
    """Ceilings of the hardware and the operating point of the load at each K."""
    points = sorted(plan.k_curve, key=lambda p: p.k)
    if not points:
        return None
    roof = plan.roofline
    ridge = roof.peak_tflops / roof.bandwidth_tb_s
    xs = [p.flops_per_byte for p in points]
    low, high = min(*xs, ridge) / 2.5, max(*xs, ridge) * 2.5
    figure = go.Figure()
    attainable = (roof.efficiency_flops, roof.efficiency_bandwidth)
    for name, (flops, bandwidth), dash in (
        ("data sheet", (1.0, 1.0), "dot"),
        ("attainable (calibrated)", attainable, "solid"),
    ):
        bend = ridge * flops / bandwidth
        figure.add_scatter(
            x=[low, bend, high],
            y=[low * roof.bandwidth_tb_s * bandwidth, roof.peak_tflops * flops, roof.peak_tflops * flops],
            mode="lines",
            name=name,
            line={"color": GREY, "width": 2, "dash": dash},
            hoverinfo="skip",
        )
    largest = max(p.k for p in points)
    figure.add_scatter(
        x=xs,
        y=[p.tflops for p in points],
        mode="markers+text",
        name="this load at K = 0, 1, 2 ...",
        text=[str(p.k) for p in points],
        textposition="bottom center",
        marker={
            "size": 11,
            "color": [_shade(p.k, largest) for p in points],
            "line": {"color": GREY, "width": 1},
        },
        hovertext=[
            f"K = {p.k}: {escape(p.bound)} bound<br>{number(p.flops_per_byte)} FLOP/byte, "
            f"{number(p.tflops)} TFLOP/s"
            for p in points
        ],
        hoverinfo="text",
    )
    # Ticks at 1, 2, 5 of every decade: a log axis of one decade would show two of its own.
    ticks = [step * 10**power for power in range(-3, 7) for step in (1, 2, 5)]
    axis = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks], "automargin": True}
    figure.update_xaxes(title_text="arithmetic intensity (FLOP/byte)", **axis)
    figure.update_yaxes(title_text="target pass (TFLOP/s)", **axis)
    figure.update_layout(height=420, legend=_LEGEND, margin={"l": 62, "r": 16, "t": 64, "b": 52})
    return figure


def set_rows(figure: go.Figure, names: Sequence[str], unit: str) -> None:
    """Horizontal rows, first policy on top, labels as wide as they need to be."""
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(names), autorange="reversed",
        automargin=True, ticksuffix=" ", range=None,
    )  # fmt: skip
    figure.update_xaxes(title_text=unit, rangemode="tozero", automargin=True)
    figure.update_layout(
        height=_FRAME_PX + _ROW_PX * len(names), legend=_LEGEND, margin={"l": 8, "r": 16, "t": 44, "b": 48}
    )


def _mark_missing(figure: go.Figure, results: Sequence[PolicyResult], names: Sequence[str]) -> None:
    """A policy without a TPOT keeps its row and says why."""
    rows = [(n, r) for n, r in zip(names, results, strict=True) if r.tpot_ms is None]
    if rows:
        figure.add_scatter(
            x=[0.0] * len(rows),
            y=[n for n, _ in rows],
            mode="text",
            text=[" saturated" if r.saturated else " no second token" for _, r in rows],
            textposition="middle right",
            hoverinfo="skip",
            showlegend=False,
        )


def _limit(figure: go.Figure, value_ms: float, names: Sequence[str]) -> None:
    figure.add_scatter(
        x=[value_ms, value_ms],
        y=[names[0], names[-1]],
        mode="lines",
        name=f"SLO {number(value_ms)} ms",
        line={"color": VERMILLION, "width": 1.5, "dash": "dash"},
        hoverinfo="skip",
    )


def _hover(result: PolicyResult, text: str) -> str:
    return f"<b>{escape(result.name)}</b><br>{text}"


def _shade(k: int, largest: int) -> str:
    """A colour of the cividis scale (made for colour-blind readers), light for small K."""
    scale = ("#FEE838", "#D2C060", "#A69D75", "#7D7C78", "#575C6D", "#44547A", "#31508F")
    return scale[round(k / max(largest, 1) * (len(scale) - 1))]
