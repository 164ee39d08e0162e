"""What a fit is judged by: error per group, and every residual with where it was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.profiles import Calibration

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FitLine:
    """One group of rows: how many, and the mean absolute relative error over them."""

    name: str
    rows: int
    mape: float


@dataclass(frozen=True)
class Residuals:
    """(n,) seconds of one source, measured and predicted.

    Attributes:
        tokens: (n,) tokens of the step or kernel; None where rows have none (all-reduce).
        context: (n,) mean context in tokens; None where it does not matter (matrices).
    """

    source: str
    measured_s: Array
    predicted_s: Array
    tokens: Array | None = None
    context: Array | None = None

    @property
    def relative(self) -> Array:
        """(n,) predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1.0

    def line(self) -> FitLine:
        return FitLine(self.source, len(self.measured_s), float(np.mean(np.abs(self.relative))))


@dataclass(frozen=True)
class FitReport:
    """A fitted calibration with its errors.

    Attributes:
        paths: figures that this run fitted; the others are the base's.
        notes: what was not identified, or left out.
    """

    calibration: Calibration
    paths: frozenset[str]
    fits: tuple[FitLine, ...]
    residuals: tuple[Residuals, ...]
    notes: tuple[str, ...]
