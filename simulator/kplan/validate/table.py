"""Published measurements as tables, and what a prediction beside each row is judged by.

A table is a YAML file in ``kplan_profiles/published``. Its ``predictor`` names the function that turns its
rows into predictions (:data:`kplan.validate.predict.PREDICTORS`); everything else is data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from kplan.profiles.schema import Entry

Value = Annotated[float, Field(allow_inf_nan=False)] | str


class Trust(StrEnum):
    """How the figures were obtained."""

    DIRECT = "direct"  # text, table or code seen
    VECTOR = "vector"  # exact coordinates of a vector figure
    PIXEL = "pixel"  # heights of bars in a picture
    SECOND_HAND = "second-hand"  # quoted by somebody else
    UNVERIFIED = "unverified"  # a lead


class Metric(StrEnum):
    """What a row's figure is."""

    TPOT_MS = "tpot_ms"
    STEP_MS = "step_ms"
    LATENCY_S = "latency_s"
    SPEEDUP = "speedup"
    SHARE = "share"
    TOKENS_PER_S = "tokens_per_s"


class Target(Entry):
    """What the table must reach; None where nothing is asked."""

    mape: Annotated[float, Field(gt=0)] | None = None
    worst: Annotated[float, Field(gt=0)] | None = None
    sign: Annotated[float, Field(gt=0, le=1)] | None = None
    regret: Annotated[float, Field(gt=0)] | None = None


class PublishedRow(Entry):
    """One measured figure.

    Attributes:
        measured: the figure, in the table's metric.
        at: what it was measured at, by name (``batch``, ``k``, ``method``, ``dataset``, ...).
        used_in_fit: a calibration or an acceptance that the prediction rests on was fitted on it.
        why_not: why the row does not count; "" when it does (a row used in a fit never counts).
    """

    measured: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    at: dict[str, Value]
    used_in_fit: bool = False
    why_not: str = ""

    @property
    def counts(self) -> bool:
        return not self.used_in_fit and not self.why_not


class PublishedTable(Entry):
    """One file.

    Attributes:
        metric: of ``measured``.
        predictor: name of the function that predicts the rows.
        settings: what all rows share, as the predictor wants it (model, hardware, workload, ...).
        best_k_by: names in ``at`` that vary inside a comparison of K; () when K is not compared.
        target: what the rows that count must reach.
        precision: how closely the figures could be read, in their own unit; the side of 1 that a speedup
            this close to it lies on is not known.
        note: how the setting was filled in where the source is silent, and other warnings.
    """

    name: str
    title: str
    source: str
    trust: Trust
    metric: Metric
    predictor: str
    settings: dict[str, Any] = Field(default_factory=dict)
    best_k_by: tuple[str, ...] = ()
    target: Target = Field(default_factory=Target)
    precision: Annotated[float, Field(ge=0)] = 0.0
    note: str = ""
    rows: Annotated[tuple[PublishedRow, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _rows_are_alike(self) -> Self:
        names = set(self.rows[0].at)
        for number, row in enumerate(self.rows, start=1):
            if set(row.at) != names:
                raise ValueError(f"row {number} is given at {sorted(row.at)}, row 1 at {sorted(names)}")
        unknown = set(self.best_k_by) - names
        if unknown:
            raise ValueError(f"best_k_by has {sorted(unknown)}, rows are given at {sorted(names)}")
        return self


@dataclass(frozen=True)
class Prediction:
    """What kplan says for one row, in the table's metric.

    Attributes:
        low, high: the band over both sources of GEMM times; equal to ``value`` when there is none.
        used_in_fit: the prediction itself was inferred from this row (acceptance from a batch-1 speedup).
        note: what had to be assumed for this row.
    """

    value: float
    low: float
    high: float
    used_in_fit: bool = False
    note: str = ""


@dataclass(frozen=True)
class JudgedRow:
    """A published row with its prediction; ``error`` is predicted / measured - 1."""

    row: PublishedRow
    prediction: Prediction

    @property
    def error(self) -> float:
        return self.prediction.value / self.row.measured - 1.0

    @property
    def used_in_fit(self) -> bool:
        return self.row.used_in_fit or self.prediction.used_in_fit

    @property
    def counts(self) -> bool:
        return self.row.counts and not self.prediction.used_in_fit


@dataclass(frozen=True)
class Judged:
    """Predictions with their figures of merit over the rows that count; None where one does not apply.

    Attributes:
        mape, worst: mean and largest absolute relative error.
        bias: mean relative error, with its sign.
        sign_ok: share of rows where predicted and measured speedup lie on the same side of 1.
        best_k_regret: how much worse the K that kplan prefers was measured to be than the best measured K,
            the largest over the comparisons.
        passed: every target reached; None when there is none.
    """

    rows: tuple[JudgedRow, ...]
    mape: float | None
    worst: float | None
    bias: float | None
    sign_ok: float | None
    best_k_regret: float | None
    passed: bool | None


@dataclass(frozen=True)
class JudgedTable(Judged):
    """One table, judged."""

    table: PublishedTable
