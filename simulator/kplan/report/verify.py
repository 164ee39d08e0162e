"""A live server beside its plan, as one page: the verdict, a parity plot, every figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from textwrap import wrap

import plotly.graph_objects as go

from kplan.live.judge import Figure, Verdict
from kplan.live.judge_words import suggestions, words
from kplan.live.verify import Verification
from kplan.report.document import Chart, document
from kplan.report.marks import BLUE, GREEN, GREY, LEGEND, ORANGE, VERMILLION
from kplan.report.tables import html_table
from kplan.report.text import DASH, load, number

COLOURS = {Verdict.AGREES: GREEN, Verdict.OFF: VERMILLION, Verdict.UNSURE: ORANGE}
SYMBOLS = {Verdict.AGREES: "circle", Verdict.OFF: "x", Verdict.UNSURE: "diamond"}
TAGS = {Verdict.AGREES: "measured", Verdict.OFF: "bad", Verdict.UNSURE: "assumed"}
"""Verdict -> the class of its tag in the page's style."""
_ROW_PX, _FRAME_PX, _LABEL_CHARS = 34, 130, 24


def render_verification(found: Verification) -> str:
    """One self-contained HTML page."""
    charts = [
        Chart(
            "chart-parity",
            "Measured over predicted",
            "On the line the prediction is right; the band of each row is its tolerance. Bars: 95% interval "
            "of the measurement.",
            _parity(found.figures),
        ),
        Chart(
            "chart-positions",
            "Drafts accepted, by position",
            "Share of the drafts of which this position, and all before it, were accepted.",
            _positions(found.positions),
        ),
    ]
    shown = [chart for chart in charts if chart.figure is not None]
    body = f"""<header><h1>Does the server do what the plan said?</h1>
<p class="quiet">{escape(f"{found.server}; {found.plan.answer.policy} at {found.load}")}</p></header>
<main>
{_answer(found)}
{_listed("What is not as planned", found.findings)}
<noscript><p>The charts need JavaScript; the table holds the same figures.</p></noscript>
<div class="charts">
{"".join(chart.section() for chart in shown)}
</div>
<h2>Figures</h2>
{_table(found.figures)}
{_under_the_causes(found)}
{_listed("Notes", found.notes)}
</main>
{_footer(found)}"""
    return document(f"{found.verdict}: {load(found.plan.question)}", body, shown)


def _answer(found: Verification) -> str:
    kind = "answer bad" if found.verdict is Verdict.OFF else "answer"
    return (
        f'<section class="{kind}"><p><strong>{escape(words(found))}</strong></p>'
        f"{_items(list(suggestions(found)))}</section>"
    )


def _listed(heading: str, lines: Sequence[str]) -> str:
    return f"<h2>{escape(heading)}</h2>{_items(lines)}" if lines else ""


def _items(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _under_the_causes(found: Verification) -> str:
    cause = found.attribution
    if not cause.causes:
        return ""
    named = " and ".join(cause.causes)
    return (
        f"<h2>The same with the measured {escape(named)}</h2>"
        '<p class="quiet">Predicted again with what was measured in place of what was planned: what agrees '
        f"here was off for that reason alone.</p>{_table(cause.figures)}"
    )


def _table(figures: Sequence[Figure]) -> str:
    heads = ("figure", "predicted", "measured", "95% interval", "difference", "tolerance", "verdict")
    return html_table(heads, [("", _cells(one)) for one in figures])


def _cells(one: Figure) -> list[str]:
    value, half, unit = one.measured.value, one.measured.half, one.kind.unit
    between = DASH if half is None else f"{number(value - half)} to {number(value + half)}"
    return [
        escape(f"{one.kind.title}, {unit}" if unit else one.kind.title),
        number(one.predicted, 4),
        number(value, 4),
        "counted" if half == 0 else between,
        f"{one.change:+.1%}" if one.predicted else f"{one.change:+.3g}",
        f"{one.tolerance:.0%}",
        f'<span class="tag {TAGS[one.verdict]}">{escape(one.words)}</span>',
    ]


def _parity(figures: Sequence[Figure]) -> go.Figure | None:
    """A row for every figure that was predicted to be above 0, the first one on top."""
    rows = [one for one in figures if one.predicted][::-1]
    if not rows:
        return None
    figure = go.Figure()
    for at, one in enumerate(rows):
        figure.add_shape(
            type="rect",
            x0=1 - one.tolerance,
            x1=1 + one.tolerance,
            y0=at - 0.3,
            y1=at + 0.3,
            fillcolor=GREY,
            opacity=0.25,
            line_width=0,
            layer="below",
        )
    figure.add_vline(x=1, line={"color": GREY, "width": 1})
    for verdict, colour in COLOURS.items():
        those = [(at, one) for at, one in enumerate(rows) if one.verdict is verdict]
        if not those:
            continue
        figure.add_scatter(
            x=[1 + one.change for _, one in those],
            y=[at for at, _ in those],
            error_x={"type": "data", "array": [one.half or 0.0 for _, one in those], "color": colour},
            mode="markers",
            name=str(verdict),
            marker={"size": 10, "color": colour, "symbol": SYMBOLS[verdict]},
            hovertext=[_hover(one) for _, one in those],
            hoverinfo="text",
        )
    figure.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=[
            "<br>".join(map(escape, wrap(one.kind.title, _LABEL_CHARS, break_on_hyphens=False)))
            for one in rows
        ],
        automargin=True,
    )
    figure.update_xaxes(title_text="measured / predicted")
    figure.update_layout(
        height=_FRAME_PX + _ROW_PX * len(rows),
        margin={"l": 8, "r": 16, "t": 44, "b": 48},
        legend=LEGEND,
    )
    return figure


def _hover(one: Figure) -> str:
    unit = f" {escape(one.kind.unit)}" if one.kind.unit else ""
    return (
        f"<b>{escape(one.kind.title)}</b><br>predicted {one.predicted:.4g}, measured "
        f"{one.measured.value:.4g}{unit} ({one.change:+.1%})"
    )


def _positions(pairs: Sequence[tuple[float, float]]) -> go.Figure | None:
    if not pairs:
        return None
    figure = go.Figure()
    names = [str(at) for at in range(1, len(pairs) + 1)]
    for series, (name, colour) in enumerate((("predicted", GREY), ("measured", BLUE))):
        figure.add_bar(x=names, y=[pair[series] for pair in pairs], name=name, marker={"color": colour})
    figure.update_xaxes(title_text="position of the draft", type="category")
    figure.update_yaxes(title_text="share accepted", range=[0, 1], tickformat=".0%")
    figure.update_layout(height=360, margin={"l": 60, "r": 16, "t": 44, "b": 48}, legend=LEGEND)
    return figure


def _footer(found: Verification) -> str:
    made_with = ", ".join(f"{name} {value}" for name, value in found.versions.items())
    return (
        f'<footer class="quiet">Measured on {escape(found.server.engine)} in {found.duration_s:.1f} s, '
        f"sent by {escape(found.generator)}; predicted by simulation of the same requests, plan "
        f"{escape(found.plan.scenario_hash)}. {escape(made_with)}.</footer>"
    )
