"""Colours, signs and axes that the charts share; those of text and grid come from the page's theme."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale, unlabel_rgb

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, GREY = "#56B4E9", "#CC79A7", "#8A8F98"
"""Okabe-Ito colours that show on white and on black, and a grey that does too."""

LEGEND = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "y": 1.0,
    "yanchor": "bottom",
    "traceorder": "normal",
}
_OTHERS = ((ORANGE, "dash", "square"), (GREEN, "dashdot", "triangle-up"), (VERMILLION, "longdash", "x"))
_VIRIDIS = ("#FDE725", "#B5DE2B", "#6ECE58", "#35B779", "#1F9E89", "#26828E", "#31688E", "#3E4989")
_MIDDLE_LUMINANCE = 0.179
"""Black and white contrast with it by as much."""
TICKS = [step * 10**power for power in range(-3, 8) for step in (1, 2, 5)]
"""At 1, 2, 5 of every decade: a log axis of one decade would show two of its own."""


def line_styles(policies: Sequence[str], chosen: str) -> dict[str, dict[str, Any]]:
    """A line and a marker for each policy that are told apart without colour: no speculation grey and dotted,
    the recommended one blue, whole and thicker."""
    others = iter(_OTHERS * len(policies))
    styles = {}
    for name in policies:
        if name == chosen:
            colour, dash, symbol, width = BLUE, "solid", "diamond", 3.0
        elif name == "off":
            colour, dash, symbol, width = GREY, "dot", "circle", 2.0
        else:
            (colour, dash, symbol), width = next(others), 2.0
        styles[name] = {
            "line": {"color": colour, "dash": dash, "width": width},
            "marker": {"color": colour, "symbol": symbol, "size": 8 if name != chosen else 10},
        }
    return styles


def log_axis() -> dict[str, Any]:
    """Settings of an axis by decades."""
    return {
        "type": "log",
        "tickvals": TICKS,
        "ticktext": [f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}" for tick in TICKS],
        "automargin": True,
    }


def shade(k: int, largest: int) -> str:
    """A colour of the viridis scale (made for colour-blind readers), light for small K."""
    return str(sample_colorscale(list(_VIRIDIS), [k / max(largest, 1)])[0])


def ink_on(colour: str) -> str:
    """Black or white: the one that reads better on ``rgb(r, g, b)`` (contrast of WCAG 2.2, at least 4.5)."""
    linear = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (one / 255 for one in unlabel_rgb(colour))
    )
    luminance = sum(map(mul, (0.2126, 0.7152, 0.0722), linear))
    return "#000000" if luminance > _MIDDLE_LUMINANCE else "#FFFFFF"


def error_bar(
    means: Sequence[float], intervals: Sequence[tuple[float, float] | None], colour: str
) -> dict[str, Any]:
    """Bars from the mean to the ends of its interval, none where there is none."""
    pairs = list(zip(means, intervals, strict=True))
    return {
        "type": "data",
        "symmetric": False,
        "array": [ends[1] - mean if ends else 0 for mean, ends in pairs],
        "arrayminus": [mean - ends[0] if ends else 0 for mean, ends in pairs],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def set_rows(figure: go.Figure, names: Sequence[str], unit: str) -> None:
    """Horizontal rows, first policy on top, labels as wide as they need to be."""
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(names), autorange="reversed",
        automargin=True, ticksuffix=" ", range=None,
    )  # fmt: skip
    figure.update_xaxes(title={"text": unit, "standoff": 8}, rangemode="tozero", automargin=True)
    figure.update_layout(
        height=max(_LEAST_PX, _FRAME_PX + _ROW_PX * len(names)),
        legend=LEGEND,
        margin={"l": 8, "r": 16, "t": 44, "b": 48},
    )


_ROW_PX, _FRAME_PX, _LEAST_PX = 27, 120, 240
