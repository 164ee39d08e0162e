"""K by batch size and context length: the table that vLLM's pull request #48944 proposes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from kplan.policy import BATCH, CONTEXT, F64, I64, PolicyInfo, Rule, StepView
from kplan.space import Limits, SearchSpace, Value, tier_range
from kplan_policies._text import checked_int, checked_k
from kplan_policies.table import BatchTable

T = TypeVar("T")

ContextRange = tuple[int, int | None, int, int | None, int]
"""(first batch size, last or None, first context, last or None, K): a 5-item entry of the proposal."""

_LADDER = (1, 9, 33, 129, 513)
"""First batch sizes of the tiers that a search gives a K each; those of the greedy tables are added."""
_TIER = "k_from_"

_RANGE = re.compile(r"\s*(\d+)(-(\d+)?)?\s*x\s*(\d+)(-(\d+)?)?\s*=\s*(-?\d+)\s*")

# columns of the rule's state, one row per range, sorted by batch size and then by context
_FROM_BATCH: Final = 0
_FROM_CONTEXT: Final = 1
_K: Final = 2


class ContextTable:
    """K by the number of requests in the step and by their mean context, in tokens.

    Batch ranges follow vLLM's table: the first starts at 1, none overlap, a gap keeps the K before it. The
    context ranges of one batch range do the same, the first from 0. The proposal says "per-request context
    length" and the batch has one K; that the mean of the batch decides is kplan's reading.

    Args:
        ranges: (batch start, batch end, context start, context end, K), ends included, None for no end.

    Raises:
        ValueError: empty, a batch range that does not start at 1 or a context range that does not start at
            0, a reversed range, an overlap, a K outside 0..254.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="K by batch size x mean context: context-table:1-32x0-2047=3,1-32x2048-=5,33-x0-=1",
        source="vLLM PR #48944 / RFC #48627, open; the mean context of the batch is kplan's reading",
        why_not="5-item table entries are in no vLLM release (PR #48944 is open)",
    )

    def __init__(self, ranges: Sequence[ContextRange]) -> None:
        self.ranges = _checked(ranges)
        state = [(batch, context, k) for batch, _, context, _, k in self.ranges]
        self._rule = Rule(np.array(state, np.float64), _choose)

    @classmethod
    def from_arg(cls, arg: str) -> dict[str, Any]:
        """Constructor arguments out of ``1-32x0-2047=3,1-32x2048-=5,33-x0-=1``."""
        return {"ranges": [_parse(item) for item in arg.split(",")] if arg.strip() else []}

    @classmethod
    def search_space(cls, limits: Limits) -> SearchSpace:
        """One K for every tier of batch sizes and contexts; the greedy table of each context first, and above
        the reach."""
        turns = {start for _, greedy in limits.by_context for start, _ in greedy}
        batches = sorted(start for start in {*_LADDER, *turns} if start <= limits.max_batch)
        first = {
            (batch, context): max(tier for tier in greedy if tier[0] <= batch)[1]
            for context, greedy in limits.by_context
            for batch in batches
        }
        return SearchSpace(
            {
                f"{_TIER}{batch}x{context}": tier_range(batch, k, limits)
                for (batch, context), k in first.items()
            },
            {f"{_TIER}{batch}x{context}": k for (batch, context), k in first.items()},
        )

    @classmethod
    def from_params(cls, params: Mapping[str, Value]) -> dict[str, Any]:
        """Constructor arguments: the shortest table that gives every tier its K."""
        rows: dict[int, list[tuple[int, int]]] = {}
        for name, k in params.items():
            batch, context = name.removeprefix(_TIER).split("x")
            rows.setdefault(int(batch), []).append((int(context), int(k)))
        tiers = [(batch, _spans(sorted(row))) for batch, row in sorted(rows.items())]
        return {
            "ranges": [
                (batch, batch_end, context, context_end, k)
                for batch, batch_end, row in _spans(tiers)
                for context, context_end, k in row
            ]
        }

    @property
    def text(self) -> str:
        """``context-table:1-32x0-=3,33-x0-=1``, sorted by batch size and context."""
        items = (f"{_span(b, b_end)}x{_span(c, c_end)}={k}" for b, b_end, c, c_end, k in self.ranges)
        return f"context-table:{','.join(items)}"

    def batch_table(self, context: int) -> BatchTable:
        """The 3-item table that released vLLM runs: K by batch size where the mean context is ``context``."""
        ks = {
            (batch, batch_end): k
            for batch, batch_end, start, _, k in self.ranges
            if start <= checked_int("context", context, 0)
        }
        return BatchTable([(batch, batch_end, k) for (batch, batch_end), k in ks.items()])

    def choose_k(self, step: StepView) -> int | I64:
        """K of the last range that starts at or below the batch size and its mean context."""
        return self._rule.choose_k(step)

    def compiled(self) -> Rule:
        """The rule, one row of state per range."""
        return self._rule


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    context = 0
    for i in range(len(seen)):
        context += seen[i, CONTEXT]
    row = 0
    for at in range(1, len(state)):
        if state[at, _FROM_BATCH] > step[BATCH]:
            break
        other_batch = state[at, _FROM_BATCH] > state[row, _FROM_BATCH]
        if other_batch or state[at, _FROM_CONTEXT] * len(seen) <= context:
            row = at
    return int(state[row, _K])


def _spans(tiers: Sequence[tuple[int, T]]) -> list[tuple[int, int | None, T]]:
    """(start, end, what) out of ascending (start, what); tiers in a row that are alike become one."""
    runs = [next(tier) for _, tier in groupby(tiers, key=lambda tier: tier[1])]
    ends = [start - 1 for start, _ in runs[1:]]
    return [(start, end, what) for (start, what), end in zip(runs, [*ends, None], strict=True)]


def _span(start: int, end: int | None) -> str:
    return f"{start}-{'' if end is None else end}"


def _parse(item: str) -> ContextRange:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise ValueError(
            f"range {item.strip()!r} is not BATCHxCONTEXT=K; write for example 1-32x0-2047=3,1-32x2048-=5"
        )
    b, b_dash, b_end, c, c_dash, c_end, k = match.groups()
    return int(b), _end(b, b_dash, b_end), int(c), _end(c, c_dash, c_end), int(k)


def _end(start: str, dash: str | None, end: str | None) -> int | None:
    return (int(end) if end else None) if dash else int(start)


def _checked(ranges: Sequence[ContextRange]) -> tuple[ContextRange, ...]:
    if not ranges:
        raise ValueError("the table is empty; write for example context-table:1-32x0-2047=3,1-32x2048-=5")
    for batch, batch_end, context, context_end, k in ranges:
        _check_range("batch", batch, batch_end, 1)
        _check_range("context", context, context_end, 0)
        checked_k(k)
    ordered = sorted(
        ((b, b_end, c, c_end, k) for b, b_end, c, c_end, k in ranges), key=lambda r: (r[0], r[2])
    )
    groups = [list(rows) for _, rows in groupby(ordered, key=lambda row: row[:2])]
    _check_order("batch size", [rows[0][:2] for rows in groups], 1)
    for rows in groups:
        _check_order(f"batch {_span(*rows[0][:2])}: context", [row[2:4] for row in rows], 0)
    return tuple(ordered)


def _check_range(what: str, start: int, end: int | None, low: int) -> None:
    checked_int(f"the start of a {what} range", start, low)
    if end is not None and checked_int(f"the end of a {what} range", end, low) < start:
        raise ValueError(f"{what} range {start}-{end} is reversed; write {end}-{start}")


def _check_order(what: str, spans: Sequence[tuple[int, int | None]], first: int) -> None:
    if spans[0][0] != first:
        raise ValueError(f"{what}: the first range must start at {first}, not {spans[0][0]}")
    for (start, end), (next_start, next_end) in pairwise(spans):
        if end is None or next_start <= end:
            one, two = _span(start, end), _span(next_start, next_end)
            raise ValueError(f"{what}: ranges {one} and {two} overlap at {next_start}")
