"""The policies at the load asked about, and where its steps sit: charts of the report as plotly figures.

A chart whose plan holds nothing to draw is None: an empty frame would say that something is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from kplan.config.plan import Plan, PolicyResult
from kplan.report.marks import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    SKY,
    VERMILLION,
    error_bar,
    log_axis,
    set_rows,
    shade,
)
from kplan.report.text import labels, number


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
        error_x=error_bar([s.mean for _, _, s in known], [s.ci95 for _, _, s in known], BLUE),
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


def split(plan: Plan) -> go.Figure | None:
    """Mean milliseconds of a step by what they were spent on, per policy."""
    if not plan.policies:
        return None
    results, names = plan.policies, labels(plan.policies)
    figure = go.Figure()
    for part, colour in (("verify", BLUE), ("draft", ORANGE), ("sampling", GREEN), ("overhead", SKY)):
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
            marker={"color": shade(k, max(ks)), "line": {"color": GREY, "width": 0.5}},
            hovertext=[
                _hover(r, f"K = {k} in {number(share)}% of decode steps")
                for r, share in zip(mixed, shares, strict=True)
            ],
            hoverinfo="text",
        )
    figure.update_layout(barmode="stack")
    set_rows(figure, names, "share of decode steps (%)")
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
            "color": [shade(p.k, largest) for p in points],
            "line": {"color": GREY, "width": 1},
        },
        hovertext=[
            f"K = {p.k}: {escape(p.bound)} bound<br>{number(p.flops_per_byte)} FLOP/byte, "
            f"{number(p.tflops)} TFLOP/s"
            for p in points
        ],
        hoverinfo="text",
    )
    figure.update_xaxes(title_text="arithmetic intensity (FLOP/byte)", **log_axis())
    figure.update_yaxes(title_text="target pass (TFLOP/s)", **log_axis())
    figure.update_layout(height=420, legend=LEGEND, margin={"l": 62, "r": 16, "t": 64, "b": 52})
    return figure


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
