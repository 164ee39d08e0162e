"""Acceptance as figures: what remains when a source keeps neither the order of the steps nor their places.

Three kinds, told apart everywhere, because the same digits mean other things:

- ``marginal``: value d is P(drafts 1..d all accepted); vLLM's per-position metric over its drafts.
- ``conditional``: value d is P(draft d accepted | drafts 1..d-1 accepted).
- ``histogram``: value j (0..K) is the number of steps that accepted exactly j drafts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kplan.acceptance.trace import MAX_K
from kplan.config.record import Record
from kplan.errors import InputError
from kplan.files import write_text
from kplan.formats import FIGURES
from kplan.plainjson import read_record
from kplan.provenance import Kind, Provenance, versions

_SLACK = 1e-9
_ROUNDED = 0.01
"""How far published shares may be rounded: their sum times the steps is compared with a count."""


class FiguresKind(StrEnum):
    """What the values of a record mean, see the module's text."""

    MARGINAL = "marginal"
    CONDITIONAL = "conditional"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class AcceptanceFigures:
    """Acceptance of one proposer over the steps that verified a draft.

    Attributes:
        proposer: its name.
        kind: what ``values`` mean.
        recorded_k: most drafts a step verified, 1..254.
        values: (K,) shares 0..1, or (K + 1,) counts of a histogram.
        steps: steps with a draft that they rest on; None when the source does not say.
        requests: requests that they rest on; None when the source does not say.
        drafted: drafts verified in all; None when the source does not say. Fewer than steps x K means that
            some steps verified fewer than K: shares at the deeper drafts are then lower bounds.
        provenance: where they come from.
        notes: what the source could not know.

    Raises:
        InputError: a value out of range, marginal shares that rise with depth, the wrong number of values,
            counts that contradict the values.
    """

    proposer: str
    kind: FiguresKind
    recorded_k: int
    values: tuple[float, ...]
    steps: int | None
    requests: int | None
    drafted: int | None
    provenance: Provenance
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.recorded_k <= MAX_K:
            raise InputError("recorded K", self.recorded_k, f"1..{MAX_K} is accepted")
        counts = self.kind is FiguresKind.HISTOGRAM
        needed = self.recorded_k + (1 if counts else 0)
        if len(self.values) != needed:
            bound = f"K = {self.recorded_k} needs {needed}"
            raise InputError(f"{self.kind} values", f"{len(self.values)} values", bound)
        for i, value in enumerate(self.values):
            where = f"{self.kind} values[{i}]"
            if counts and not (np.isfinite(value) and value >= 0 and value == int(value)):
                raise InputError(where, value, "a count of steps is needed")
            if not counts and not 0.0 <= value <= 1.0:
                fix = "divide percents by 100" if 1.0 < value <= 100.0 else ""
                raise InputError(where, value, "a share in 0..1 is needed", fix)
            if self.kind is FiguresKind.MARGINAL and i and value > self.values[i - 1] + _SLACK:
                bound = f"at most the {self.values[i - 1]:g} before it"
                raise InputError(where, value, bound, "are these conditional shares?")
        if counts and sum(self.values) == 0:
            raise InputError("histogram values", "no step", "at least one step with a draft is needed")
        if counts and self.steps is not None and self.steps != sum(self.values):
            raise InputError("steps", self.steps, f"the histogram holds {sum(self.values):g}")
        if self.steps is not None and self.drafted is not None:
            accepted = self.steps * (self.acceptance_length - 1)
            if not accepted * (1 - _ROUNDED) <= self.drafted <= self.steps * self.recorded_k:
                bound = f"{self.steps} steps of K = {self.recorded_k} that accepted {accepted:.6g} verify "
                bound += f"{accepted:.6g}..{self.steps * self.recorded_k}"
                raise InputError("drafted", self.drafted, bound, "take all figures from one run")

    @property
    def every_step_full(self) -> bool | None:
        """Whether every step verified K drafts; None when the source does not say."""
        if self.steps is None or self.drafted is None:
            return None
        return self.drafted == self.steps * self.recorded_k

    @property
    def marginal(self) -> NDArray[np.float64]:
        """(K,) P(drafts 1..d all accepted) over the steps with a draft, whatever the kind."""
        values = np.array(self.values, np.float64)
        if self.kind is FiguresKind.MARGINAL:
            return values
        if self.kind is FiguresKind.CONDITIONAL:
            return np.asarray(np.cumprod(values), np.float64)
        return np.asarray(values[::-1].cumsum()[::-1][1:] / values.sum(), np.float64)

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step with a draft, bonus included: 1 + the sum of the marginal shares."""
        return 1.0 + float(self.marginal.sum())


class _Record(Record):
    schema_version: int
    proposer: str
    kind: FiguresKind
    recorded_k: int
    values: tuple[float, ...]
    steps: int | None = Field(None, ge=0)
    requests: int | None = Field(None, ge=0)
    drafted: int | None = Field(None, ge=0)
    how: Kind
    source: str
    note: str = ""
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)


def save_figures(figures: AcceptanceFigures, path: Path) -> None:
    """Write ``figures`` as JSON, atomically. Raises InputError when the folder cannot be written."""
    record = _Record(
        schema_version=FIGURES.version,
        proposer=figures.proposer,
        kind=figures.kind,
        recorded_k=figures.recorded_k,
        values=figures.values,
        steps=figures.steps,
        requests=figures.requests,
        drafted=figures.drafted,
        how=figures.provenance.kind,
        source=figures.provenance.source,
        note=figures.provenance.note,
        notes=figures.notes,
        versions=versions(),
    )
    write_text(json.dumps(record.model_dump(mode="json"), indent=1) + "\n", path)


def load_figures(path: Path) -> AcceptanceFigures:
    """Read a file of :func:`save_figures`.

    Raises:
        InputError: one line: unreadable, no JSON, a missing or unknown key (``kind`` above all: shares that
            do not say what they are), or values that the class refuses.
    """
    record = read_record(path, _Record, FIGURES)
    return AcceptanceFigures(
        proposer=record.proposer,
        kind=record.kind,
        recorded_k=record.recorded_k,
        values=record.values,
        steps=record.steps,
        requests=record.requests,
        drafted=record.drafted,
        provenance=Provenance(record.how, record.source, record.note),
        notes=record.notes,
    )
