"""Batch tables as an engine reads them: ranges that start at 1, touch, and end inside max_num_seqs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.config.plan import BatchRange
from kplan.errors import InputError


@dataclass(frozen=True)
class KRange:
    """Batch sizes ``start..end``, both included, draft ``k`` tokens per request."""

    start: int
    end: int
    k: int


def check_table(table: Sequence[BatchRange], max_num_seqs: int, max_k: int) -> tuple[KRange, ...]:
    """The ranges that batches 1..max_num_seqs can reach, in order, closed at max_num_seqs.

    A table that stops short keeps its last K above it, as vLLM does. vLLM would also carry a K over a gap; a
    gap is refused here, because whoever leaves one may mean either neighbour.

    Raises:
        InputError: no range, first start not 1, a gap, an overlap, a reversed range, an open end before the
            last range, or K outside [0, max_k].
    """
    if not table:
        raise InputError("batch table", "no range", "needs at least one", "write 1-=0 for no speculation")
    ranges = sorted(table, key=lambda r: r.start)
    next_start = 1
    for entry in ranges:
        if entry.start != next_start:
            raise InputError(
                "batch table", show(entry), f"must start at {next_start}", _fix(entry, next_start)
            )
        if not 0 <= entry.k <= max_k:
            raise InputError("batch table", show(entry), f"K must be 0..{max_k}", "plan with a larger max_k")
        if entry.end is None:
            if entry is not ranges[-1]:
                raise InputError(
                    "batch table", show(entry), "only the last range may be open", "give it an end"
                )
        elif entry.end < entry.start:
            raise InputError("batch table", show(entry), "ends before it starts", "swap the two")
        else:
            next_start = entry.end + 1
    reached = [r for r in ranges if r.start <= max_num_seqs]
    ends = [r.start - 1 for r in reached[1:]] + [max_num_seqs]
    return tuple(KRange(r.start, end, r.k) for r, end in zip(reached, ends, strict=True))


def lookup(ranges: Sequence[KRange]) -> NDArray[np.int64]:
    """(last end + 1,) K by batch size of ranges that touch; entry 0 is unused."""
    widths = [r.end - r.start + 1 for r in ranges]
    return np.concatenate([[0], np.repeat([r.k for r in ranges], widths)]).astype(np.int64)


def compress(k_by_batch: NDArray[np.int64]) -> tuple[KRange, ...]:
    """Ranges of equal K of a ``(max_batch + 1,)`` lookup whose entry 0 is unused."""
    ks = np.asarray(k_by_batch)[1:]
    starts = np.flatnonzero(np.r_[True, ks[1:] != ks[:-1]])
    ends = np.r_[starts[1:], len(ks)]
    return tuple(
        KRange(int(start) + 1, int(end), int(ks[start])) for start, end in zip(starts, ends, strict=True)
    )


def show(entry: BatchRange | KRange) -> str:
    """``1-64=3``, the way a policy text writes a range."""
    return f"{entry.start}-{'' if entry.end is None else entry.end}={entry.k}"


def table_text(ranges: tuple[KRange, ...]) -> str:
    """The policy of a table that holds from batch 1 on; of one K it is ``fixed``."""
    if len(ranges) == 1 and ranges[0].k > 0:
        return f"fixed:{ranges[0].k}"
    shown = [*map(show, ranges[:-1]), f"{ranges[-1].start}-={ranges[-1].k}"]
    return f"table:{','.join(shown)}"


def _fix(entry: BatchRange, next_start: int) -> str:
    if entry.start > next_start:
        return f"add a range for batch sizes {next_start}..{entry.start - 1}"
    return "make the ranges start at 1 and not overlap"
