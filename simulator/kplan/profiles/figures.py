"""Helpers over :class:`kplan.provenance.Figure`, the number that remembers where it comes from."""

from __future__ import annotations

from dataclasses import replace

from kplan.provenance import Figure


def scaled(figure: Figure, factor: float) -> Figure:
    """The figure times ``factor``, its standard error with it."""
    stderr = None if figure.stderr is None else figure.stderr * factor
    return replace(figure, value=figure.value * factor, stderr=stderr)
