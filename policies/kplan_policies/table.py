"""Policies that choose K from the batch size alone: off, fixed K, and vLLM's batch table."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kplan.policy import PolicyInfo, StepView
from kplan.space import IntRange, Limits, SearchSpace, Value, tier_range
from kplan_policies._text import checked_int, checked_k

BatchRange = tuple[int, int | None, int]
"""(first batch size, last batch size or None for no end, K)."""

_LADDER = (1, 9, 17, 33, 65, 97, 129, 193, 257, 385, 513, 769)
"""First batch sizes of the tiers that a search gives a K each; those of the greedy table are added."""
_TIER = "k_from_"

_RANGE = re.compile(r"\s*(\d+)\s*(-\s*(\d+)?\s*)?=\s*(-?\d+)\s*")


class Off:
    """No speculation at all: no drafter is loaded and no draft is proposed."""

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="no speculation",
        source="plain autoregressive decoding",
        engines=("vllm", "sglang"),
    )
    text = "off"

    def choose_k(self, step: StepView) -> int:  # noqa: ARG002 - the interface's signature
        """Return 0."""
        return 0

    def table(self, max_batch: int) -> NDArray[np.int64]:
        """(max_batch + 1,) zeros."""
        return np.zeros(max_batch + 1, np.int64)


class Fixed:
    """The same K for every step, as ``num_speculative_tokens`` does.

    Raises:
        ValueError: K is not an integer 0..254.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="the same K at every step: fixed:3",
        source="vLLM num_speculative_tokens, SGLang --speculative-num-steps with topk 1",
        engines=("vllm", "sglang"),
    )

    def __init__(self, k: Annotated[int, IntRange(0, 15)]) -> None:
        self.k = checked_k(k)

    @classmethod
    def search_space(cls, limits: Limits) -> SearchSpace:
        """K from 0 to the largest, the greedy table's own at batch 1 first."""
        return SearchSpace({"k": IntRange(0, limits.max_k)}, {"k": limits.greedy[0][1]})

    @classmethod
    def from_params(cls, params: Mapping[str, Value]) -> dict[str, Any]:
        """Constructor arguments: the one parameter is the constructor's."""
        return dict(params)

    @property
    def text(self) -> str:
        """``fixed:K``."""
        return f"fixed:{self.k}"

    def choose_k(self, step: StepView) -> int:  # noqa: ARG002 - the interface's signature
        """Return K."""
        return self.k

    def table(self, max_batch: int) -> NDArray[np.int64]:
        """(max_batch + 1,) the same K."""
        return np.full(max_batch + 1, self.k, np.int64)


class BatchTable:
    """vLLM's ``num_speculative_tokens_per_batch_size``: K by the number of requests in the step.

    The rules are vLLM's: ranges may come in any order, the first must start at 1, none may overlap, K may be
    0 and need not fall with the batch, and batch sizes in a gap or past the last range keep the previous K.

    Args:
        ranges: (start, end, K) with both ends included; end None means no end.

    Raises:
        ValueError: empty, a start below 1, a reversed range, an overlap, a K outside 0..254.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="K by batch size: table:1-64=3,65-128=1,129-=0",
        source="vLLM 0.32.0 num_speculative_tokens_per_batch_size (PR #32374)",
        engines=("vllm",),
    )

    def __init__(self, ranges: Sequence[BatchRange]) -> None:
        self.ranges = _checked(ranges)
        self._starts = [start for start, _, _ in self.ranges]
        self._ks = [k for _, _, k in self.ranges]

    @classmethod
    def from_arg(cls, arg: str) -> dict[str, Any]:
        """Constructor arguments out of ``1-64=3,65-128=1,129-=0`` (``5=2`` is short for ``5-5=2``)."""
        if not arg.strip():
            raise ValueError("the table is empty; write for example table:1-64=3,65-=0")
        return {"ranges": [_parse_range(item) for item in arg.split(",")]}

    @classmethod
    def from_lookup(cls, k_by_batch: Sequence[int]) -> BatchTable:
        """The shortest table that gives ``k_by_batch[b - 1]`` at batch size b; its last range has no end."""
        ks = list(k_by_batch)
        starts = [b for b in range(1, len(ks) + 1) if b == 1 or ks[b - 1] != ks[b - 2]]
        ends = [start - 1 for start in starts[1:]]
        return cls([(start, end, ks[start - 1]) for start, end in zip(starts, [*ends, None], strict=True)])

    @classmethod
    def search_space(cls, limits: Limits) -> SearchSpace:
        """One K for every tier of batch sizes, not monotonic; the greedy table first, and above the reach.

        Then the same K in every tier that is reached: what is found is no worse than any fixed K.
        """
        turns = [start for start, _ in limits.greedy]
        starts = sorted(start for start in {*_LADDER, *turns} if start <= limits.max_batch)
        ks = [k for _, k in limits.greedy]
        first = {start: ks[bisect_right(turns, start) - 1] for start in starts}
        return SearchSpace(
            {f"{_TIER}{start}": tier_range(start, k, limits) for start, k in first.items()},
            {f"{_TIER}{start}": k for start, k in first.items()},
            tuple(
                {f"{_TIER}{start}": same if start <= limits.reach else k for start, k in first.items()}
                for same in range(limits.max_k + 1)
            ),
        )

    @classmethod
    def from_params(cls, params: Mapping[str, Value]) -> dict[str, Any]:
        """Constructor arguments: the shortest table that gives every tier its K."""
        tiers = sorted((int(name.removeprefix(_TIER)), int(k)) for name, k in params.items())
        runs = [next(tier) for _, tier in groupby(tiers, key=lambda tier: tier[1])]
        ends = [start - 1 for start, _ in runs[1:]]
        return {"ranges": [(start, end, k) for (start, k), end in zip(runs, [*ends, None], strict=True)]}

    @property
    def text(self) -> str:
        """``table:1-64=3,65-=0``, sorted by batch size."""
        items = (f"{start}-{'' if end is None else end}={k}" for start, end, k in self.ranges)
        return f"table:{','.join(items)}"

    def choose_k(self, step: StepView) -> int:
        """K of the last range that starts at or below the batch size, so gaps keep the previous K."""
        return self._ks[max(bisect_right(self._starts, step.batch) - 1, 0)]

    def table(self, max_batch: int) -> NDArray[np.int64]:
        """(max_batch + 1,) K by batch size; entry 0 is unused."""
        batch = np.arange(max_batch + 1)
        index = np.searchsorted(self._starts, batch, side="right") - 1
        return np.asarray(self._ks, np.int64)[np.maximum(index, 0)]


def _parse_range(item: str) -> BatchRange:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise ValueError(
            f"range {item.strip()!r} is not START-END=K or START-=K; write for example 1-64=3,65-=0"
        )
    start, dash, end, k = match.groups()
    return int(start), (int(end) if end else None) if dash else int(start), int(k)


def _checked(ranges: Sequence[BatchRange]) -> tuple[BatchRange, ...]:
    if not ranges:
        raise ValueError("the table is empty; give at least one range, the first from batch size 1")
    for start, end, k in ranges:
        checked_int("the start of a batch range", start, 1)
        checked_k(k)
        if end is not None and checked_int("the end of a batch range", end, 1) < start:
            raise ValueError(f"range {start}-{end} is reversed; write {end}-{start}={k}")
    ordered = sorted(((start, end, k) for start, end, k in ranges), key=lambda item: item[0])
    if ordered[0][0] != 1:
        raise ValueError(f"the first range must start at batch size 1, not {ordered[0][0]}, as vLLM demands")
    for (start, end, _), (next_start, next_end, _) in pairwise(ordered):
        if end is None or next_start <= end:
            one = f"{start}-{'' if end is None else end}"
            two = f"{next_start}-{'' if next_end is None else next_end}"
            raise ValueError(f"ranges {one} and {two} overlap at batch size {next_start}; vLLM refuses that")
    return tuple(ordered)
