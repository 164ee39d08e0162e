"""Hazard-cost stop: draft on while the next draft's chance is worth more target time than it costs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import ACCEPTED, F64, I64, PROPOSED, PolicyInfo, Rule
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_float, checked_int

_DEPTHS = 32
"""Draft positions with counts of their own; deeper ones share those of the last."""

# the rule's state: parameters in its first row ...
_WEIGHT: Final = 0
_PRIOR: Final = 1
_STRENGTH: Final = 2
_PROBE_EVERY: Final = 3
_IDLE_STEPS: Final = 4  # in a row at K = 0
# ... and decayed counts by draft position in two more
_ACCEPTED: Final = 1
_EXAMINED: Final = 2


class HazardCost(RulePolicy):
    """One K for the batch: the next draft is taken while chance x target seconds > its marginal seconds.

    The chance that a draft at some depth is accepted is the product of the hazards up to it, for a server
    drafts before it knows what survived. Each hazard is the mean of a Beta posterior over the drafts examined
    at that depth: what comes after a reject was never judged and counts neither way (censored). The target's
    seconds are those of the step without drafts, the marginal ones what one draft more per request adds.

    Counts decay, so a depth that is no longer reached goes back to the prior and is tried again; after
    ``probe_every`` steps in a row at K = 0 one step drafts a single token.

    Args:
        weight: decay of the counts per observed step.
        start_acceptance: mean of the prior of every depth.
        strength: examined drafts that the prior is worth.
        probe_every: steps in a row at K = 0 until one drafts again.

    Raises:
        ValueError: weight outside 0.001..1, start_acceptance outside 0..1, strength outside 0.01..10,000,
            probe_every below 1.
    """

    name: ClassVar[str] = "hazard-cost"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="drafts on while the next draft's chance x target time exceeds what it adds to the step",
        source="GitHub note id 62917018278 (no confidence bins here); the product and the decay are kplan's",
        why_not="no released engine prices its own steps",
    )

    def __init__(
        self,
        weight: Annotated[float, FloatRange(0.01, 0.5, log=True)] = 0.05,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
        strength: Annotated[float, FloatRange(0.5, 50.0, log=True)] = 4.0,
        probe_every: Annotated[int, IntRange(8, 512)] = 64,
    ) -> None:
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        self.strength = checked_float("strength", strength, 0.01, 1e4)
        self.probe_every = checked_int("probe_every", probe_every, 1)
        state = np.zeros((3, _DEPTHS))
        state[0, :4] = self.weight, self.start_acceptance, self.strength, self.probe_every
        self._rule = Rule(state, _choose, _learn, priced=True)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    k, chance = 0, 1.0
    for depth in range(len(prices) - 1):
        at = min(depth, _DEPTHS - 1)
        hits = state[_ACCEPTED, at] + own[_STRENGTH] * own[_PRIOR]
        chance *= hits / (state[_EXAMINED, at] + own[_STRENGTH])
        if chance * prices[0] <= prices[depth + 1] - prices[depth]:
            break
        k = depth + 1
    if k == 0 and own[_IDLE_STEPS] + 1 < own[_PROBE_EVERY]:
        own[_IDLE_STEPS] += 1
        return 0
    own[_IDLE_STEPS] = 0
    return max(k, min(1, len(prices) - 1))


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    proposed = 0
    for i in range(len(outcome)):
        proposed += outcome[i, PROPOSED]
    if proposed == 0:
        return
    for at in range(_DEPTHS):
        state[_ACCEPTED, at] *= 1.0 - state[0, _WEIGHT]
        state[_EXAMINED, at] *= 1.0 - state[0, _WEIGHT]
    for i in range(len(outcome)):
        accepted = outcome[i, ACCEPTED]
        for depth in range(min(accepted + 1, outcome[i, PROPOSED])):
            at = min(depth, _DEPTHS - 1)
            state[_EXAMINED, at] += 1
            if depth < accepted:
                state[_ACCEPTED, at] += 1
