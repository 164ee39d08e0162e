"""Acceptance-target band: each request drafts longer above the band, shorter below it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import (
    ACCEPTED,
    F64,
    I64,
    MAX_K,
    PER_REQUEST,
    PROPOSED,
    REQUEST,
    PolicyInfo,
    Rule,
)
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_float, checked_int

_ROWS = 1 << 16
"""Requests remembered at once: a row is taken over by the request that arrives 65,536 later."""

# columns of the rule's state: its first row ...
_TARGET: Final = 0
_HALF_WIDTH: Final = 1
_WEIGHT: Final = 2
_START: Final = 3
_HIGHEST: Final = 4  # max_k of the latest choice
# ... and one row per request remembered
_OWNER: Final = 0  # its number + 1, 0 when the row is free
_K: Final = 1
_EMA: Final = 2  # of accepted / proposed


class Band(RulePolicy):
    """K of each request: one more while its EMA of the accepted share is above the band, one less below.

    K stays within 1..max_k: a controller of acceptance cannot switch speculation off, and the thread that
    the rule is from shows it failing at both ends of the batch for that reason.

    Args:
        target: accepted / proposed drafts to hold; the EMA of a new request starts there.
        half_width: of the band around it.
        weight: of the newest step in the EMA.
        start: K of a new request.

    Raises:
        ValueError: target or half_width outside 0..1, weight outside 0.001..1, start below 1.
    """

    name: ClassVar[str] = "band"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="per request: K + 1 above a band of the accepted share, K - 1 below it",
        source="vLLM PR #26504 (DynamicProposer, closed) and a comment there; step size 1 is kplan's reading",
        why_not="vLLM and SGLang choose one K for the whole batch, not one per request",
    )

    def __init__(
        self,
        target: Annotated[float, FloatRange(0.3, 0.95)] = 0.8,
        half_width: Annotated[float, FloatRange(0.0, 0.2)] = 0.05,
        weight: Annotated[float, FloatRange(0.05, 0.8, log=True)] = 0.2,
        start: Annotated[int, IntRange(1, 8)] = 3,
    ) -> None:
        self.target = checked_float("target", target, 0.0, 1.0)
        self.half_width = checked_float("half_width", half_width, 0.0, 1.0)
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.start = checked_int("start", start, 1)
        state = np.zeros((1 + _ROWS, 5))
        state[0] = self.target, self.half_width, self.weight, self.start, self.start
        self._rule = Rule(state, _choose, _learn)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    start, highest = int(state[0, _START]), int(step[MAX_K])
    state[0, _HIGHEST] = highest
    for i in range(len(seen)):
        own = state[1 + seen[i, REQUEST] % _ROWS]
        k_each[i] = min(int(own[_K]) if own[_OWNER] == seen[i, REQUEST] + 1 else start, highest)
    return PER_REQUEST


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    target, half_width, weight = state[0, _TARGET], state[0, _HALF_WIDTH], state[0, _WEIGHT]
    highest = state[0, _HIGHEST]
    for i in range(len(outcome)):
        request, proposed = outcome[i, REQUEST], outcome[i, PROPOSED]
        if proposed == 0:
            continue
        own = state[1 + request % _ROWS]
        known = own[_OWNER] == request + 1
        k, ema = (own[_K], own[_EMA]) if known else (state[0, _START], target)
        ema = (1.0 - weight) * ema + weight * (outcome[i, ACCEPTED] / proposed)
        if ema > target + half_width:
            k += 1
        elif ema < target - half_width:
            k -= 1
        own[_K] = min(max(k, 1), highest)
        own[_EMA] = ema
        own[_OWNER] = request + 1
