"""A verification budget for the whole batch, spent on the drafts most likely to be accepted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import F64, I64, PolicyInfo, StepOutcome, StepView
from kplan.space import FloatRange, IntRange
from kplan_policies._text import checked_float, checked_int, policy_text

MOST_SIZES: Final = 4096
"""Budgets priced at a step, at most: each costs a look at the model."""

_ROWS: Final = 1 << 16
"""Requests remembered at once: a row is taken over by the request that arrives 65,536 later."""


class Budget:
    """K of each request by one budget B: the B drafts with the highest survival, B that pays the most.

    Draft j of request r survives with chance S(r, j) = a_r^j. All S of the batch are sorted; of ``sizes`` + 1
    budgets, from nothing to everything, the one with the most expected tokens per second is taken: (requests
    + the sum of its S) / seconds of verifying so many tokens at the depth of the deepest request. ``a_r`` is
    the request's accepted over examined drafts, drawn towards that of all requests; its counts fade with
    every step, so a request without drafts goes back to the mean and is tried again. After ``probe_every``
    steps in a row without any draft one step drafts a single token per request.

    Args:
        weight: decay of a request's counts per step, and of those of all requests.
        strength: examined drafts that the mean of all requests is worth.
        start_acceptance: ``a_r`` before anything was seen.
        sizes: budgets that are priced beside the empty one.
        probe_every: steps in a row without drafts until one drafts again.

    Raises:
        ValueError: weight outside 0.001..1, strength outside 0.01..10,000, start_acceptance outside 0..1,
            sizes outside 1..4096 or probe_every below 1.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="per request: a budget for the whole batch goes to the drafts most likely to be accepted",
        source="vLLM DSpark (PR #47808); TETRIS (arXiv:2502.15197, second-hand); S from history is kplan's",
        why_not="vLLM budgets so for DSpark drafters alone, by their confidence; all else has one K a batch",
    )

    def __init__(
        self,
        weight: Annotated[float, FloatRange(0.01, 0.5, log=True)] = 0.1,
        strength: Annotated[float, FloatRange(0.5, 50.0, log=True)] = 16.0,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
        sizes: Annotated[int, IntRange(4, 64)] = 24,
        probe_every: Annotated[int, IntRange(8, 512)] = 64,
    ) -> None:
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.strength = checked_float("strength", strength, 0.01, 1e4)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        self.sizes = checked_int("sizes", sizes, 1, MOST_SIZES)
        self.probe_every = checked_int("probe_every", probe_every, 1)
        self._owner: I64 = np.full(_ROWS, -1, np.int64)
        self._accepted: F64 = np.zeros(_ROWS)
        self._examined: F64 = np.zeros(_ROWS)
        self._all_accepted, self._all_examined = self.start_acceptance, 1.0
        self._idle_steps = 0

    @property
    def text(self) -> str:
        """``budget``, with the values that are not the default's."""
        return policy_text("budget", self)

    def choose_k(self, step: StepView) -> I64:
        """(B,) K per request, each 0..max_k."""
        if step.max_k == 0:
            return np.zeros(step.batch, np.int64)
        chance = self._chances(step.request)
        survival = np.cumprod(np.repeat(chance[:, None], step.max_k, axis=1), axis=1).ravel()
        order = np.argsort(-survival, kind="stable")
        expected = np.concatenate(([0.0], np.cumsum(survival[order])))
        depth = np.concatenate(([0], np.maximum.accumulate(order % step.max_k + 1)))
        budgets = len(order) * np.arange(self.sizes + 1) // self.sizes
        everybody = np.full(len(budgets), step.batch)
        seconds = step.cost.seconds_of_mixes(step.batch + budgets, depth[budgets], everybody)
        best = int(budgets[np.argmax((step.batch + expected[budgets]) / seconds)])
        if best == 0:
            self._idle_steps += 1
            if self._idle_steps < self.probe_every:
                return np.zeros(step.batch, np.int64)
        self._idle_steps = 0
        if best == 0:
            return np.ones(step.batch, np.int64)
        return np.bincount(order[:best] // step.max_k, minlength=step.batch)

    def observe(self, outcome: StepOutcome) -> None:
        """Fade and add the drafts accepted and examined of each request that decoded, and of all."""
        if len(outcome.request) == 0:
            return
        at = outcome.request % _ROWS
        examined = np.minimum(outcome.accepted + 1, outcome.proposed)
        keep = np.where(self._owner[at] == outcome.request, 1.0 - self.weight, 0.0)
        self._owner[at] = outcome.request
        self._accepted[at] = keep * self._accepted[at] + outcome.accepted
        self._examined[at] = keep * self._examined[at] + examined
        if (judged := int(examined.sum())) > 0:
            fresh = self.weight / len(examined)
            self._all_accepted = (1.0 - self.weight) * self._all_accepted + fresh * int(
                outcome.accepted.sum()
            )
            self._all_examined = (1.0 - self.weight) * self._all_examined + fresh * judged

    def _chances(self, request: I64) -> F64:
        """(B,) the chance that the next draft of each request is accepted."""
        at = request % _ROWS
        mean = self._all_accepted / self._all_examined
        known = self._owner[at] == request
        own = (self._accepted[at] + self.strength * mean) / (self._examined[at] + self.strength)
        return np.where(known, own, mean)
