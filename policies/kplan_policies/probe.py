"""Goodput probe: try every K in turn, keep the one with the most tokens per second, try again later."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import ACCEPTED, F64, I64, MAX_K, STEP_S, PolicyInfo, Rule
from kplan.space import IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_int, checked_k

SETTLE: Final = 2
"""Steps after a change that are not counted: K is verified one step later, and overlap hears one later."""

# columns of the rule's state, one row
_LARGEST: Final = 0
_WINDOW: Final = 1
_HOLD: Final = 2
_K: Final = 3
_STEPS: Final = 4  # heard of since K was set
_TOKENS: Final = 5  # per request, in the steps counted ...
_SECONDS: Final = 6  # ... and how long they took
_BEST: Final = 7
_BEST_RATE: Final = 8
_HOLDING: Final = 9  # 1 while the best is held


class Probe(RulePolicy):
    """One K for the batch: K = 0..largest each run for a window, the best is held, and it begins anew.

    What is compared is measured: output tokens per request and second over the steps of the window, without
    the first two. Nothing is known of acceptance or of prices.

    Args:
        largest: K tried at most, and never above max_k.
        window: steps counted of each K.
        hold: steps for which the best is held.

    Raises:
        ValueError: largest outside 0..254, window or hold below 1.
    """

    name: ClassVar[str] = "probe"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="tries every K in turn and holds the one with the most tokens per second measured",
        source="vLLM PR #26504 comment (off and 1..4, tokens / wall time per request); windows are kplan's",
        why_not="no released engine has this controller",
    )

    def __init__(
        self,
        largest: Annotated[int, IntRange(2, 8)] = 4,
        window: Annotated[int, IntRange(4, 64)] = 16,
        hold: Annotated[int, IntRange(64, 2048)] = 512,
    ) -> None:
        self.largest = checked_k(largest)
        self.window = checked_int("window", window, 1)
        self.hold = checked_int("hold", hold, 1)
        state = np.zeros((1, 10))
        state[0, :3] = self.largest, self.window, self.hold
        self._rule = Rule(state, _choose, _learn)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    own[_LARGEST] = min(own[_LARGEST], step[MAX_K])
    own[_K] = min(own[_K], own[_LARGEST])
    return int(own[_K])


def _learn(state: F64, step: F64, outcome: I64) -> None:
    if len(outcome) == 0:
        return
    own = state[0]
    own[_STEPS] += 1
    if own[_HOLDING] == 1:
        if own[_STEPS] >= own[_HOLD]:
            own[_K:] = 0.0
        return
    if own[_STEPS] > SETTLE:
        tokens = 0
        for i in range(len(outcome)):
            tokens += outcome[i, ACCEPTED] + 1
        own[_TOKENS] += tokens / len(outcome)
        own[_SECONDS] += step[STEP_S]
    if own[_STEPS] < SETTLE + own[_WINDOW]:
        return
    rate = own[_TOKENS] / own[_SECONDS]
    if rate > own[_BEST_RATE]:
        own[_BEST], own[_BEST_RATE] = own[_K], rate
    own[_STEPS] = own[_TOKENS] = own[_SECONDS] = 0.0
    if own[_K] < own[_LARGEST]:
        own[_K] += 1
    else:
        own[_K] = own[_BEST]
        own[_HOLDING] = 1
