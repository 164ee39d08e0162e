"""The best K by batch and context, and the path of the load over it."""

from __future__ import annotations

from itertools import groupby, pairwise
from math import sqrt

import plotly.graph_objects as go

from kplan.config.evidence import KMap
from kplan.config.plan import Plan
from kplan.report.marks import LEGEND, VERMILLION, ink_on, log_axis, shade
from kplan.report.text import number


def k_map(plan: Plan) -> go.Figure | None:
    """The best K by batch and context, a colour and a number per K, and the load on it."""
    if plan.evidence is None:
        return None
    grid = plan.evidence.k_map
    cells = [k for row in grid.best_k for k in row if k is not None]
    if not cells or plan.question.max_k == 0:
        return None
    largest = max(max(cells), 1)
    figure = go.Figure()
    figure.add_heatmap(
        x=_edges(grid.batches),
        y=_edges(grid.contexts),
        z=[list(row) for row in grid.best_k],
        zmin=0,
        zmax=largest,
        colorscale=[[k / largest, shade(k, largest)] for k in range(largest + 1)],
        showscale=False,
        hovertext=[
            [_cell_words(grid, row, column) for column in range(len(grid.batches))]
            for row in range(len(grid.contexts))
        ],
        hoverinfo="text",
    )
    for k in sorted(set(cells)):
        _name_region(figure, grid, k, largest)
    _add_path(figure, plan)
    figure.update_xaxes(title_text="batch (requests in a step)", **log_axis())
    figure.update_yaxes(title_text="context (tokens)", **log_axis())
    figure.update_layout(height=460, legend=LEGEND, margin={"l": 62, "r": 16, "t": 64, "b": 52})
    return figure


def _name_region(figure: go.Figure, grid: KMap, k: int, largest: int) -> None:
    """The K on its region where that is wide enough, else in the legend."""
    place = _widest(grid, k)
    if place is None:
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            marker={"symbol": "square", "size": 13, "color": shade(k, largest)},
            name=f"K = {k}",
        )
    else:
        figure.add_scatter(
            x=[place[0]],
            y=[place[1]],
            mode="text",
            text=[f"K = {k}"],
            textfont={"color": ink_on(shade(k, largest)), "size": 13},
            hoverinfo="skip",
            showlegend=False,
        )


def _add_path(figure: go.Figure, plan: Plan) -> None:
    """Where the recommended policy's batch and context lie at each load, and their spread when asked."""
    evidence = plan.evidence
    result = next((one for one in plan.policies if one.name == plan.answer.policy), None)
    if evidence is None or result is None or result.mean_context <= 0:
        return
    white = {"color": "#FFFFFF", "width": 5}
    swept = evidence.sweep
    curves = () if swept is None else swept.curves
    path = [
        (p.batch, p.context, p.load)
        for curve in curves
        if curve.policy == plan.answer.policy
        for p in curve.points
        if p.batch is not None and p.context is not None
    ]
    if len(path) > 1:
        unit = "" if swept is None else swept.unit
        for line in (white, {"color": VERMILLION, "width": 2}):
            figure.add_scatter(
                x=[batch for batch, _, _ in path],
                y=[context for _, context, _ in path],
                mode="lines+markers",
                line=line,
                marker={"size": 7, "color": VERMILLION, "line": {"color": "#FFFFFF", "width": 1.5}},
                hovertext=[f"{number(load)} {unit}: batch {number(batch)}" for batch, _, load in path],
                hoverinfo="text",
                name="path as the load grows",
                showlegend=line is not white,
            )
    low, high = evidence.k_map.visited or (result.mean_batch, result.mean_batch)
    figure.add_scatter(
        x=[result.mean_batch],
        y=[result.mean_context],
        error_x={
            "array": [max(high - result.mean_batch, 0)],
            "arrayminus": [max(result.mean_batch - max(low, 1), 0)],
            "color": "#000000",
            "thickness": 3,
            "width": 7,
        },
        mode="markers",
        marker={
            "symbol": "diamond",
            "size": 14,
            "color": "#FFFFFF",
            "line": {"color": "#000000", "width": 2},
        },
        hovertext=[f"asked: batch {number(result.mean_batch)}, 90% of steps from {low} to {high}"],
        hoverinfo="text",
        name="the load asked",
    )


def _edges(centres: tuple[int, ...]) -> list[float]:
    """(n + 1,) borders of cells around centres, halfway on a log axis."""
    if len(centres) == 1:
        return [centres[0] / 1.2, centres[0] * 1.2]
    inner = [sqrt(a * b) for a, b in pairwise(centres)]
    return [centres[0] ** 2 / inner[0], *inner, centres[-1] ** 2 / inner[-1]]


def _cell_words(grid: KMap, row: int, column: int) -> str:
    place = f"batch {grid.batches[column]:,}, context {grid.contexts[row]:,} tokens"
    k, gain = grid.best_k[row][column], grid.gain[row][column]
    if k is None or gain is None:
        return f"{place}<br>does not fit the KV cache"
    return f"{place}<br>best K = {k}, {number(gain)}x the tokens/s of no speculation"


def _widest(grid: KMap, k: int) -> tuple[int, int] | None:
    """The middle of the longest row of at least four cells whose best K is ``k``."""
    found: list[tuple[int, int, int]] = []
    for row, cells in enumerate(grid.best_k):
        at = 0
        for value, run in groupby(cells):
            length = len(list(run))
            if value == k:
                found.append((length, at + length // 2, row))
            at += length
    length, column, row = max(found, default=(0, 0, 0))
    return (grid.batches[column], grid.contexts[row]) if length > 3 else None
