"""The interface between a K-policy and the server: what it sees, what it answers, what it hears back.

A policy sees only what a server knows at that moment. It never sees future acceptance; the one exception
is the oracle, which says so (``needs_future``) and can never be exported.

A policy in ten lines:

    class CalmAtLoad:
        def __init__(self, k: int = 3, calm_batch: int = 32) -> None:
            self.k, self.calm_batch = k, calm_batch

        def choose_k(self, step: StepView) -> int:
            return self.k if step.batch <= self.calm_batch else 1

The engine calls it once per step. A policy that is a table by batch size (``TablePolicy``), or a small
automaton over arrays (``CompiledPolicy``), runs compiled, whole stretches without Python:

    def choose(state, step, seen, prices, k_each) -> int:
        return int(state[0, 0]) if step[BATCH] <= state[0, 1] else 1

    class CalmAtLoad:
        def __init__(self, k: int = 3, calm_batch: int = 32) -> None:
            self._rule = Rule(np.array([[k, calm_batch]], np.float64), choose)

        def compiled(self) -> Rule:
            return self._rule

        def choose_k(self, step: StepView) -> int:
            return self._rule.choose_k(step)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

I64: TypeAlias = NDArray[np.int64]
F64: TypeAlias = NDArray[np.float64]
Choice: TypeAlias = int | I64 | tuple[str | int | I64, int | I64]
"""What a policy answers: K, or (proposer, K) of one that combines; each for all, or (B,) by request."""

# what stands where in the arrays that a rule's functions are given (see Rule)
NOW_S: Final = 0  # of a step that asks for K, as in StepView ...
STEP_S: Final = 0  # ... and of one that was run, as in StepOutcome
BATCH: Final = 1  # of both
WAITING: Final = 2
KV_FREE_TOKENS: Final = 3
MAX_K: Final = 4

REQUEST: Final = 0  # of a request seen in a batch, as in StepView, and of one that decoded
POSITION: Final = 1
CONTEXT: Final = 2
LAST_PROPOSED: Final = 3
LAST_ACCEPTED: Final = 4
PROPOSED: Final = 1  # of a request that decoded, as in StepOutcome
ACCEPTED: Final = 2

PER_REQUEST: Final = -1
"""What a rule's ``choose`` returns when it filled ``k_each``."""

Choose: TypeAlias = Callable[[F64, F64, I64, F64, I64], int]
Learn: TypeAlias = Callable[[F64, F64, I64], None]


class StepCostView(Protocol):
    """Prices steps of the current batch with the latency model of the scenario."""

    def seconds(self, k: int) -> float:
        """Seconds of a decode step of this batch that verifies and proposes ``k`` drafts per request."""
        ...

    def seconds_by_k(self, max_k: int) -> F64:
        """(max_k + 1,) what :meth:`seconds` says of K = 0..max_k, in one call."""
        ...

    def seconds_at(self, tokens: int, depth: int) -> float:
        """Seconds of a decode step that verifies ``tokens`` in all and drafts ``depth`` deep."""
        ...

    def seconds_of_mixes(self, tokens: I64, depth: I64, drafting: I64) -> F64:
        """(n,) seconds of decode steps, in one call: each verifies ``tokens[i]`` in all, and the model
        drafter drafts ``depth[i]`` deep for ``drafting[i]`` requests; what the others verify was looked up.
        """
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
        future_accepted: (B,) int64, drafts that would be accepted by the next verification if K were large
            (of several proposers, from the last); None unless the policy declares ``needs_future``.
        proposers: names of the server's proposers; P = 1 in an ordinary scenario.
        lookups: (P,) which of them look up their drafts, which takes no passes of a drafter.
        offered: (P, B) int64, drafts that each proposer has for the coming proposal, at most ``max_k``: a
            model drafter has as many as asked, a lookup those of its match, which a server knows before it
            drafts. 0 where nothing is proposed.
        future_by_proposer: (P, B) int64, as ``future_accepted``, of each; None unless ``needs_future``.
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
    proposers: tuple[str, ...] = ()
    lookups: tuple[bool, ...] = ()
    offered: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    future_by_proposer: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class StepOutcome:
    """What one executed step did; arrays have one row per request that decoded in it.

    Attributes:
        batch: requests scheduled in that step, prefills included.
        step_s: seconds it took.
        request: (D,) int64 request numbers.
        proposed: (D,) int64 drafts verified for it.
        accepted: (D,) int64 drafts accepted (bonus excluded).
        proposer: (D,) int64 which of ``StepView.proposers`` had drafted them.
    """

    batch: int
    step_s: float
    request: NDArray[np.int64]
    proposed: NDArray[np.int64]
    accepted: NDArray[np.int64]
    proposer: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@runtime_checkable
class Policy(Protocol):
    """Chooses how many tokens to draft. ``observe`` is optional (see :class:`Observer`).

    A constructor's parameters are what ``name:key=value`` texts set and, when annotated with
    :mod:`kplan.space` ranges, what a search varies.
    """

    def choose_k(self, step: StepView) -> Choice:
        """K for the drafts proposed in this step: one for all, or one per request, shape (B,).

        Values above max_k are cut to it; negative ones are refused. On vLLM these drafts are verified in the
        next step.

        A policy that ``combines`` returns (proposer, K): a name out of ``step.proposers``, its index, or (B,)
        indices, and K as above. A request with K = 0 keeps the proposer that it has.
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


@dataclass(frozen=True, eq=False)
class Rule:
    """A policy as plain functions over arrays: the engine compiles them, Python calls them as they are.

    One source serves both ways, and both give the same bytes. The functions stand on the top level of a
    module, call nothing but what numba compiles, and keep everything in ``state``. They raise nothing (a
    ``raise`` or ``assert`` is refused; division by zero gives infinity or NaN), return whole numbers, and
    must not write beyond the arrays: compiled code does not check.

    ``choose(state, step, seen, prices, k_each)`` returns K for all, or PER_REQUEST with ``k_each`` filled:

    - ``step`` (5,) float64: NOW_S, BATCH, WAITING, KV_FREE_TOKENS, MAX_K of the step.
    - ``seen`` (B, 5) int64: REQUEST, POSITION, CONTEXT, LAST_PROPOSED, LAST_ACCEPTED of each request.
    - ``prices`` (max_k + 1,) float64: seconds of a step at each K; zeros unless ``priced``.
    - ``k_each`` (B,) int64: one K per request.

    ``learn(state, step, outcome)`` hears of each executed step, as ``observe`` does:

    - ``step`` (2,) float64: STEP_S, BATCH of that step.
    - ``outcome`` (D, 3) int64: REQUEST, PROPOSED, ACCEPTED of each request that decoded.

    Attributes:
        state: (m, n) float64, parameters and memory; the functions alone change it.
        choose: see above.
        learn: see above; None: nothing is learnt.
        priced: fill ``prices``.

    Raises:
        ValueError: ``state`` is not a C-contiguous float64 matrix.
    """

    state: F64
    choose: Choose
    learn: Learn | None = None
    priced: bool = False

    def __post_init__(self) -> None:
        state = self.state
        if state.dtype != np.float64 or state.ndim != 2 or not state.flags.c_contiguous:
            raise ValueError(
                "the state of a rule must be a C-contiguous float64 matrix, "
                f"not {state.dtype} of shape {state.shape}"
            )

    def choose_k(self, step: StepView) -> int | I64:
        """What ``choose`` says of this step: K for all, or (B,) K per request."""
        asked = np.array([step.now_s, step.batch, step.waiting, step.kv_free_tokens, step.max_k], np.float64)
        seen = np.stack(
            (step.request, step.position, step.context, step.last_proposed, step.last_accepted), axis=1
        )
        prices = step.cost.seconds_by_k(step.max_k) if self.priced else np.zeros(step.max_k + 1)
        k_each = np.zeros(len(seen), np.int64)
        k = self.choose(self.state, asked, seen, prices, k_each)
        return k_each if k == PER_REQUEST else k

    def observe(self, outcome: StepOutcome) -> None:
        """Let ``learn`` hear of this step."""
        if self.learn is not None:
            ran = np.array([outcome.step_s, outcome.batch], np.float64)
            decoded = np.stack((outcome.request, outcome.proposed, outcome.accepted), axis=1)
            self.learn(self.state, ran, decoded)


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy that a :class:`Rule` makes: the engine runs it compiled, and calls no other method of it.

    ``choose_k`` and ``observe`` hand on to those of the same rule. A class that inherits ``compiled`` and
    overrides one of them is called once per step.
    """

    def compiled(self) -> Rule:
        """The rule, the same object at every call."""
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
        combines: it chooses the proposer too, so it needs a server with several.
    """

    summary: str
    source: str
    engines: tuple[str, ...] = ()
    why_not: str = ""
    needs_future: bool = False
    combines: bool = False
