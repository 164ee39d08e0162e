"""The compiled loop of a policy that is a :class:`kplan.policy.Rule`: whole stretches without Python.

A rule's functions are compiled to C functions of one signature, so that one compiled loop serves them all.
The loop shows them what ``Replica`` shows a Python policy, in the same order, and runs the same step between.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numba import cfunc, njit, types
from numba.core.errors import NumbaError

from kplan.engine.arrive import waiting
from kplan.engine.execute import execute
from kplan.engine.kernel import PAUSED, next_batch
from kplan.engine.price import steady_step_s
from kplan.engine.state import (
    DECODES,
    F64,
    FREE_BLOCKS,
    I64,
    RUNNING,
    AnyTraces,
    Limits,
    Machine,
    Requests,
)
from kplan.errors import InputError
from kplan.jit import bare, compiles, inline
from kplan.latency.compiled import StepCost
from kplan.policy import (
    ACCEPTED,
    BATCH,
    CONTEXT,
    KV_FREE_TOKENS,
    LAST_ACCEPTED,
    LAST_PROPOSED,
    MAX_K,
    NOW_S,
    PER_REQUEST,
    POSITION,
    PROPOSED,
    REQUEST,
    STEP_S,
    WAITING,
    Rule,
)

REFUSED = -4
"""What :func:`run` answers, beside what next_batch does, when the rule chose a K below 0."""

# what ``Scratch.tally`` counts
RAN = 0  # steps whose outcome was kept
HEARD = 1  # those of them that the rule has heard of
LOWEST_K = 2  # the K that was refused

DIVISION: Final = "numpy"
"""By zero a rule gets infinity or NaN, as numpy's scalars give the same function in Python."""

_STATE, _FLOATS = types.float64[:, ::1], types.float64[::1]
_ROWS, _INTS = types.int64[:, ::1], types.int64[::1]
_CHOOSE = types.int64(_STATE, _FLOATS, _ROWS, _FLOATS, _INTS)
_LEARN = types.void(_STATE, _FLOATS, _ROWS)


class Scratch(NamedTuple):
    """What the loop shows a rule, and what it keeps to show it later; S seats, L = lag + 1 steps kept."""

    step: F64  # (5,) NOW_S, BATCH, WAITING, KV_FREE_TOKENS, MAX_K
    rows: I64  # (S,) rows of the batch
    decode_rows: I64  # (S,) those of them that decode
    seen: I64  # (S, 5) REQUEST, POSITION, CONTEXT, LAST_PROPOSED, LAST_ACCEPTED
    prices: F64  # (max_k + 1,) seconds of a step by K
    answer: I64  # (S,) K by request of the batch
    k_each: I64  # (S + max_k + 1,) K by row, and room
    ran: F64  # (L, 2) STEP_S, BATCH
    decoded: I64  # (L,) requests that decoded ...
    outcomes: I64  # (L, S, 3) ... and their REQUEST, PROPOSED, ACCEPTED
    last: I64  # (2, n) drafts proposed and accepted in each request's latest step heard of
    tally: I64  # (3,) RAN, HEARD, LOWEST_K


class Automaton:
    """A rule compiled, with what the loop keeps for it between calls.

    Args:
        name: of the policy, for messages.
        rule: the policy.
        limits: the engine's bounds.
        requests: how many will be served.
        lag: steps by which ``learn`` trails the engine.

    Raises:
        InputError: a function of the rule does not compile.
    """

    def __init__(self, name: str, rule: Rule, limits: Limits, requests: int, lag: int) -> None:
        self._name, self._rule = name, rule
        self._choose = _compiled(name, rule.choose, _CHOOSE)
        self._learn = _compiled(name, rule.learn or _learns_nothing, _LEARN)
        seats, kept = limits.max_num_seqs, lag + 1

        def ints(*shape: int) -> I64:
            return np.zeros(shape, np.int64)

        self._scratch = Scratch(
            step=np.zeros(5), rows=ints(seats), decode_rows=ints(seats), seen=ints(seats, 5),
            prices=np.zeros(limits.max_k + 1), answer=ints(seats), k_each=ints(seats + limits.max_k + 1),
            ran=np.zeros((kept, 2)), decoded=ints(kept), outcomes=ints(kept, seats, 3),
            last=ints(2, requests), tally=ints(3),
        )  # fmt: skip

    def advance(
        self,
        req: Requests,
        m: Machine,
        limits: Limits,
        traces: AnyTraces,
        cost: StepCost,
        until: float,
        steps: int,
    ) -> int:
        """Run as :func:`kplan.engine.kernel.run` does, and answer as it does.

        Raises:
            InputError: the rule chose a K below 0.
        """
        rule = self._rule
        status = int(
            run(
                req, m, limits, traces, cost,
                self._choose, self._learn, rule.state, rule.priced, self._scratch, until, steps,
            )
        )  # fmt: skip
        if status == REFUSED:
            lowest = int(self._scratch.tally[LOWEST_K])
            raise InputError(
                f"policy {self._name}: choose_k", lowest, "K must be 0 or more", "mend its return"
            )
        return status


def _learns_nothing(state: F64, step: F64, outcome: I64) -> None:
    """The ``learn`` of a rule that has none."""


def _compiled(name: str, function: Callable[..., Any], signature: Any) -> Any:
    """``function`` as a C function.

    Raises:
        InputError: numba cannot compile it, it raises itself, or its K is no whole number.
    """
    what = f"policy {name}: {function.__name__}"
    try:
        if any(one.opname == "RAISE_VARARGS" for one in dis.get_instructions(function)):
            # a C function has no way to tell: numba would print the error and answer 0
            raise InputError(what, "raise or assert", "a rule cannot raise", "return a K below 0 to stop")
        compiled, answer = _as_c(function, signature)
    except (NumbaError, TypeError) as error:
        told = ": ".join(line.strip() for line in str(error).splitlines()[:2])
        bound = "numba must compile the functions of a rule"
        raise InputError(what, told, bound, "mend it, or leave out the method compiled") from error
    if signature is _CHOOSE and not isinstance(answer, types.Integer):
        # a C function would cut it to one without a word
        raise InputError(what, f"a K of type {answer}", "a whole number is needed", "round it: int(k)")
    return compiled


@cache
def _as_c(function: Callable[..., Any], signature: Any) -> tuple[Any, Any]:
    """``function`` as a C function of ``signature``, and the type that it returns by itself."""
    if not compiles():  # the loops that call it are Python too
        return function, types.int64
    try:
        typed = njit(cache=True, error_model=DIVISION)(function)
        compiled = cfunc(signature, cache=True, error_model=DIVISION)(function)
    except RuntimeError:  # it stands in no file: compiled anew in every process
        typed = njit(error_model=DIVISION)(function)
        compiled = cfunc(signature, error_model=DIVISION)(function)
    typed.compile(signature.args)
    return compiled, typed.nopython_signatures[0].return_type


@inline
def price_by_k(cost: StepCost, requests: int, kv_tokens: int, prices: F64) -> None:
    """Fill ``prices`` (max_k + 1,) with the seconds of a steady decode step of this batch at each K."""
    for k in range(len(prices)):
        prices[k] = steady_step_s(cost, requests, kv_tokens, requests * (k + 1), k)


@inline
def _show(req: Requests, m: Machine, limits: Limits, s: Scratch) -> int:
    """Fill in what a rule sees of the scheduled batch; returns the tokens of context in it."""
    kept = s.tally[RAN] % len(s.decoded)
    i = d = context = 0
    for row in range(m.counters[RUNNING]):
        if m.rows[row].chunk == 0:
            continue
        r = m.rows[row].running
        s.rows[i] = row
        if m.rows[row].decodes == 1:
            s.decode_rows[d] = row
            s.outcomes[kept, d, REQUEST] = r
            d += 1
        s.seen[i, REQUEST] = r
        s.seen[i, POSITION] = req[r].emitted
        s.seen[i, CONTEXT] = req[r].prompt_len + req[r].emitted
        s.seen[i, LAST_PROPOSED] = s.last[0, r]
        s.seen[i, LAST_ACCEPTED] = s.last[1, r]
        context += s.seen[i, CONTEXT]
        i += 1
    s.decoded[kept] = d
    s.step[NOW_S] = m.clock[0]
    s.step[BATCH] = i
    s.step[WAITING] = waiting(m)
    s.step[KV_FREE_TOKENS] = m.counters[FREE_BLOCKS] * limits.block_tokens
    s.step[MAX_K] = limits.max_k
    return context


@inline
def _seat(s: Scratch, batch: int, max_k: int) -> tuple[int, int]:
    """Move the answers per request, cut at ``max_k``, to the rows of the batch: (lowest, highest)."""
    lowest, highest = s.answer[0], 0
    for i in range(batch):
        lowest = min(lowest, s.answer[i])
        s.k_each[s.rows[i]] = k = min(s.answer[i], max_k)
        highest = max(highest, k)
    return int(lowest), int(highest)


@inline
def _keep(m: Machine, s: Scratch, batch: int, step_s: float) -> None:
    """Keep what the step did, to be heard of when the lag has passed."""
    kept = s.tally[RAN] % len(s.decoded)
    s.ran[kept, STEP_S] = step_s
    s.ran[kept, BATCH] = batch
    for d in range(s.decoded[kept]):
        row = s.decode_rows[d]
        s.outcomes[kept, d, PROPOSED] = m.rows[row].proposed
        s.outcomes[kept, d, ACCEPTED] = m.rows[row].accepted
    s.tally[RAN] += 1


@bare
def run(
    req: Requests,
    m: Machine,
    limits: Limits,
    traces: AnyTraces,
    cost: StepCost,
    choose: Any,
    learn: Any,
    state: F64,
    priced: bool,
    s: Scratch,
    until: float,
    steps: int,
) -> int:
    """Run whole stretches under a rule: until every request is finished, the clock reaches ``until`` or
    ``steps`` were run.

    Args:
        choose, learn: C functions of the rule (see :class:`kplan.policy.Rule`) ...
        state: ... their memory ...
        priced: ... and whether they want prices.
        s: what is shown and kept.
        until: seconds; no step starts at or after it.
    """
    lag = len(s.decoded) - 1
    for _ in range(steps):
        batch = next_batch(req, m, limits, until)
        if batch <= 0:
            return int(batch)
        if limits.k_now and m.counters[DECODES] == 0:  # a prefill of its own: nothing is drafted or learnt
            execute(req, m, limits, traces, cost, 0, False, s.k_each)
            continue
        context = _show(req, m, limits, s)
        if priced:
            price_by_k(cost, batch, context, s.prices)
        s.answer[:batch] = 0
        k = choose(state, s.step, s.seen[:batch], s.prices, s.answer[:batch])
        each = k == PER_REQUEST
        lowest, k = _seat(s, batch, limits.max_k) if each else (k, min(k, limits.max_k))
        if lowest < 0:
            s.tally[LOWEST_K] = lowest
            return REFUSED
        step_s = execute(req, m, limits, traces, cost, k, each, s.k_each)
        _keep(m, s, batch, step_s)
        while s.tally[RAN] - s.tally[HEARD] > lag:
            at = s.tally[HEARD] % len(s.decoded)
            outcome = s.outcomes[at, : s.decoded[at]]
            for d in range(len(outcome)):
                s.last[0, outcome[d, REQUEST]] = outcome[d, PROPOSED]
                s.last[1, outcome[d, REQUEST]] = outcome[d, ACCEPTED]
            learn(state, s.ran[at], outcome)
            s.tally[HEARD] += 1
    return PAUSED
