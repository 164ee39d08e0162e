"""The answer: what would change it, the acceptance it rests on, and the SLOs that it meets."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kplan.config.evidence import Change
from kplan.config.plan import Plan
from kplan.report.marks import BLUE, GREY, LEGEND, ORANGE, VERMILLION, line_styles, set_rows
from kplan.report.text import number, short_names

_WORST = 0.3
"""A loss from which on a cell has no colour."""
_TIE = 0.01
"""A loss that is larger than now by no more is none."""
_BEYOND = 2
"""Columns shown beyond the largest K that is best, or kept, anywhere."""
_ATTAINMENT = 90
"""Percent of requests that must meet an SLO for a policy to meet it."""


def changes(plan: Plan) -> go.Figure | None:
    """By changed input and K, how much later a token comes than at the best K; the answer's K framed."""
    rows = _rows(plan)
    if not rows:
        return None
    most = len(rows[0].tpot_ms) - 1
    largest = max(max(one.kept_k, one.best_k or 0) for one in rows)
    ks = list(range(min(most, largest + _BEYOND) + 1))
    names = [escape(one.name) for one in rows]
    columns = [str(k) for k in ks]
    losses = [_losses(one, ks) for one in rows]
    figure = go.Figure()
    figure.add_heatmap(
        x=columns,
        y=names,
        z=[[None if loss is None else min(loss, _WORST) for loss in row] for row in losses],
        zmin=0,
        zmax=_WORST,
        colorscale=[[0, "rgba(0,114,178,0.55)"], [1, "rgba(0,114,178,0)"]],
        showscale=False,
        xgap=2,
        ygap=2,
        hoverinfo="skip",
    )
    cells = [
        (columns[i], name, _cell(loss, best=k == one.best_k), _hover(one, k, loss))
        for one, name, row in zip(rows, names, losses, strict=True)
        for i, (k, loss) in enumerate(zip(ks, row, strict=True))
    ]
    figure.add_scatter(
        x=[x for x, _, _, _ in cells],
        y=[y for _, y, _, _ in cells],
        mode="text",
        text=[text for _, _, text, _ in cells],
        textfont={"size": 10.5},
        hovertext=[hover for _, _, _, hover in cells],
        hoverinfo="text",
        showlegend=False,
    )
    frame = {"color": ORANGE, "width": 2.5}
    for at, one in enumerate(rows):
        if one.kept_k <= ks[-1]:
            left, right = one.kept_k - 0.47, one.kept_k + 0.47
            figure.add_shape(type="rect", x0=left, x1=right, y0=at - 0.42, y1=at + 0.42, line=frame)
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        marker={"symbol": "square-open", "size": 14, "color": ORANGE, "line": {"width": 2.5}},
        name="what the answer runs",
        showlegend=True,
    )
    set_rows(figure, names, "K (draft tokens)")
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=columns, showgrid=False)
    figure.update_yaxes(showgrid=False, ticks="")  # a tick beside a name reads as the dash of a cell
    return figure


def change_words(plan: Plan) -> list[str]:
    """A sentence for every change under which the answer falls behind another K, as HTML-safe text."""
    rows = _rows(plan)
    told = []
    for one in rows[1:]:
        if one.best_k is None:
            told.append(f"{one.name}: no K sustains the load on these replicas.")
        elif one.loss is None:
            told.append(f"{one.name}: {_k_words(one.best_k)} is best; the answer does not sustain the load.")
        elif one.best_k != one.kept_k and one.loss > (rows[0].loss or 0.0) + _TIE:
            told.append(
                f"{one.name}: {_k_words(one.best_k)} is best; the answer is {100 * one.loss:.1f}% slower."
            )
    if rows and not told:
        told.append("Under none of these changes does the answer fall behind another K by 1% more than now.")
    return [escape(one) for one in told]


def _rows(plan: Plan) -> tuple[Change, ...]:
    found = plan.evidence and plan.evidence.sensitivity
    return found.changes if found else ()


def _k_words(k: int) -> str:
    return f"K = {k}" if k else "no speculation"


def _losses(one: Change, ks: Sequence[int]) -> list[float | None]:
    known = [tpot for tpot in one.tpot_ms if tpot is not None]
    return [None if (tpot := one.tpot_ms[k]) is None else tpot / min(known) - 1 for k in ks]


def _cell(loss: float | None, *, best: bool) -> str:
    if best:
        return "<b>best</b>"
    return "–" if loss is None else f"{100 * loss:.0f}" if loss < 1 else f"{loss + 1:.1f}x"


def _hover(one: Change, k: int, loss: float | None) -> str:
    where = f"<b>{escape(one.name)}</b><br>K = {k}: "
    if loss is None:
        return f"{where}the load is not sustained"
    return f"{where}TPOT {number(one.tpot_ms[k])} ms, {100 * loss:.1f}% above the best"


def acceptance(plan: Plan) -> go.Figure | None:
    """Acceptance by depth, given the drafts before it and of all steps; hollow where nothing is known."""
    rows = plan.evidence.acceptance if plan.evidence else ()
    if not rows:
        return None
    figure = go.Figure()
    for name, shares, colour, dash, symbol in (
        ("given those before it", [one.conditional for one in rows], BLUE, "solid", "circle"),
        ("of all steps", [one.kept for one in rows], ORANGE, "dash", "square"),
    ):
        figure.add_scatter(
            x=[one.draft for one in rows],
            y=[100 * share for share in shares],
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2, "dash": dash},
            marker={
                "size": 9,
                "color": colour,
                "symbol": [symbol if one.known else f"{symbol}-open" for one in rows],
            },
            hovertext=[
                f"draft {one.draft}, {name}: {number(100 * share)}%"
                + ("" if one.known else "<br>beyond what was recorded")
                for one, share in zip(rows, shares, strict=True)
            ],
            hoverinfo="text",
        )
    unknown = next((one.draft for one in rows if not one.known), None)
    if unknown is not None:
        figure.add_vrect(
            x0=unknown - 0.5, x1=rows[-1].draft + 0.5, fillcolor=GREY, opacity=0.18, line_width=0
        )
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            marker={"symbol": "square", "size": 13, "color": GREY, "opacity": 0.4},
            name="censored: nothing recorded",
        )
    figure.update_xaxes(title_text="draft (position in the step)", dtick=max(1, len(rows) // 8))
    figure.update_yaxes(title_text="accepted (%)", range=[0, 105], automargin=True)
    figure.update_layout(height=420, legend=LEGEND, margin={"l": 62, "r": 16, "t": 56, "b": 52})
    return figure


def slo(plan: Plan) -> go.Figure | None:
    """Share of the requests that meet an SLO, against the SLO: one panel for TPOT and one for TTFT."""
    curves = [one for one in (plan.evidence.slo if plan.evidence else ()) if one.ttft_ms]
    if not curves:
        return None
    names = [one.policy for one in curves]
    styles = line_styles(names, plan.answer.policy)
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.2)
    goodput = plan.question.qps
    for row, (field, limit) in enumerate(
        (("tpot_ms", plan.question.slo_tpot_ms), ("ttft_ms", plan.question.slo_ttft_ms)), start=1
    ):
        for one, label in zip(curves, short_names(names), strict=True):
            values = getattr(one, field)
            shares = one.shares[: len(values)]
            figure.add_scatter(
                x=list(values),
                y=[100 * share for share in shares],
                mode="lines",
                name=label,
                legendgroup=label,
                showlegend=row == 1,
                line=styles[one.policy]["line"],
                hovertext=[
                    f"<b>{escape(one.policy)}</b><br>{100 * share:.0f}% within {number(value)} ms"
                    + ("" if goodput is None else f"<br>goodput {number(share * goodput)} requests/s")
                    for value, share in zip(values, shares, strict=True)
                ],
                hoverinfo="text",
                row=row,
                col=1,
            )
        if limit is not None:
            figure.add_vline(
                x=limit, line={"color": VERMILLION, "width": 1.5, "dash": "dash"}, row=row, col=1
            )
        figure.add_hline(y=_ATTAINMENT, line={"color": GREY, "width": 1, "dash": "dot"}, row=row, col=1)
        top = max((1.6 * getattr(one, field)[-4] for one in curves if getattr(one, field)), default=1.0)
        end = max(top, 1.15 * (limit or 0.0))
        figure.update_xaxes(title_text=f"SLO on {field[:4].upper()} (ms)", range=[0, end], row=row, col=1)
        figure.update_yaxes(title_text="requests (%)", range=[0, 103], automargin=True, row=row, col=1)
    figure.update_layout(height=520, legend=LEGEND, margin={"l": 62, "r": 16, "t": 56, "b": 52})
    return figure
