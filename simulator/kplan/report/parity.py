"""Predicted against measured, every row of every table, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from kplan.provenance import versions
from kplan.report.document import Chart, document
from kplan.report.marks import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, log_axis
from kplan.report.tables import html_table
from kplan.validate.table import JudgedRow, JudgedTable, Metric

COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
"""Five by six: that many tables of one metric are told apart, neighbours without colour too."""
NEAR = 0.1
"""Half width of the marked corridor around perfect agreement."""
UNITS = {
    Metric.TPOT_MS: ("Time per output token", "ms"),
    Metric.STEP_MS: ("Time of a step", "ms"),
    Metric.LATENCY_S: ("Latency of a request", "s"),
    Metric.SPEEDUP: ("Speedup over no speculation", "times"),
    Metric.SHARE: ("Share of a step's time", "of 1"),
    Metric.TOKENS_PER_S: ("Output tokens per second", "tokens/s"),
}
_FRAME_PX, _LEGEND_ROW_PX = 520, 22
_SPAN = 5
"""Figures that lie closer together than this factor need more ticks than 1, 2 and 5."""


def render_parity(judged: Sequence[JudgedTable]) -> str:
    """One self-contained HTML page: a plot per metric, and the figures of merit of every table."""
    charts = [_chart(metric, judged) for metric in Metric if any(t.table.metric is metric for t in judged)]
    figures = sum(len(one.rows) for one in judged)
    made_with = ", ".join(f"{name} {value}" for name, value in versions().items())
    tables = "1 table" if len(judged) == 1 else f"{len(judged)} tables"
    body = f"""<header><h1>Predicted beside measured</h1>
<p class="quiet">{figures:,} published figures in {tables}</p></header>
<main>
<noscript><p>The charts need JavaScript; the table holds the figures of merit.</p></noscript>
<div class="charts">
{"".join(chart.section() for chart in charts)}
</div>
{_summary(judged)}
</main>
<footer class="quiet">{escape(made_with)}.</footer>"""
    return document("predicted beside measured", body, charts)


def _chart(metric: Metric, judged: Sequence[JudgedTable]) -> Chart:
    name, unit = UNITS[metric]
    tables = [one for one in judged if one.table.metric is metric]
    return Chart(
        f"parity-{metric.value.replace('_', '-')}",
        name,
        "On the line the prediction is right; the dotted lines are 10% off. Hollow: used in a fit. "
        "Bars: the band between both sources of GEMM times.",
        _figure(tables, unit),
    )


def _figure(tables: Sequence[JudgedTable], unit: str) -> go.Figure:
    figure = go.Figure()
    rows = [row for one in tables for row in one.rows]
    ends = [f(r.row.measured for r in rows) for f in (min, max)]
    for factor, dash in ((1.0, "solid"), (1 - NEAR, "dot"), (1 + NEAR, "dot")):
        figure.add_scatter(
            x=ends,
            y=[factor * end for end in ends],
            mode="lines",
            line={"color": GREY, "width": 1, "dash": dash},
            hoverinfo="skip",
            showlegend=False,
        )
    for number, one in enumerate(tables):
        style = COLOURS[number % len(COLOURS)], SYMBOLS[number % len(SYMBOLS)]
        _points(figure, one, style, unit)
    axis = log_axis() if ends[1] > _SPAN * ends[0] else {"type": "log"}
    figure.update_xaxes(**axis, title_text=f"measured ({unit})")
    figure.update_yaxes(**axis, title_text=f"predicted ({unit})")
    legend_px = _LEGEND_ROW_PX * len(tables)
    figure.update_layout(
        height=_FRAME_PX + legend_px,
        margin={"l": 70, "r": 20, "t": 20, "b": 60 + legend_px},
        legend={"x": 0, "y": -0.14, "xanchor": "left", "yanchor": "top"},
    )
    return figure


def _points(figure: go.Figure, judged: JudgedTable, style: tuple[str, str], unit: str) -> None:
    colour, symbol = style
    said = [row.prediction for row in judged.rows]
    figure.add_scatter(
        x=[row.row.measured for row in judged.rows],
        y=[one.value for one in said],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.value for one in said],
            "arrayminus": [one.value - one.low for one in said],
            "thickness": 1,
            "width": 0,
            "color": colour,
        },
        mode="markers",
        name=judged.table.name,
        marker={
            "size": 8,
            "color": colour,
            "symbol": [f"{symbol}-open" if row.used_in_fit else symbol for row in judged.rows],
        },
        hovertext=[_hover(judged, row, unit) for row in judged.rows],
        hoverinfo="text",
    )


def _hover(judged: JudgedTable, row: JudgedRow, unit: str) -> str:
    at = ", ".join(
        f"{name} {value if isinstance(value, str) else f'{value:g}'}" for name, value in row.row.at.items()
    )
    lines = [
        f"<b>{escape(judged.table.name)}</b>",
        escape(at),
        f"predicted {row.prediction.value:.4g}, measured {row.row.measured:.4g} {unit} ({row.error:+.1%})",
    ]
    why = row.row.why_not or row.prediction.note
    return "<br>".join([*lines, escape(why)] if why else lines)


def _summary(judged: Sequence[JudgedTable]) -> str:
    heads = (
        "table",
        "rows",
        "counted",
        "MAPE",
        "worst",
        "bias",
        "sign right",
        "best-K regret",
        "target reached",
        "what was measured, and by whom",
    )
    return html_table(heads, [("", _cells(one)) for one in judged], wrap=True)


def _cells(judged: JudgedTable) -> list[str]:
    table = judged.table
    return [
        escape(table.name),
        str(len(judged.rows)),
        str(sum(row.counts for row in judged.rows)),
        _percent(judged.mape),
        _percent(judged.worst),
        _percent(judged.bias, "+"),
        _percent(judged.sign_ok),
        _percent(judged.best_k_regret),
        {True: "yes", False: "no", None: ""}[judged.passed],
        f"{escape(table.title)}. {escape(table.source)}",
    ]


def _percent(share: float | None, sign: str = "") -> str:
    return "" if share is None else f"{share:{sign}.1%}"
