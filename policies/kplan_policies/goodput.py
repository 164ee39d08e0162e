"""Goodput-greedy: the K whose expected tokens per second are highest at this batch, this moment."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from kplan.policy import PolicyInfo, StepOutcome, StepView
from kplan.space import FloatRange, IntRange
from kplan_policies._text import checked_float, checked_int, policy_text

_MAX_PRICES = 4096
"""Price rows kept (batch size x context bucket) before the cache starts afresh."""


class Goodput:
    """One K for the batch: argmax of (1 + a + ... + a^K) / step.cost.seconds(K), the smallest on a tie.

    ``a`` is the chance that the next draft token is accepted, one for the whole batch: accepted drafts over
    examined drafts (those accepted plus the first one rejected of each request; what comes after a reject
    was never judged), both summed over the batch and decayed by ``1 - weight`` per observed step.

    K = 0 observes nothing and would hold for ever, so after ``probe_every`` steps in a row at K = 0 one
    step drafts a single token per request: at most one step in ``probe_every`` pays for looking again.

    Step costs are priced once per batch size and 1/16-wide bucket of the batch's total context and then
    reused: pricing every K at every step would cost more than the rest of the policy.

    Args:
        weight: weight of the newest observed step in the running counts.
        start_acceptance: ``a`` before anything was observed, worth one examined draft.
        probe_every: steps in a row at K = 0 until one drafts again.

    Raises:
        ValueError: weight outside 0.001..1, start_acceptance outside 0..1, probe_every below 1.
    """

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
        self._accepted = self.start_acceptance
        self._examined = 1.0
        self._idle_steps = 0
        self._prices: dict[tuple[int, int, int, int], NDArray[np.float64]] = {}

    @property
    def text(self) -> str:
        """``goodput``, with the values that are not the default's."""
        return policy_text("goodput", self)

    @property
    def acceptance(self) -> float:
        """Current estimate of the chance that the next draft token is accepted, 0..1."""
        return self._accepted / self._examined

    def choose_k(self, step: StepView) -> int:
        """K for the whole batch, 0..max_k."""
        step_s = self._step_s(step)
        tokens = np.cumsum(self.acceptance ** np.arange(step.max_k + 1))
        k = int(np.argmax(tokens / step_s))
        if k > 0:
            self._idle_steps = 0
            return k
        self._idle_steps += 1
        if self._idle_steps < self.probe_every:
            return 0
        self._idle_steps = 0
        return min(1, step.max_k)

    def observe(self, outcome: StepOutcome) -> None:
        """Add the step's accepted and examined drafts to the running counts."""
        accepted = int(outcome.accepted.sum())
        examined = accepted + int(np.count_nonzero(outcome.accepted < outcome.proposed))
        if examined == 0:
            return
        keep = 1.0 - self.weight
        self._accepted = keep * self._accepted + self.weight * accepted
        self._examined = keep * self._examined + self.weight * examined

    def _step_s(self, step: StepView) -> NDArray[np.float64]:
        """(max_k + 1,) seconds of a step by K, from the cache when a like step was priced before."""
        context = int(step.context.sum())
        shift = max(context.bit_length() - 5, 0)
        key = (step.batch, step.max_k, shift, context >> shift)
        prices = self._prices.get(key)
        if prices is None:
            if len(self._prices) >= _MAX_PRICES:
                self._prices.clear()
            prices = np.array([step.cost.seconds(k) for k in range(step.max_k + 1)])
            self._prices[key] = prices
        return prices
