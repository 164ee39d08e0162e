"""The controls of the page: a slider and a field for each number, a list for each name."""

from __future__ import annotations

import math
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from kplan.dashboard import catalog
from kplan.dashboard.state import CHOICES, KNOBS, Knob, State

_STEP = 0.02
"""Of a logarithmic slider, decades: about 5%."""
_NOTCH = 0.5
"""Decades beyond the end of a slider at which its field is empty."""
_QUESTION: dict[str, Any] = {"aria-label": "The question"}


def controls() -> Component:
    """All of them, at the default state."""
    knobs = [_knob(knob, getattr(State(), knob.name)) for knob in KNOBS]
    choices = [
        _choice(name, [{"label": one, "value": one} for one in catalog.names(name)]) for name in CHOICES
    ]
    gpus = _choice("tp", [{"label": f"{n} GPU{'s' if n > 1 else ''}", "value": n} for n in catalog.TP])
    return html.Section([*knobs, *choices, gpus], className="controls", **_QUESTION)


def _choice(name: str, options: list[dict[str, Any]]) -> Component:
    label = "tensor parallel" if name == "tp" else name
    chosen = dcc.Dropdown(
        id=name, options=options, value=getattr(State(), name), clearable=False, searchable=len(options) > 6
    )
    return html.Div([html.Label(label, htmlFor=name), chosen], className="choice")


def _knob(knob: Knob, value: float | None) -> Component:
    ends = _ends(knob)
    field = dcc.Input(
        id=knob.name, type="number", value=value, step="any", debounce=True, placeholder=knob.none,
    )  # fmt: skip
    slider = dcc.Slider(
        id=f"{knob.name}-slider",
        min=ends["min"],
        max=ends["max"],
        step=1 if knob.linear else _STEP,
        value=ends["none"] if value is None else _position(knob, value),
        marks=_marks(knob, ends),
        included=False,
        allow_direct_input=False,
    )
    label = html.Label(
        [knob.label, html.Span(f" ({knob.unit})", className="quiet")],
        htmlFor=knob.name,
        id=f"{knob.name}-label",
    )
    return html.Div(
        [html.Div([label, field], className="named"), slider, dcc.Store(id=f"{knob.name}-ends", data=ends)],
        className="knob",
    )


def _position(knob: Knob, value: float) -> float:
    return value if knob.linear else round(math.log10(value), 4)


def _ends(knob: Knob) -> dict[str, Any]:
    """Ends of the slider, and where its field is empty: below the smallest length, above the largest SLO."""
    low, high = _position(knob, knob.low), _position(knob, knob.high)
    none = None
    if knob.none:
        above = knob.name.startswith("slo")
        none = high + _NOTCH if above else low - _NOTCH
        low, high = min(low, none), max(high, none)
    return {
        "min": low, "max": high, "none": none, "linear": knob.linear, "low": knob.low, "high": knob.high,
        "whole": knob.name in ("clients", "prompt", "output", "acceptance"),
    }  # fmt: skip


def _marks(knob: Knob, ends: dict[str, Any]) -> dict[Any, str]:
    if knob.linear:
        return {value: f"{value:+d}%" if value else "0" for value in (-20, -10, 0, 10, 20)}
    decades = range(math.ceil(math.log10(knob.low)), math.floor(math.log10(knob.high)) + 1)
    marks: dict[Any, str] = {power: _short(10.0**power) for power in decades}
    if ends["none"] is not None:
        marks[ends["none"]] = {"no SLO": "none", "open loop": "open"}.get(knob.none, "own")
    return marks


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
