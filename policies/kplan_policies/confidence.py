"""Confidence stop: each request drafts up to the first draft that is likely to be wrong."""

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
from kplan.space import Choice, FloatRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_float

_ROWS = 1 << 13
"""Requests remembered at once: a row is taken over by the request that arrives 8,192 later."""

_DEPTHS = 16
"""Largest K, and the draft positions with counts: the cap of the drafters that stop so is 10 to 20 tokens."""

_POOL_DECAY = 0.99
"""Of the counts of all requests together, per observed step."""

# the rule's state: parameters in its first row ...
_THRESHOLD: Final = 0
_STRENGTH: Final = 1
_WEIGHT: Final = 2
_PRIOR: Final = 3
_PRODUCT: Final = 4
# ... counts of all requests by draft position in two more ...
_POOL_ACCEPTED: Final = 1
_POOL_EXAMINED: Final = 2
# ... and one row per request remembered, with its accepted and examined drafts by position
_FIRST_ROW: Final = 3
_OWNER: Final = 0  # its number + 1, 0 when the row is free
_OWN: Final = 1  # accepted from here on, examined _DEPTHS further


class Confidence(RulePolicy):
    """K of each request: the drafts before the first whose confidence is below the threshold, at least 1.

    A drafter's own probabilities are in no trace that kplan has. The confidence here is what a server can
    know without them: the request's share of accepted drafts at that position, drawn towards the share of all
    requests there. So the rule sees how predictable a request has been, not how sure the drafter is now, and
    does less than the published ones; their online fit of the threshold is left out with the probabilities.

    Args:
        threshold: confidence at which drafting stops.
        product: compare the product of the confidences so far (the chance that all are accepted) instead of
            the newest one, as SpecDec++ does.
        weight: decay of a request's counts per observed step.
        strength: examined drafts that the share of all requests is worth.
        start_acceptance: confidence of every position before anything was seen.

    Raises:
        ValueError: threshold or start_acceptance outside 0..1, weight outside 0.001..1, strength outside
            0.01..10,000, product neither true nor false.
    """

    name: ClassVar[str] = "confidence"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="per request: drafts until confidence falls below a threshold; confidence from its history",
        source="stand-in, no draft probs: HF stop (transformers 5.24.0), DSL (vLLM PR #35301), SpecDec++",
        why_not="vLLM and SGLang choose one K for the whole batch, and stop no draft on confidence",
    )

    def __init__(
        self,
        threshold: Annotated[float, FloatRange(0.1, 0.9)] = 0.4,
        product: Annotated[bool, Choice((False, True))] = False,
        weight: Annotated[float, FloatRange(0.01, 0.5, log=True)] = 0.1,
        strength: Annotated[float, FloatRange(0.5, 50.0, log=True)] = 4.0,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
    ) -> None:
        self.threshold = checked_float("threshold", threshold, 0.0, 1.0)
        if not isinstance(product, bool):
            raise ValueError(f"product must be true or false, not {product!r}")  # noqa: TRY004 - input
        self.product = product
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.strength = checked_float("strength", strength, 0.01, 1e4)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        state = np.zeros((_FIRST_ROW + _ROWS, _OWN + 2 * _DEPTHS))
        state[0, : _PRODUCT + 1] = (
            self.threshold, self.strength, self.weight, self.start_acceptance, self.product,
        )  # fmt: skip
        self._rule = Rule(state, _choose, _learn)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    threshold, strength, prior = state[0, _THRESHOLD], state[0, _STRENGTH], state[0, _PRIOR]
    deepest = min(int(step[MAX_K]), _DEPTHS)
    for i in range(len(seen)):
        own = state[_FIRST_ROW + seen[i, REQUEST] % _ROWS]
        known = own[_OWNER] == seen[i, REQUEST] + 1
        k, chance = 0, 1.0
        for at in range(deepest):
            sure = (state[_POOL_ACCEPTED, at] + prior) / (state[_POOL_EXAMINED, at] + 1.0)
            if known:
                sure = (own[_OWN + at] + strength * sure) / (own[_OWN + _DEPTHS + at] + strength)
            chance = chance * sure if state[0, _PRODUCT] == 1 else sure
            if chance < threshold:
                break
            k = at + 1
        k_each[i] = max(k, min(1, deepest))
    return PER_REQUEST


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    proposed = 0
    for i in range(len(outcome)):
        proposed += outcome[i, PROPOSED]
    if proposed == 0:
        return
    for at in range(_DEPTHS):
        state[_POOL_ACCEPTED, at] *= _POOL_DECAY
        state[_POOL_EXAMINED, at] *= _POOL_DECAY
    for i in range(len(outcome)):
        request, accepted, judged = outcome[i, REQUEST], outcome[i, ACCEPTED], outcome[i, PROPOSED]
        if judged == 0:
            continue
        own = state[_FIRST_ROW + request % _ROWS]
        keep = 1.0 - state[0, _WEIGHT] if own[_OWNER] == request + 1 else 0.0
        own[_OWNER] = request + 1
        for at in range(2 * _DEPTHS):
            own[_OWN + at] *= keep
        for at in range(min(accepted + 1, judged, _DEPTHS)):
            hit = 1 if at < accepted else 0
            own[_OWN + at] += hit
            own[_OWN + _DEPTHS + at] += 1
            state[_POOL_ACCEPTED, at] += hit
            state[_POOL_EXAMINED, at] += 1
