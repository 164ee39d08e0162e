"""SGLang's proposed throughput-aware steps: profiled cost by K and batch, expected accepted length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import ACCEPTED, BATCH, F64, I64, PROPOSED, PolicyInfo, Rule
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import MAX_K as LARGEST_K
from kplan_policies._text import checked_float, checked_int, checked_k

_SLOTS: Final = 11
"""Slots of batch sizes: 1, 2-3, 4-7, ... and 1,024 or more."""

# the rule's state: parameters and memory in its first row ...
_WEIGHT: Final = 0
_INTERVAL: Final = 1
_VERIFIES: Final = 2  # heard of
_FIRST: Final = 3  # candidate K from here on, -1 after the last
# ... EMAs of acceptance by draft position ...
_EMA: Final = 1
# ... by slot, its K and the verifies at which that was chosen ...
_CHOSEN: Final = 2
_CHOSEN_AT: Final = 3
# ... and a row of profiled seconds by K per slot, 0 where nothing was profiled
_PROFILE: Final = 4


class ThroughputAware(RulePolicy):
    """One K for the batch: the candidate with the most expected tokens per profiled second.

    The cost of a step is profiled once per K and slot of batch sizes, at the first batch of the slot, and
    kept: what changes afterwards, such as the context, is not seen. The expected tokens are 1 + a_1 + a_1 a_2
    + ... with a_i the EMA of the chance that draft i is accepted when those before it were. A slot decides
    again after ``interval`` verifies.

    Args:
        candidates: the K it may choose.
        weight: of the newest verify in an EMA.
        interval: verifies between two decisions of a slot.
        start_acceptance: every a_i before it was seen.

    Raises:
        ValueError: no candidate, one outside 1..254, weight outside 0.001..1, interval below 1,
            start_acceptance outside 0..1.
    """

    name: ClassVar[str] = "throughput-aware"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="the candidate K with the most expected tokens per second, step cost profiled once per slot",
        source="interpretation of SGLang PR #28045 (excerpt read, exact formula not seen)",
        why_not="SGLang PR #28045 is open, in no release",
    )

    def __init__(
        self,
        candidates: Sequence[int] = (1, 3, 7),
        weight: Annotated[float, FloatRange(0.02, 1.0, log=True)] = 0.2,
        interval: Annotated[int, IntRange(1, 50)] = 5,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
    ) -> None:
        if not isinstance(candidates, list | tuple) or not candidates or 0 in candidates:
            raise ValueError(f"candidates must be draft lengths >= 1 such as [1, 3, 7], not {candidates!r}")
        self.candidates = tuple(sorted({checked_k(k) for k in candidates}))
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.interval = checked_int("interval", interval, 1)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        state = np.zeros((_PROFILE + _SLOTS, _FIRST + LARGEST_K + 1))
        state[0, _FIRST:] = -1
        state[0, :_FIRST] = self.weight, self.interval, 0
        state[0, _FIRST : _FIRST + len(self.candidates)] = self.candidates
        state[_EMA] = self.start_acceptance
        self._rule = Rule(state, _choose, _learn, priced=True)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    size, slot = int(step[BATCH]), 0
    while size > 1 and slot < _SLOTS - 1:
        size //= 2
        slot += 1
    profile = state[_PROFILE + slot]
    new = profile[0] == 0
    if not new and own[_VERIFIES] - state[_CHOSEN_AT, slot] < own[_INTERVAL]:
        return int(state[_CHOSEN, slot])
    if new:
        for k in range(len(prices)):
            profile[k] = prices[k]
    highest = len(prices) - 1
    best, best_rate, tokens, all_right, depth = 0, 0.0, 1.0, 1.0, 0
    at = _FIRST
    while own[at] >= 0:
        k = min(int(own[at]), highest)
        while depth < k:
            all_right *= state[_EMA, depth]
            tokens += all_right
            depth += 1
        if tokens / profile[k] > best_rate:
            best, best_rate = k, tokens / profile[k]
        at += 1
    state[_CHOSEN, slot], state[_CHOSEN_AT, slot] = best, own[_VERIFIES]
    return best


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    deepest = 0
    for i in range(len(outcome)):
        deepest = max(deepest, outcome[i, PROPOSED])
    if deepest == 0:
        return
    own = state[0]
    own[_VERIFIES] += 1
    for at in range(deepest):
        examined = hits = 0
        for i in range(len(outcome)):
            if outcome[i, ACCEPTED] >= at and outcome[i, PROPOSED] > at:
                examined += 1
                hits += 1 if outcome[i, ACCEPTED] > at else 0
        if examined > 0:
            state[_EMA, at] = (1.0 - own[_WEIGHT]) * state[_EMA, at] + own[_WEIGHT] * (hits / examined)
