"""Goodput-greedy: the K whose expected tokens per second are highest at this batch, this moment."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import ACCEPTED, F64, I64, PROPOSED, PolicyInfo, Rule
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_float, checked_int

# columns of the rule's state, one row
_WEIGHT: Final = 0
_PROBE_EVERY: Final = 1
_ACCEPTED: Final = 2  # decayed sums over the steps observed
_EXAMINED: Final = 3
_IDLE_STEPS: Final = 4  # in a row at K = 0


class Goodput(RulePolicy):
    """One K for the batch: argmax of (1 + a + ... + a^K) / step.cost.seconds(K), the smallest on a tie.

    ``a`` is the chance that the next draft token is accepted, one for the whole batch: accepted drafts over
    examined drafts (those accepted plus the first one rejected of each request; what comes after a reject
    was never judged), both summed over the batch and decayed by ``1 - weight`` per observed step.

    K = 0 observes nothing and would hold for ever, so after ``probe_every`` steps in a row at K = 0 one
    step drafts a single token per request: at most one step in ``probe_every`` pays for looking again.

    Args:
        weight: weight of the newest observed step in the running counts.
        start_acceptance: ``a`` before anything was observed, worth one examined draft.
        probe_every: steps in a row at K = 0 until one drafts again.

    Raises:
        ValueError: weight outside 0.001..1, start_acceptance outside 0..1, probe_every below 1.
    """

    name: ClassVar[str] = "goodput"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="the K with the most expected tokens per second, by recent acceptance and step cost",
        source="interpretation of SmartSpec (arXiv:2406.14066, formulas not read); the probe at 0 is kplan's",
        why_not="no released engine prices its own steps",
    )

    def __init__(
        self,
        weight: Annotated[float, FloatRange(0.01, 0.5, log=True)] = 0.1,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
        probe_every: Annotated[int, IntRange(8, 512)] = 64,
    ) -> None:
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        self.probe_every = checked_int("probe_every", probe_every, 1)
        state = [self.weight, self.probe_every, self.start_acceptance, 1.0, 0.0]
        self._rule = Rule(np.array([state], np.float64), _choose, _learn, priced=True)

    @property
    def acceptance(self) -> float:
        """Current estimate of the chance that the next draft token is accepted, 0..1."""
        state = self._rule.state[0]
        return float(state[_ACCEPTED] / state[_EXAMINED])


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    chance = own[_ACCEPTED] / own[_EXAMINED]
    best, best_rate, tokens, all_right = 0, 0.0, 0.0, 1.0
    for k in range(len(prices)):
        tokens += all_right
        all_right *= chance
        rate = tokens / prices[k]
        if rate > best_rate:
            best, best_rate = k, rate
    if best == 0 and own[_IDLE_STEPS] + 1 < own[_PROBE_EVERY]:
        own[_IDLE_STEPS] += 1
        return 0
    own[_IDLE_STEPS] = 0
    return max(best, min(1, len(prices) - 1))


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    accepted = examined = 0
    for i in range(len(outcome)):
        accepted += outcome[i, ACCEPTED]
        examined += outcome[i, ACCEPTED] + (1 if outcome[i, ACCEPTED] < outcome[i, PROPOSED] else 0)
    if examined == 0:
        return
    own = state[0]
    weight = own[_WEIGHT]
    own[_ACCEPTED] = (1.0 - weight) * own[_ACCEPTED] + weight * accepted
    own[_EXAMINED] = (1.0 - weight) * own[_EXAMINED] + weight * examined
