"""Per request: K follows a moving average of the drafts that were accepted."""

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
from kplan.space import FloatRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_float

_ROWS = 1 << 16
"""Requests remembered at once: a row is taken over by the request that arrives 65,536 later."""

# columns of the rule's state: its first row ...
_WEIGHT: Final = 0
_MARGIN: Final = 1
_START: Final = 2
# ... and one row per request remembered
_OWNER: Final = 0  # its number + 1, 0 when the row is free
_EMA: Final = 1  # of accepted drafts


class RequestEma(RulePolicy):
    """K of each request: its EMA of accepted drafts plus a margin, rounded, within 1..max_k.

    The margin lets K grow: drafts that were all accepted do not say how many more would have been. A step
    that drafted nothing for a request teaches nothing about it.

    Args:
        weight: of the newest step in the EMA.
        margin: drafts added to the EMA.
        start: EMA of a new request, in drafts.

    Raises:
        ValueError: weight outside 0.001..1, margin outside 0..16, start outside 0..254.
    """

    name: ClassVar[str] = "request-ema"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="per request: K = its EMA of accepted drafts + a margin",
        source="interpretation of GammaTune (arXiv:2504.00030, second-hand; its constants were not obtained)",
        why_not="vLLM and SGLang choose one K for the whole batch, not one per request",
    )

    def __init__(
        self,
        weight: Annotated[float, FloatRange(0.05, 0.8, log=True)] = 0.3,
        margin: Annotated[float, FloatRange(0.0, 3.0)] = 1.0,
        start: Annotated[float, FloatRange(0.0, 8.0)] = 2.0,
    ) -> None:
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.margin = checked_float("margin", margin, 0.0, 16.0)
        self.start = checked_float("start", start, 0.0, 254.0)
        state = np.zeros((1 + _ROWS, 3))
        state[0] = self.weight, self.margin, self.start
        self._rule = Rule(state, _choose, _learn)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    highest = int(step[MAX_K])
    for i in range(len(seen)):
        own = state[1 + seen[i, REQUEST] % _ROWS]
        ema = own[_EMA] if own[_OWNER] == seen[i, REQUEST] + 1 else state[0, _START]
        k_each[i] = min(max(int(ema + state[0, _MARGIN] + 0.5), 1), highest)
    return PER_REQUEST


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    weight = state[0, _WEIGHT]
    for i in range(len(outcome)):
        request = outcome[i, REQUEST]
        if outcome[i, PROPOSED] == 0:
            continue
        own = state[1 + request % _ROWS]
        ema = own[_EMA] if own[_OWNER] == request + 1 else state[0, _START]
        own[_EMA] = (1.0 - weight) * ema + weight * outcome[i, ACCEPTED]
        own[_OWNER] = request + 1
