"""The +2/-1 heuristic: each request drafts longer while all of it is accepted, shorter after a reject."""

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
from kplan.space import IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_int

_ROWS = 1 << 16
"""Requests remembered at once. A request's row is taken over by the one that arrives 65,536 later, so memory
is bounded and nothing must be told when a request leaves; a preempted one finds its K again."""

# columns of the rule's state: its first row ...
_START: Final = 0
_UP: Final = 1
_DOWN: Final = 2
_HIGHEST: Final = 3  # max_k of the latest choice
# ... and one row per request remembered
_OWNER: Final = 0  # its number + 1, 0 when the row is free
_K: Final = 1


class Heuristic(RulePolicy):
    """K of each request: ``+ up`` when every draft was accepted, ``- down`` after a reject, within 1..max_k.

    A step that drafted nothing for a request teaches nothing about it.

    Args:
        start: K of a new request.
        up: added after a step whose drafts were all accepted.
        down: taken off after a step with a reject.

    Raises:
        ValueError: a value below 1.
    """

    name: ClassVar[str] = "heuristic"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="per request: K + 2 when all drafts were accepted, else K - 1, from 5, at least 1",
        source="transformers 5.24.0 candidate_generator.py; start 5 and min 1: arXiv:2601.11580, second-hand",
        why_not="vLLM and SGLang choose one K for the whole batch, not one per request",
    )

    def __init__(
        self,
        start: Annotated[int, IntRange(1, 10)] = 5,
        up: Annotated[int, IntRange(1, 4)] = 2,
        down: Annotated[int, IntRange(1, 4)] = 1,
    ) -> None:
        self.start = checked_int("start", start, 1)
        self.up = checked_int("up", up, 1)
        self.down = checked_int("down", down, 1)
        state = np.zeros((1 + _ROWS, 4))
        state[0] = self.start, self.up, self.down, self.start
        self._rule = Rule(state, _choose, _learn)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    start, highest = int(state[0, _START]), int(step[MAX_K])
    state[0, _HIGHEST] = highest
    for i in range(len(seen)):
        own = state[1 + seen[i, REQUEST] % _ROWS]
        known = own[_OWNER] == seen[i, REQUEST] + 1
        k_each[i] = min(int(own[_K]) if known else start, highest)
    return PER_REQUEST


def _learn(state: F64, step: F64, outcome: I64) -> None:  # noqa: ARG001 - a rule's signature
    start, up, down, highest = state[0, _START], state[0, _UP], state[0, _DOWN], state[0, _HIGHEST]
    for i in range(len(outcome)):
        request, proposed = outcome[i, REQUEST], outcome[i, PROPOSED]
        if proposed == 0:
            continue
        own = state[1 + request % _ROWS]
        # Bounded by max_k, or a long run of full accepts would take as many rejects to forget.
        k = min(own[_K] if own[_OWNER] == request + 1 else start, highest)
        moved = k + up if outcome[i, ACCEPTED] >= proposed else k - down
        own[_K] = min(max(moved, 1), highest)
        own[_OWNER] = request + 1
