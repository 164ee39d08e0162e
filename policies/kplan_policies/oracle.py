"""The oracle: drafts only what will be accepted. An upper bound, never a policy for an engine."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kplan.policy import PolicyInfo, StepView


class Oracle:
    """K of each request = the drafts that its next verification would accept, cut at the depth that pays.

    A drafter runs as many passes as its deepest request asks for: in a large batch one long acceptance is not
    worth the passes it costs everybody. The cut is the depth with the most tokens per second.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="drafts only what will be accepted, as deep as pays: the bound of every policy",
        source="SpecDecode-Bench simulator (arXiv:2601.11580)",
        why_not="it looks at the future, which no engine can",
        needs_future=True,
    )
    text = "oracle"

    @property
    def compiled_oracle(self) -> bool:
        """The engine may run this rule compiled; a class derived from it may have another rule."""
        return type(self) is Oracle

    def choose_k(self, step: StepView) -> NDArray[np.int64]:
        """(B,) K per request, 0..max_k.

        Raises:
            ValueError: the engine did not give ``future_accepted``.
        """
        if step.future_accepted is None:
            raise ValueError(
                "the oracle needs step.future_accepted, which info.needs_future asks the engine for"
            )
        useful = np.clip(step.future_accepted, 0, step.max_k)
        at_least = step.batch - np.searchsorted(np.sort(useful), np.arange(1, step.max_k + 1))
        best, best_rate = 0, 0.0
        for depth, tokens in enumerate(step.batch + np.cumsum([0, *at_least])):
            rate = int(tokens) / step.cost.seconds_at(int(tokens), depth)
            if rate > best_rate:
                best, best_rate = depth, rate
        return np.minimum(useful, best)
