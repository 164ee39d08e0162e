"""The page of a leaderboard: a ranking over all cells, a heat map for each kind of load, and every row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from kplan.report.document import Chart, document
from kplan.report.marks import BLUE, GREY, ink_on, set_rows
from kplan.report.tables import html_table
from kplan.report.text import DASH, number, short_names
from kplan.search.board_rows import Row, Standing, Told

_SLOWER_FASTER = (
    (0.0, "#B34700"),
    (0.25, "#E8A878"),
    (0.5, "#F4F4F4"),
    (0.75, "#7FB4D9"),
    (1.0, "#00507D"),
)
"""Orange below 1, blue above it: told apart by every kind of colour vision."""
_KINDS = {"closed": "clients of a closed loop", "open": "requests/s"}
_WRITTEN = 7
"""Cells up to which a narrow screen has room for the figures in the heat map."""


def render_leaderboard(board: Told) -> str:
    """One self-contained HTML page."""
    kinds = list(dict.fromkeys(row.kind for row in board.rows))
    charts = [
        Chart(
            "chart-ranking",
            "Share of the oracle's gain",
            "Mean over the cells where the oracle gains; 1 is the oracle, 0 no speculation. Bars: 95% "
            "interval over the seeds, for these cells as they are.",
            _ranking(board.summary),
        ),
        *(
            Chart(
                f"chart-{kind}",
                f"Speedup over no speculation, {_KINDS[kind]}",
                "Mean TPOT of no speculation over that of the policy; blue is faster, orange slower. Empty: "
                "one of the two saturates.",
                _heat_map([row for row in board.rows if row.kind == kind], board.summary),
            )
            for kind in kinds
        ),
    ]
    charts = [chart for chart in charts if chart.figure is not None]
    workloads = ", ".join(dict.fromkeys(row.workload for row in board.rows))
    notes = "".join(f"<li>{escape(note)}</li>" for note in board.notes)
    body = f"""<header><h1>Leaderboard of K-policies</h1>
<p class="quiet">{escape(workloads)}; {escape(board.model)} on {escape(board.hardware)},
{escape(board.engine)}; {board.replications} seeds per cell, the same requests for every
policy of a cell. Predicted by simulation, not measured.</p></header>
<main>
<h2>Ranking</h2>
<p class="quiet">Those that keep up wherever no speculation does come first, then by the mean share of the
oracle's gain. Regret: mean TPOT over that of the cell's best policy that is no oracle, less 1. A star marks
what the engine does not run today.</p>
{_standings(board.summary)}
<noscript><p>The charts need JavaScript; the tables hold the same figures.</p></noscript>
{"".join(chart.section() for chart in charts)}
<details><summary>Every row</summary>
<p class="quiet">Switches: steps of 1,000 that asked for another deepest K than the step before.</p>
{_all_rows(board.rows)}</details>
{f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""}
</main>"""
    return document("leaderboard", body, charts)


def _ranking(summary: Sequence[Standing]) -> go.Figure | None:
    """Mean share with its interval, the best on top."""
    known = [
        (name, one, one.mean_oracle_share)
        for name, one in zip(short_names([one.policy for one in summary]), summary, strict=True)
        if one.mean_oracle_share is not None
    ]
    if not known:
        return None
    figure = go.Figure()
    figure.add_scatter(
        x=[share for _, _, share in known],
        y=[name for name, _, _ in known],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [one.ci95[1] - share if one.ci95 else 0 for _, one, share in known],
            "arrayminus": [share - one.ci95[0] if one.ci95 else 0 for _, one, share in known],
            "color": BLUE,
            "thickness": 2,
            "width": 5,
        },
        mode="markers",
        marker={
            "size": 10,
            "color": [GREY if one.oracle else BLUE for _, one, _ in known],
            "symbol": ["diamond" if one.oracle else "circle" for _, one, _ in known],
        },
        hovertext=[
            f"<b>{escape(one.policy)}</b><br>{number(share)} of the gain over {one.shares} cells, "
            f"worst regret {number(one.worst_regret)}%"
            for _, one, share in known
        ],
        hoverinfo="text",
        showlegend=False,
        cliponaxis=False,
    )
    set_rows(figure, [name for name, _, _ in known], "mean share of the oracle's gain (1 = all)")
    return figure


def _heat_map(rows: Sequence[Row], summary: Sequence[Standing]) -> go.Figure | None:
    """Speedup by policy and cell, in the order of the ranking."""
    if all(row.speedup is None for row in rows):
        return None
    here = {row.policy for row in rows}
    policies = [one.policy for one in summary if one.policy in here]
    cells = list(dict.fromkeys((row.workload, row.proposer, row.load) for row in rows))
    found = {(row.policy, (row.workload, row.proposer, row.load)): row for row in rows}
    grid = [[found.get((policy, cell)) for cell in cells] for policy in policies]
    names = short_names(policies)
    groups = [escape(f"{workload}, {proposer}") for workload, proposer, _ in cells]
    loads = [f"{load:g}" for _, _, load in cells]
    spread = max(abs(row.speedup - 1) for row in rows if row.speedup is not None) or 1.0
    figure = go.Figure()
    figure.add_heatmap(
        x=[groups, loads] if len(set(groups)) > 1 else loads,
        y=names,
        z=[[None if one is None else one.speedup for one in line] for line in grid],
        zmin=1 - spread,
        zmax=1 + spread,
        colorscale=[list(stop) for stop in _SLOWER_FASTER],
        showscale=len(cells) > _WRITTEN,
        colorbar={"thickness": 12, "ticksuffix": "x"},
        xgap=2,
        ygap=2,
        hovertext=[[_hover(one) for one in line] for line in grid],
        hoverinfo="text",
        hoverongaps=True,
    )
    if len(cells) <= _WRITTEN:
        written = [
            (i, name, one.speedup)
            for name, line in zip(names, grid, strict=True)
            for i, one in enumerate(line)
            if one is not None and one.speedup is not None
        ]
        places = [loads[i] for i, _, _ in written]
        figure.add_scatter(
            x=[[groups[i] for i, _, _ in written], places] if len(set(groups)) > 1 else places,
            y=[name for _, name, _ in written],
            mode="text",
            text=[f"{speedup:.2f}" for _, _, speedup in written],
            textfont={"size": 10, "color": [_ink(speedup, spread) for _, _, speedup in written]},
            hoverinfo="skip",
            showlegend=False,
        )
    set_rows(figure, names, "clients (closed loop)" if rows[0].kind == "closed" else "load (requests/s)")
    figure.update_xaxes(type="multicategory" if len(set(groups)) > 1 else "category")
    return figure


def _ink(speedup: float, spread: float) -> str:
    """The colour of text on a cell; the scale goes from ``1 - spread`` to ``1 + spread``."""
    at = (speedup - 1 + spread) / (2 * spread)
    return ink_on(str(sample_colorscale([list(stop) for stop in _SLOWER_FASTER], [at])[0]))


def _hover(row: Row | None) -> str:
    if row is None:
        return "not run here"
    place = f"<b>{escape(row.policy)}</b><br>{escape(row.workload)}, {escape(row.proposer)}, {row.load:g}"
    if row.speedup is None:
        return f"{place}<br>{'saturated' if row.saturated else 'no speculation saturates'}"
    return (
        f"{place}<br>{number(row.speedup)}x {_interval(row.ci95)}<br>share {number(row.oracle_share)}, "
        f"regret {number(row.regret)}%, K {number(row.mean_k)}"
    )


def _interval(ci95: tuple[float, float] | None) -> str:
    return "" if ci95 is None else f"({number(ci95[0])} to {number(ci95[1])})"


def _standings(summary: Sequence[Standing]) -> str:
    head = ("policy", "mean share", "worst share", "mean regret", "worst regret", "cells", "falls behind")
    rows = [
        (
            "",
            [
                escape(one.policy + ("" if one.runnable else " *")),
                f"{number(one.mean_oracle_share)}<small>{_interval(one.ci95)}</small>",
                number(one.worst_oracle_share),
                _percent(one.mean_regret),
                _percent(one.worst_regret),
                f"{one.cells}",
                f"{one.fallen_behind}" if one.fallen_behind else DASH,
            ],
        )
        for one in summary
    ]
    return html_table(head, rows)


def _all_rows(rows: Sequence[Row]) -> str:
    head = (
        "policy", "workload", "proposer", "load", "speedup", "oracle share", "regret", "switches", "mean K",
        "TPOT",
    )  # fmt: skip
    cells = [
        (
            "",
            [
                escape(row.policy + ("" if row.runnable else " *")),
                escape(row.workload),
                escape(row.proposer),
                f"{row.load:g} {_KINDS[row.kind]}"
                + (f"<small>{row.replicas} replicas</small>" if row.replicas > 1 else ""),
                "saturated"
                if row.saturated
                else f"{number(row.speedup)}<small>{_interval(row.ci95)}</small>",
                f"{number(row.oracle_share)}<small>{_interval(row.oracle_share_ci95)}</small>",
                _percent(row.regret),
                number(row.switches),
                number(row.mean_k),
                DASH if row.tpot_ms is None else f"{number(row.tpot_ms)} ms",
            ],
        )
        for row in rows
    ]
    return html_table(head, cells)


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{number(value)}%"
