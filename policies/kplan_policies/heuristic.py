"""The +2/-1 heuristic: each request drafts longer while all of it is accepted, shorter after a reject."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from kplan.policy import PolicyInfo, StepOutcome, StepView
from kplan.space import IntRange
from kplan_policies._text import checked_int, policy_text

_ROWS = 1 << 16
"""Requests remembered at once. A request's row is taken over by the one that arrives 65,536 later, so memory
is bounded and nothing must be told when a request leaves; a preempted one finds its K again."""


class Heuristic:
    """K of each request: ``+ up`` when every draft was accepted, ``- down`` after a reject, within 1..max_k.

    A step that drafted nothing for a request teaches nothing about it.

    Args:
        start: K of a new request.
        up: added after a step whose drafts were all accepted.
        down: taken off after a step with a reject.

    Raises:
        ValueError: a value below 1.
    """

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
        self._owner = np.full(_ROWS, -1, np.int64)
        self._k = np.zeros(_ROWS, np.int64)
        self._max_k = start

    @property
    def text(self) -> str:
        """``heuristic``, with the values that are not the default's."""
        return policy_text("heuristic", self)

    def choose_k(self, step: StepView) -> NDArray[np.int64]:
        """(B,) K per request, each 1..max_k (0 when max_k is 0)."""
        self._max_k = step.max_k
        return np.minimum(self._k_of(step.request), step.max_k)

    def observe(self, outcome: StepOutcome) -> None:
        """Move the K of every request that verified at least one draft."""
        request, proposed = outcome.request, outcome.proposed
        # Bounded by max_k, or a long run of full accepts would take as many rejects to forget.
        k = np.minimum(self._k_of(request), self._max_k)
        moved = np.where(outcome.accepted >= proposed, k + self.up, k - self.down)
        row = request % _ROWS
        self._k[row] = np.where(proposed > 0, np.minimum(np.maximum(moved, 1), self._max_k), k)
        self._owner[row] = request

    def _k_of(self, request: NDArray[np.int64]) -> NDArray[np.int64]:
        row = request % _ROWS
        return np.where(self._owner[row] == request, self._k[row], self.start)
