"""Trace models as JSON files: the pydantic edge of :class:`kplan.acceptance.model.TraceModel`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kplan.acceptance import cells
from kplan.acceptance.model import Lookup, TraceModel
from kplan.config.record import Record
from kplan.files import write_text
from kplan.formats import KEY, TRACE_MODEL
from kplan.plainjson import TextFile, read_record
from kplan.provenance import Kind, Provenance, versions

DIGITS = 4
"""Significant digits kept; a hazard's fitted error is larger."""

_BY_DEPTH = ("confirmed", "failed", "unseen", "new")

Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Chances = tuple[Chance, ...]


class _Source(Record):
    kind: Kind
    source: str
    note: str = ""


class _State(Record):
    """Hazards of one (class, regime); ``match`` is None and ``first`` has one column for a head."""

    match: tuple[Chances, Chances] | None
    first: tuple[Chances, ...]
    confirmed: Chances
    failed: Chances
    unseen: Chances
    new: Chances
    tail: Chance


class _Lookup(Record):
    new_offer: tuple[Chances, Chances]
    grow: tuple[Chance, Chance]


class _ModelFile(Record):
    schema_version: int
    proposer: str
    provenance: _Source
    facts: dict[str, Any]
    recorded_k: Annotated[int, Field(ge=1, le=cells.DEPTHS)]
    known_k: Annotated[int, Field(ge=1, le=cells.DEPTHS)]
    length_edges: tuple[float, ...]
    class_by_length: tuple[Chances, ...]
    regime_start: tuple[Chances, ...]
    regime_switch: tuple[tuple[Chances, ...], ...]
    lookup: _Lookup | None
    states: tuple[_State, ...]
    versions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _shapes_agree(self) -> _ModelFile:
        classes, regimes = len(self.regime_start), len(self.regime_start[0]) if self.regime_start else 0
        if self.known_k > self.recorded_k:
            raise ValueError(f"known_k {self.known_k} is above recorded_k {self.recorded_k}")
        if classes * regimes == 0 or len(self.states) != classes * regimes:
            raise ValueError(f"{len(self.states)} states do not make {classes} classes x {regimes} regimes")
        if len(self.class_by_length) != len(self.length_edges) + 1:
            raise ValueError("class_by_length needs one row more than length_edges has values")
        rows = [*((r, classes) for r in self.class_by_length), *((r, regimes) for r in self.regime_start)]
        rows += [(r, regimes) for block in self.regime_switch for r in block]
        if self.lookup is not None:
            rows += [(r, cells.DEPTHS + 1) for r in self.lookup.new_offer]
        if len(self.regime_switch) != classes or any(len(b) != regimes for b in self.regime_switch):
            raise ValueError(f"regime_switch must be {classes} x {regimes} x {regimes}")
        for row, size in rows:
            if len(row) != size or abs(sum(row) - 1.0) > 0.01:
                raise ValueError(
                    f"a row of {len(row)} chances that sum to {sum(row):.3f}; {size} and 1 are needed"
                )
        columns = 1 if self.lookup is None else cells.OFFERS
        for state in self.states:
            depths = (state.confirmed, state.failed, state.unseen, state.new)
            if any(len(d) != cells.DEPTHS for d in depths):
                raise ValueError(f"hazards by depth need {cells.DEPTHS} values")
            if len(state.first) != cells.AGES or any(len(row) != columns for row in state.first):
                raise ValueError(f"first needs {cells.AGES} rows of {columns}")
            if (state.match is None) != (self.lookup is None) or (
                state.match is not None and any(len(m) != cells.AGES + 1 for m in state.match)
            ):
                raise ValueError(f"match needs 2 rows of {cells.AGES + 1} with a lookup, and null without")
        return self


def to_json(model: TraceModel) -> str:
    """The model as JSON text, one line per state."""
    record = {
        KEY: TRACE_MODEL.version,
        "proposer": model.proposer,
        "provenance": {
            "kind": str(model.provenance.kind),
            "source": model.provenance.source,
            "note": model.provenance.note,
        },
        "versions": versions(),
        "facts": dict(model.facts),
        "recorded_k": model.recorded_k,
        "known_k": model.known_k,
        "length_edges": _rounded(model.length_edges),
        "class_by_length": _rounded(model.class_by_length),
        "regime_start": _rounded(model.regime_start),
        "regime_switch": _rounded(model.regime_switch),
        "lookup": None
        if model.lookup is None
        else {"new_offer": _rounded(model.lookup.new_offer), "grow": _rounded(model.lookup.grow)},
    }
    head = json.dumps(record, indent=1, allow_nan=False)
    states = ",\n  ".join(json.dumps(_state(model, h), allow_nan=False) for h in model.hazard)
    return f'{head[:-2]},\n "states": [\n  {states}\n ]\n}}\n'


def save_model(model: TraceModel, path: Path) -> None:
    """Write the model as JSON, atomically."""
    write_text(to_json(model), path)


def load_model(file: TextFile) -> TraceModel:
    """Read a model file.

    Raises:
        InputError: not there, not JSON, another schema version, or a value out of its bounds.
    """
    entry = read_record(file, _ModelFile, TRACE_MODEL)
    return TraceModel(
        proposer=entry.proposer,
        recorded_k=entry.recorded_k,
        known_k=entry.known_k,
        length_edges=np.array(entry.length_edges, np.float64),
        class_by_length=_normal(entry.class_by_length),
        regime_start=_normal(entry.regime_start),
        regime_switch=_normal(entry.regime_switch),
        hazard=np.stack([_hazard(state, entry.recorded_k) for state in entry.states]),
        lookup=None
        if entry.lookup is None
        else Lookup(_normal(entry.lookup.new_offer), np.array(entry.lookup.grow, np.float64)),
        provenance=Provenance(entry.provenance.kind, entry.provenance.source, entry.provenance.note),
        facts=entry.facts,
    )


def _state(model: TraceModel, hazard: NDArray[np.float64]) -> dict[str, Any]:
    first = hazard[cells.FIRST : cells.CONFIRMED].reshape(cells.AGES, cells.OFFERS)
    match = hazard[: cells.FIRST].reshape(2, cells.AGES + 1)
    column = cells.offer_bin(model.recorded_k)
    depths = hazard[cells.CONFIRMED : cells.TAIL].reshape(4, cells.DEPTHS)
    return {
        "match": None if model.lookup is None else _rounded(match),
        "first": _rounded(first if model.lookup is not None else first[:, column : column + 1]),
        **{
            name: _rounded(row)
            for name, row in zip(("confirmed", "failed", "unseen", "new"), depths, strict=True)
        },
        "tail": _rounded(hazard[cells.TAIL :])[0],
    }


def _hazard(state: _State, recorded_k: int) -> NDArray[np.float64]:
    hazard = np.ones(cells.CELLS)
    if state.match is not None:
        hazard[: cells.FIRST] = np.ravel(state.match)
    first = np.zeros((cells.AGES, cells.OFFERS))
    if state.match is not None:
        first[:] = state.first
    else:
        first[:, cells.offer_bin(recorded_k)] = np.ravel(state.first)
    hazard[cells.FIRST : cells.CONFIRMED] = first.ravel()
    hazard[cells.CONFIRMED : cells.TAIL] = np.ravel([state.confirmed, state.failed, state.unseen, state.new])
    hazard[cells.TAIL] = state.tail
    return hazard


def _normal(rows: object) -> NDArray[np.float64]:
    """Chances closed to a sum of 1 after rounding."""
    array = np.asarray(rows, np.float64)
    return np.asarray(array / array.sum(axis=-1, keepdims=True), np.float64)


def _rounded(values: NDArray[np.float64]) -> list[Any]:
    return [_rounded(v) if np.ndim(v) else float(f"{v:.{DIGITS}g}") for v in values]
