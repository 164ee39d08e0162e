"""Per-position acceptance EMAs and a fixed cost ratio: the adaptive K of vLLM's pull request #47111."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import ACCEPTED, BATCH, F64, I64, MAX_K, PROPOSED, PolicyInfo, Rule
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import MAX_K as LARGEST_K
from kplan_policies._text import checked_float, checked_int
from kplan_policies.table import BatchRange, BatchTable

# the rule's state: parameters and memory in its first row ...
_WEIGHT: Final = 0
_WINDOW: Final = 1
_DRAFT_COST: Final = 2
_VERIFY_OVERHEAD: Final = 3
_COOLDOWN: Final = 4
_HYSTERESIS: Final = 5
_K: Final = 6  # -1 until the first step
_HIGHEST: Final = 7  # max_k of the latest choice
_STEPS: Final = 8  # of the window
_RESTING: Final = 9  # windows until K may move again
# ... then one row each, by draft position: EMA of acceptance, the window's counts
_EMA: Final = 1
_ACCEPTED: Final = 2
_EXAMINED: Final = 3
# ... and the cap: first batch sizes of its ranges, and their K
_FROM_BATCH: Final = 4
_CAP: Final = 5


class PositionEma(RulePolicy):
    """One K for the batch: argmax of E(K) / (1 + K x draft_cost + verify_overhead), looked at once a window.

    E(K) = 1 + a_1 + a_1 a_2 + ... over K positions, with a_i the EMA, over windows of steps, of the chance
    that draft i is accepted when those before it were. A position that was not examined in a window keeps its
    EMA. K moves only when the best one is more than ``hysteresis`` away, and then rests ``cooldown`` windows.
    It starts at max_k, is at least 1, and never above ``cap`` at the batch size.

    Args:
        window: steps between two looks.
        weight: of the newest window in an EMA.
        draft_cost: seconds of drafting one token, in target steps.
        verify_overhead: of verifying drafts, in target steps.
        cooldown: windows for which K rests after a change.
        hysteresis: distance up to which K stays.
        start_acceptance: every a_i before it was seen.
        cap: a vLLM batch table, [[1, 64, 3], [65, null, 0]]; None: max_k alone bounds K.

    Raises:
        ValueError: a value outside its range, or a table that vLLM would refuse.
    """

    name: ClassVar[str] = "position-ema"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="K by per-position acceptance EMAs and a fixed cost ratio, under a cap by batch size",
        source="vLLM PR #47111, E(K) and the hysteresis from its forerunner #44336; other values are assumed",
        why_not="vLLM PR #47111 is open, in no release",
    )

    def __init__(
        self,
        window: Annotated[int, IntRange(2, 50)] = 10,
        weight: Annotated[float, FloatRange(0.05, 1.0, log=True)] = 0.3,
        draft_cost: Annotated[float, FloatRange(0.01, 0.5, log=True)] = 0.1,
        verify_overhead: Annotated[float, FloatRange(0.0, 1.0)] = 0.1,
        cooldown: Annotated[int, IntRange(0, 10)] = 2,
        hysteresis: Annotated[int, IntRange(0, 2)] = 1,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
        cap: Sequence[BatchRange] | None = None,
    ) -> None:
        self.window = checked_int("window", window, 1)
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.draft_cost = checked_float("draft_cost", draft_cost, 0.0, 10.0)
        self.verify_overhead = checked_float("verify_overhead", verify_overhead, 0.0, 10.0)
        self.cooldown = checked_int("cooldown", cooldown, 0)
        self.hysteresis = checked_int("hysteresis", hysteresis, 0)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        self.cap = None if cap is None else BatchTable([_triple(item) for item in cap]).ranges
        self._rule = Rule(self._state(), _choose, _learn)

    def _state(self) -> F64:
        cap = self.cap or ((1, None, LARGEST_K),)
        state = np.zeros((6, max(LARGEST_K, len(cap))))
        state[0, : _K + 1] = (
            self.weight, self.window, self.draft_cost, self.verify_overhead, self.cooldown,
            self.hysteresis, -1,
        )  # fmt: skip
        state[_EMA] = self.start_acceptance
        state[_FROM_BATCH] = np.inf
        state[_FROM_BATCH, : len(cap)] = [start for start, _, _ in cap]
        state[_CAP, : len(cap)] = [k for _, _, k in cap]
        return state


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    own[_HIGHEST] = step[MAX_K]
    if own[_K] < 0:
        own[_K] = step[MAX_K]
    at = 0
    while at + 1 < state.shape[1] and state[_FROM_BATCH, at + 1] <= step[BATCH]:
        at += 1
    return int(min(own[_K], state[_CAP, at], step[MAX_K]))


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    own = state[0]
    judged = 0
    for i in range(len(outcome)):
        accepted = outcome[i, ACCEPTED]
        for at in range(min(accepted + 1, outcome[i, PROPOSED])):
            judged += 1
            state[_EXAMINED, at] += 1
            if at < accepted:
                state[_ACCEPTED, at] += 1
    if judged == 0:
        return
    own[_STEPS] += 1
    if own[_STEPS] < own[_WINDOW]:
        return
    own[_STEPS] = 0
    for at in range(state.shape[1]):
        if state[_EXAMINED, at] > 0:
            share = state[_ACCEPTED, at] / state[_EXAMINED, at]
            state[_EMA, at] = (1.0 - own[_WEIGHT]) * state[_EMA, at] + own[_WEIGHT] * share
            state[_ACCEPTED, at] = state[_EXAMINED, at] = 0.0
    if own[_RESTING] > 0:
        own[_RESTING] -= 1
        return
    best, best_rate, tokens, all_right = 0, 0.0, 1.0, 1.0
    for k in range(1, int(own[_HIGHEST]) + 1):
        all_right *= state[_EMA, k - 1]
        tokens += all_right
        rate = tokens / (1.0 + k * own[_DRAFT_COST] + own[_VERIFY_OVERHEAD])
        if rate > best_rate:
            best, best_rate = k, rate
    if abs(best - own[_K]) > own[_HYSTERESIS]:
        own[_K] = best
        own[_RESTING] = own[_COOLDOWN]


def _triple(item: object) -> BatchRange:
    if not isinstance(item, list | tuple) or len(item) != 3:
        raise ValueError(f"cap must be ranges [start, end, K] such as [1, 64, 3], not {item!r}")
    start, end, k = item
    return start, end, k
