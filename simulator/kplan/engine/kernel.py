"""The compiled step loop of one replica, and what a policy sees of a step.

Both paths of a replica run the same functions: the fast path loops over :func:`schedule` and :func:`execute`
without Python, the Python path calls a policy between them. Identical code, identical bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kplan.engine.arrive import next_arrival
from kplan.engine.execute import execute
from kplan.engine.price import choose_oracle, offer_at, proposal_at, useful_at
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
) -> tuple[I64, I64, I64, I64, I64]:
    """What a policy sees of the scheduled batch, copied out.

    Args:
        last: (2, n) drafts proposed and accepted in each request's latest observed decode step.
        with_future: also look up the useful drafts of the coming proposal.

    Returns:
        rows: (B,) rows of the batch that run in this step.
        decode_rows: (D,) those of them that decode.
        seen: (5, B) request, position, context, last proposed, last accepted.
        offered: (P, B) drafts that each proposer has for the coming proposal.
        future: (P, B) useful ones of them, empty unless ``with_future``.
    """
    count, seats = m.counters, m.rows
    batch = count[DECODES] + count[PREFILLS]
    rows = np.empty(batch, np.int64)
    decode_rows = np.empty(count[DECODES], np.int64)
    seen = np.empty((5, batch), np.int64)
    proposers = len(m.proposer_steps)
    offered = np.zeros((proposers, batch), np.int64)
    future = np.empty((proposers, batch if with_future else 0), np.int64)
    i = d = 0
    for row in range(count[RUNNING]):
        if seats[row].chunk == 0:
            continue
        r = seats[row].running
        rows[i] = row
        if seats[row].decodes == 1:
            decode_rows[d] = row
            d += 1
        seen[0, i] = r
        seen[1, i] = req[r].emitted
        seen[2, i] = req[r].prompt_len + req[r].emitted
        seen[3, i] = last[0, r]
        seen[4, i] = last[1, r]
        at = req[r].trace_at
        if apart_of(traces) > 0:
            at %= apart_of(traces)
        c = proposal_at(req, m, limits, traces, row)
        for p in range(proposers):
            offered[p, i] = offer_at(req, traces.drafted, r, at, c, limits.max_k)
            if with_future:
                future[p, i] = useful_at(req, limits, traces, r, at, c)
            at += apart_of(traces)
        i += 1
    return rows, decode_rows, seen, offered, future


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
