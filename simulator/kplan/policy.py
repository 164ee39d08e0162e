"""The interface between a K-policy and the server: what it sees, what it answers, what it hears back.

A policy sees only what a server knows at that moment. It never sees future acceptance; the one exception
is the oracle, which says so (``needs_future``) and can never be exported.

A policy in ten lines::

    class CalmAtLoad:
        def __init__(self, k: int = 3, calm_batch: int = 32) -> None:
            self.k, self.calm_batch = k, calm_batch

        def choose_k(self, step: StepView) -> int:
            return self.k if step.batch <= self.calm_batch else 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class StepCostView(Protocol):
    """Prices steps of the current batch with the latency model of the scenario."""

    def seconds(self, k: int) -> float:
        """Seconds of a decode step of this batch that verifies and proposes ``k`` drafts per request."""
        ...

    def seconds_at(self, tokens: int, depth: int) -> float:
        """Seconds of a decode step that verifies ``tokens`` in all and drafts ``depth`` deep."""
        ...


@dataclass(frozen=True)
class StepView:
    """What the server knows when it chooses K. Per-request arrays have one row per request of the batch.

    Attributes:
        now_s: the server's clock.
        batch: requests scheduled in this step, prefills included (vLLM's meaning).
        waiting: requests that wait for admission.
        kv_free_tokens: KV capacity not in use, in tokens.
        max_k: the largest K the server was started with.
        request: (B,) int64, a stable number per request.
        position: (B,) int64, output tokens emitted so far (0 while it prefills).
        context: (B,) int64, prompt + emitted tokens.
        last_proposed: (B,) int64, drafts verified in the request's latest observed decode step, 0 if none.
        last_accepted: (B,) int64, how many of them were accepted (bonus excluded).
        cost: prices a step of this batch at any K.
        future_accepted: (B,) int64, drafts that would be accepted by the next verification if K were large;
            None unless the policy declares ``needs_future``.
    """

    now_s: float
    batch: int
    waiting: int
    kv_free_tokens: int
    max_k: int
    request: NDArray[np.int64]
    position: NDArray[np.int64]
    context: NDArray[np.int64]
    last_proposed: NDArray[np.int64]
    last_accepted: NDArray[np.int64]
    cost: StepCostView
    future_accepted: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class StepOutcome:
    """What one executed step did; arrays have one row per request that decoded in it.

    Attributes:
        batch: requests scheduled in that step, prefills included.
        step_s: seconds it took.
        request: (D,) int64 request numbers.
        proposed: (D,) int64 drafts verified for it.
        accepted: (D,) int64 drafts accepted (bonus excluded).
    """

    batch: int
    step_s: float
    request: NDArray[np.int64]
    proposed: NDArray[np.int64]
    accepted: NDArray[np.int64]


@runtime_checkable
class Policy(Protocol):
    """Chooses how many tokens to draft. ``observe`` is optional (see :class:`Observer`).

    A constructor's parameters are what ``name:key=value`` texts set and, when annotated with
    :mod:`kplan.space` ranges, what a search varies.
    """

    def choose_k(self, step: StepView) -> int | NDArray[np.int64]:
        """K for the drafts proposed in this step: one for all, or one per request, shape (B,).

        Values above max_k are cut to it; negative ones are refused. On vLLM these drafts are verified in the
        next step.
        """
        ...


@runtime_checkable
class Observer(Protocol):
    """A policy that learns from executed steps."""

    def observe(self, outcome: StepOutcome) -> None:
        """Called once per executed step, in order, when the engine would know its result."""
        ...


@runtime_checkable
class TablePolicy(Protocol):
    """A policy whose K depends on the batch size alone: the engine runs it compiled."""

    def table(self, max_batch: int) -> NDArray[np.int64]:
        """(max_batch + 1,) K for every batch size; entry 0 is unused."""
        ...


@dataclass(frozen=True)
class PolicyInfo:
    """What a policy class says of itself (class attribute ``info``).

    Attributes:
        summary: one line for ``kplan policies``.
        source: paper, pull request or file that defines the rule.
        engines: engines of today that can run it, for example ("vllm",); empty when none.
        why_not: the reason when ``engines`` is empty.
        needs_future: it looks at future acceptance: an upper bound, not a policy.
    """

    summary: str
    source: str
    engines: tuple[str, ...] = ()
    why_not: str = ""
    needs_future: bool = False
