"""Views and outcomes to drive a policy with, and an i.i.d. acceptance to answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray

from kplan.policy import StepOutcome, StepView

I64 = NDArray[np.int64]
untimed = settings(deadline=None)
"""The machine may be shared: how long an example takes says nothing about it."""

Ints = Sequence[int] | NDArray[Any]


@dataclass(frozen=True)
class PricedByK:
    """Step seconds by the depth of the draft, and by each token verified where that is priced."""

    step_s: tuple[float, ...]
    token_s: float = 0.0

    def seconds(self, k: int) -> float:
        return self.step_s[k]

    def seconds_by_k(self, max_k: int) -> NDArray[np.float64]:
        return np.array(self.step_s[: max_k + 1])

    def seconds_at(self, tokens: int, depth: int) -> float:
        return self.step_s[depth] + self.token_s * tokens

    def seconds_of_mixes(self, tokens: I64, depth: I64, drafting: I64) -> NDArray[np.float64]:
        return np.array(
            [self.seconds_at(t, d if n else 0) for t, d, n in zip(tokens, depth, drafting, strict=True)]
        )


LINEAR = PricedByK(tuple(0.010 + 0.001 * k for k in range(255)))


def view(
    request: Ints,
    *,
    max_k: int = 7,
    context: int = 500,
    cost: PricedByK = LINEAR,
    future: I64 | None = None,
) -> StepView:
    """What a server knows about these requests, each with ``context`` tokens."""
    ids = np.asarray(request, np.int64)
    zeros = np.zeros(len(ids), np.int64)
    return StepView(
        now_s=0.0,
        batch=len(ids),
        waiting=0,
        kv_free_tokens=100_000,
        max_k=max_k,
        request=ids,
        position=zeros + 10,
        context=zeros + context,
        last_proposed=zeros,
        last_accepted=zeros,
        cost=cost,
        future_accepted=future,
    )


def batch_of(size: int, *, max_k: int = 7) -> StepView:
    """A view of requests 0..size-1."""
    return view(np.arange(size), max_k=max_k)


def outcome(request: Ints, proposed: Ints, accepted: Ints) -> StepOutcome:
    """The outcome of a step in which these requests decoded and none prefilled."""
    ids, offered, taken = (np.asarray(x, np.int64) for x in (request, proposed, accepted))
    return StepOutcome(batch=len(ids), step_s=0.01, request=ids, proposed=offered, accepted=taken)


def iid_depths(rng: np.random.Generator, p: float, size: int | tuple[int, ...]) -> I64:
    """Drafts accepted before the first reject when each is accepted with chance ``p``."""
    return rng.geometric(1 - p, size) - 1
