"""A fitted calibration beside what it was fitted on, as one HTML page that opens with the network off."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from kplan.latency.fit_figures import figures_of
from kplan.latency.fit_report import FitReport, Residuals
from kplan.report.document import Chart, document
from kplan.report.marks import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from kplan.report.tables import html_table
from kplan.report.text import DASH, number

MOST_POINTS = 1500
"""Points drawn of one source: every n-th row of a larger one."""

_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, GREY)
_SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")

Array = NDArray[np.float64]


def render_residuals(fit: FitReport) -> str:
    """Predicted against measured, errors by tokens and by context, and every coefficient with its error."""
    charts = [chart for chart in _charts(fit) if chart.figure is not None]
    calibration = fit.calibration
    notes = "".join(f"<li>{escape(note)}</li>" for note in fit.notes)
    content = f"""<header><h1>Calibration of {escape(calibration.hardware)}</h1>
<p class="quiet">{escape(calibration.summary)}</p></header>
<main>
<h2>How well it fits</h2>
{_lines(fit)}
{f"<h2>Not identified, or left out</h2><ul>{notes}</ul>" if notes else ""}
<noscript><p>The charts need JavaScript; the tables hold the coefficients and the errors.</p></noscript>
<div class="charts">
{"".join(chart.section() for chart in charts)}
</div>
<h2>Coefficients</h2>
<p class="quiet">Fitted in this run first; the others stay what the base calibration says.</p>
{_coefficients(fit)}
</main>
<footer class="quiet">Errors are predicted / measured - 1 over the rows of the fit itself: they say how well
the model describes these rows, not how well it predicts others.</footer>"""
    return document(f"calibration of {calibration.hardware}", content, charts)


def _charts(fit: FitReport) -> list[Chart]:
    found = fit.residuals
    return [
        Chart(
            "chart-predicted",
            "Predicted against measured",
            "Both in milliseconds, on logarithmic axes; on the line both agree.",
            _predicted(found),
        ),
        Chart(
            "chart-tokens",
            "Relative error by tokens",
            "Tokens of the step (batch x (K + 1) and prefill), or rows of the kernel.",
            _errors(found, "tokens", lambda one: one.tokens),
        ),
        Chart(
            "chart-context",
            "Relative error by context",
            "Mean context length in tokens, where a row has one.",
            _errors(found, "context (tokens)", lambda one: one.context),
        ),
    ]


def _predicted(found: tuple[Residuals, ...]) -> go.Figure:
    figure = go.Figure()
    for number_, one in enumerate(found):
        keep = _thinned(len(one.measured_s))
        _scatter(figure, number_, one.source, one.measured_s[keep] * 1e3, one.predicted_s[keep] * 1e3)
    measured = np.concatenate([one.measured_s for one in found]) * 1e3
    ends = [float(measured.min()), float(measured.max())]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="equal", line={"color": GREY, "width": 1.5})
    _axes(figure, "measured (ms)", "predicted (ms)")
    figure.update_layout(yaxis={"type": "log"})
    return figure


def _errors(
    found: tuple[Residuals, ...], title: str, axis: Callable[[Residuals], Array | None]
) -> go.Figure | None:
    figure = go.Figure()
    for number_, one in enumerate(found):
        at = axis(one)
        if at is not None and (at > 0).any():
            keep = _thinned(len(at))
            _scatter(figure, number_, one.source, at[keep], one.relative[keep])
    if not figure.data:
        return None
    figure.add_hline(y=0, line={"color": GREY, "width": 1.5})
    _axes(figure, title, "predicted / measured - 1")
    figure.update_layout(yaxis={"tickformat": "+.0%"})
    return figure


def _scatter(figure: go.Figure, number_: int, name: str, x: Array, y: Array) -> None:
    figure.add_scatter(
        x=x.tolist(),
        y=y.tolist(),
        mode="markers",
        name=escape(name),
        marker={
            "size": 6,
            "opacity": 0.7,
            "color": _COLOURS[number_ % len(_COLOURS)],
            "symbol": _SYMBOLS[number_ // len(_COLOURS) % len(_SYMBOLS)],
        },
    )


def _axes(figure: go.Figure, x: str, y: str) -> None:
    figure.update_layout(
        xaxis={"title": {"text": x}, "type": "log", "nticks": 6},  # more would meet on a phone
        yaxis={"title": {"text": y}},
        height=460,
        margin={"l": 70, "r": 20, "t": 20, "b": 60},
        legend={"orientation": "h", "y": -0.2},
    )


def _thinned(rows: int) -> slice:
    return slice(None, None, max(1, -(-rows // MOST_POINTS)))


def _lines(fit: FitReport) -> str:
    rows = [("", [escape(line.name), f"{line.rows:,}", f"{line.mape:.1%}"]) for line in fit.fits]
    return html_table(("source", "rows", "mean error"), rows)


def _coefficients(fit: FitReport) -> str:
    rows = []
    figures = figures_of(fit.calibration)
    for path in sorted(figures, key=lambda path: (path not in fit.paths, path)):
        figure, told = figures[path], figures[path].provenance
        relative = (
            DASH if figure.stderr is None or not figure.value else f"{figure.stderr / figure.value:.1%}"
        )
        cells = [
            f"<code>{escape(path)}</code>",
            number(figure.value, 4)
            if abs(figure.value) >= 0.01 or not figure.value
            else f"{figure.value:.4g}",
            relative,
            escape(told.kind.value),
            escape(told.source),
            escape(told.note),
        ]
        rows.append(("recommended" if path in fit.paths else "", cells))
    head = ("figure", "value", "standard error", "how known", "source", "note")
    return html_table(head, rows, wrap=True)
