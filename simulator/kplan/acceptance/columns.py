"""Ragged uint8 columns: checked, clipped at the output's end, and packed into a :class:`ProposerTrace`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.trace import MAX_K, ProposerTrace, TraceSet
from kplan.errors import InputError


@dataclass(frozen=True)
class Row:
    """Where a value stands, for the one line an error has: ``file, row, column``."""

    file: str
    row: int

    def at(self, column: str, index: int | None = None) -> str:
        where = column if index is None else f"{column}[{index}]"
        return f"{self.file}, row {self.row}, column {where}"


def integers(values: object, where: Row, column: str, low: int, high: int) -> NDArray[np.int64]:
    """A (len,) int64 array out of a list or array; every element is an integer in low..high.

    Raises:
        InputError: not a list, empty, or an element that is not such an integer (the first one is named).
    """
    if not isinstance(values, (list, tuple, np.ndarray)):
        raise InputError(where.at(column), type(values).__name__, "a list of integers is needed")
    if len(values) == 0:
        raise InputError(where.at(column), "an empty list", "at least one value is needed", "drop the row")
    if isinstance(values, np.ndarray):
        plain = values.dtype.kind in "iu" and values.ndim == 1
    else:
        plain = set(map(type, values)) == {int}  # numpy would take True for 1, and 1.0 for a list of floats
    if not plain:
        index = next((i for i, v in enumerate(values) if not _is_integer(v)), 0)
        raise InputError(
            where.at(column, index), str(values[index])[:60], f"an integer in {low}..{high} is needed"
        )
    try:
        array = np.asarray(values)
        outside = (array < low) | (array > high)
    except (OverflowError, TypeError):  # integers of more than 64 bits
        outside = np.array([not low <= int(v) <= high for v in values])
    if outside.any():
        index = int(np.argmax(outside))
        raise InputError(where.at(column, index), int(array[index]), f"an integer in {low}..{high} is needed")
    return array.astype(np.int64)


def acceptance(values: object, where: Row, column: str, recorded_k: int) -> NDArray[np.int64]:
    """Acceptance of one request: integers 1..recorded_k + 1, the first of which (the prefill) is 1."""
    acc = integers(values, where, column, 1, recorded_k + 1)
    if acc[0] != 1:
        raise InputError(
            where.at(column, 0),
            int(acc[0]),
            "position 0 is the prefill and emits 1",
            "shift the array by one",
        )
    return acc


MOST_ID_BYTES = 2**29
"""Of the names of requests: an array of texts takes the longest one's length for each."""


def request_names(names: Sequence[str], file: str) -> NDArray[np.str_]:
    """(n,) names of requests. Raises InputError for one so long that all of them together do not fit."""
    longest = max(range(len(names)), key=lambda row: len(names[row]), default=0)
    if names and len(names) * 4 * max(len(names[longest]), 1) > MOST_ID_BYTES:
        bound = f"{MOST_ID_BYTES // (4 * len(names)):,} characters each fit for {len(names):,} requests"
        raise InputError(Row(file, longest + 1).at("request_id"), names[longest][:40], bound, "shorten it")
    return np.array(names, dtype=np.str_)


class TraceBuilder:
    """Collects the rows of one proposer. Rows are clipped at the end of their output, and that is counted."""

    def __init__(self, recorded_k: int, *, has_drafted: bool, has_seen: bool = False) -> None:
        if not 1 <= recorded_k <= MAX_K:
            raise InputError("recorded K", recorded_k, f"1..{MAX_K} is accepted (uint8)")
        self.recorded_k = recorded_k
        self.has_drafted = has_drafted
        self.has_seen = has_seen
        self.clipped_positions = 0
        self._acc: list[NDArray[np.uint8]] = []
        self._drafted: list[NDArray[np.uint8]] = []
        self._seen: list[NDArray[np.uint8]] = []
        self._aligned: list[bool] = []

    def add(
        self,
        acc: NDArray[np.int64],
        drafted: NDArray[np.int64] | NDArray[np.uint8] | None = None,
        seen: NDArray[np.int64] | None = None,
        *,
        aligned: bool,
    ) -> None:
        """Append a request whose output has ``len(acc)`` tokens; ``drafted`` and ``seen``, if any, are as
        long."""
        left = np.arange(len(acc), 0, -1)
        clipped = np.minimum(acc, left)
        self.clipped_positions += int(np.count_nonzero(clipped < acc))
        self._acc.append(clipped.astype(np.uint8))
        if drafted is not None:
            # What was emitted was drafted: a disagreement of the two arrays is settled for the recording.
            self._drafted.append(np.maximum(drafted, clipped - 1).astype(np.uint8))
        if seen is not None:
            self._seen.append(seen.astype(np.uint8))
        self._aligned.append(aligned)

    def build(self) -> ProposerTrace:
        """Pack the rows; at least one was added."""
        return pack(
            self._acc,
            self._drafted if self.has_drafted else None,
            np.array(self._aligned, np.bool_),
            self.recorded_k,
            self._seen if self.has_seen else None,
        )

    @property
    def unaligned_rows(self) -> int:
        return len(self._aligned) - sum(self._aligned)


def pack(
    acc: Sequence[NDArray[np.uint8]],
    drafted: Sequence[NDArray[np.uint8]] | None,
    aligned: NDArray[np.bool_],
    recorded_k: int,
    seen: Sequence[NDArray[np.uint8]] | None = None,
) -> ProposerTrace:
    """Concatenate per-request arrays (at least one request)."""
    lengths = np.array([len(a) for a in acc], np.int64)
    return ProposerTrace(
        output_len=lengths.astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        acc=np.concatenate(acc),
        drafted=None if drafted is None else np.concatenate(drafted),
        aligned=aligned,
        recorded_k=recorded_k,
        seen=None if seen is None else np.concatenate(seen),
    )


def select(trace: ProposerTrace, rows: NDArray[np.int64]) -> ProposerTrace:
    """The trace of some requests, in the order given."""
    pieces = [slice(int(trace.offsets[r]), int(trace.offsets[r + 1])) for r in rows]
    return pack(
        [trace.acc[p] for p in pieces],
        None if trace.drafted is None else [trace.drafted[p] for p in pieces],
        trace.aligned[rows],
        trace.recorded_k,
        None if trace.seen is None else [trace.seen[p] for p in pieces],
    )


def select_set(traces: TraceSet, rows: NDArray[np.int64]) -> TraceSet:
    """Some requests of a set, in the order given; aliases stay aliases."""
    done: dict[int, ProposerTrace] = {}
    for trace in traces.proposers.values():
        if id(trace) not in done:
            done[id(trace)] = select(trace, rows)
    return replace(
        traces,
        request_id=traces.request_id[rows],
        prompt_len=traces.prompt_len[rows],
        proposers={name: done[id(trace)] for name, trace in traces.proposers.items()},
        loopy=None if traces.loopy is None else traces.loopy[rows],
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
