"""The compiled step loop of one replica, and what a policy sees of a step.

Both paths of a replica run the same functions: the fast path loops over :func:`schedule` and :func:`execute`
without Python, the Python path calls a policy between them. Identical code, identical bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kplan.engine.arrive import next_arrival, waiting
from kplan.engine.execute import execute
from kplan.engine.price import choose_oracle, offer_at, proposal_at, proposer_of, useful_at
from kplan.engine.schedule import schedule
from kplan.engine.state import (
    DECODES,
    EXPECTED,
    FINISHED,
    I64,
    LOGGED,
    PREEMPTED,
    PREFILLS,
    RUNNING,
    AnyTraces,
    Limits,
    Machine,
    Requests,
    apart_of,
)
from kplan.jit import bare, inline
from kplan.latency.compiled import StepCost

# what :func:`next_batch` answers instead of a batch size, and ``run`` when it stops
DONE = 0  # every request is finished
PAUSED = -1  # the clock reached ``until``, or as many steps as asked were run
FULL = -3  # the log of steps has no room for another
IDLE = -2  # nothing to do before the next arrival, which is not known yet

# how K is chosen without Python
BY_TABLE = 0
BY_ORACLE = 1


@njit(cache=True)
def look(
    req: Requests, m: Machine, limits: Limits, traces: AnyTraces, last: I64, with_future: bool
) -> tuple[I64, I64, I64, int, int]:
    """What a policy sees of the scheduled batch, copied out.

    Args:
        last: (2, n) drafts proposed and accepted in each request's latest observed decode step.
        with_future: also look up the useful drafts of the coming proposal.

    Returns:
        rows: (B,) rows of the batch that run in this step.
        decoding: (3, D) of those of them that decode: row, request, the proposer that its array is of.
        seen: (5 + P, B) request, position, context, last proposed, last accepted, and drafts that each
            proposer has for the coming proposal; (5 + 2P, B) ``with_future``: useful ones of them.
        kv_tokens: sum of the contexts.
        waits: requests that wait for admission.
    """
    count, seats = m.counters, m.rows
    batch, proposers, apart = count[DECODES] + count[PREFILLS], len(m.proposer_steps), apart_of(traces)
    rows = np.empty(batch, np.int64)
    decoding = np.zeros((3, count[DECODES]), np.int64)
    seen = np.empty((5 + proposers * (2 if with_future else 1), batch), np.int64)
    i = d = kv_tokens = 0
    for row in range(count[RUNNING]):
        if seats[row].chunk == 0:
            continue
        r = seats[row].running
        at = req[r].trace_at
        had = 0
        if apart > 0:
            had = proposer_of(at, apart)
            at -= had * apart
        rows[i] = row
        if seats[row].decodes == 1:
            decoding[0, d], decoding[1, d], decoding[2, d] = row, r, had
            d += 1
        seen[0, i] = r
        seen[1, i] = req[r].emitted
        seen[2, i] = req[r].prompt_len + req[r].emitted
        seen[3, i] = last[0, r]
        seen[4, i] = last[1, r]
        kv_tokens += seen[2, i]
        c = proposal_at(req, m, limits, traces, row)
        for p in range(5, 5 + proposers):
            seen[p, i] = offer_at(req, traces.drafted, r, at, c, limits.max_k)
            if with_future:
                seen[p + proposers, i] = useful_at(req, limits, traces, r, at, c)
            at += apart
        i += 1
    return rows, decoding, seen, kv_tokens, waiting(m)


@bare
def seat(answer: I64, rows: I64, most: int, to: I64) -> tuple[int, int]:
    """Put an ``answer`` (B,) per request at its row of ``to``, cut to ``most``; returns its lowest and its
    highest as cut."""
    lowest, highest = answer[0], min(answer[0], most)
    for i in range(len(rows)):
        lowest = min(lowest, answer[i])
        to[rows[i]] = min(answer[i], most)
        highest = max(highest, to[rows[i]])
    return lowest, highest


@inline
def next_batch(req: Requests, m: Machine, limits: Limits, until: float) -> int:
    """Schedule the next step, the clock moved on to the next arrival where nothing can run before.

    Returns:
        Its batch size (> 0), or DONE, PAUSED, IDLE or FULL; no step starts at or after ``until`` seconds.
    """
    if 0 < len(m.log) <= m.counters[LOGGED]:
        return FULL
    while m.clock[0] < until:
        batch = schedule(req, m, limits)
        if batch > 0:
            return int(batch)
        if m.counters[FINISHED] == m.counters[EXPECTED]:
            return DONE
        if m.clock[1] < m.clock[0]:  # nothing was scheduled ahead: everybody is seen
            m.clock[1] = m.clock[0]
            continue
        if m.counters[PREEMPTED] > 0:  # the last request preempted itself: it is admitted again now
            continue
        ahead = next_arrival(req, m)
        if ahead == np.inf:
            return IDLE
        m.clock[0] = m.clock[1] = min(max(m.clock[0], ahead), until)
    return PAUSED


@bare
def run(
    req: Requests,
    m: Machine,
    limits: Limits,
    traces: AnyTraces,
    cost: StepCost,
    mode: int,
    table: I64,
    k_each: I64,
    until: float,
    steps: int,
) -> int:
    """Run whole stretches without Python: until every request is finished, the clock reaches ``until`` or
    ``steps`` were run.

    Args:
        mode: BY_TABLE or BY_ORACLE.
        table: (max_num_seqs + 1,) K by batch size, for BY_TABLE.
        k_each: (max_num_seqs,) scratch for per-request K.
        until: seconds; no step starts at or after it.
    """
    for _ in range(steps):
        batch = next_batch(req, m, limits, until)
        if batch <= 0:
            return int(batch)
        if limits.k_now and m.counters[DECODES] == 0:  # a prefill of its own: only the drafter's KV is filled
            execute(req, m, limits, traces, cost, 0, False, k_each)
        elif mode == BY_ORACLE:
            k = choose_oracle(req, m, limits, traces, cost, k_each)
            execute(req, m, limits, traces, cost, k, True, k_each)
        else:
            execute(req, m, limits, traces, cost, table[batch], False, k_each)
    return PAUSED
