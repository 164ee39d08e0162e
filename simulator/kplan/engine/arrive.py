"""Who is there: arrivals known beforehand, arrivals that wait for another request's end, and the queue."""

from __future__ import annotations

import numpy as np

from kplan.engine.state import (
    ADMITTED,
    ARRIVED,
    FUTURE,
    ISSUED,
    KNOWN,
    PREEMPTED,
    QUEUED,
    Limits,
    Machine,
    Requests,
)
from kplan.jit import bare, inline


@inline
def _sooner(req: Requests, a: int, b: int) -> bool:
    """Whether request ``a`` arrives before ``b``; of two at once the lower number does."""
    return bool(req[a].arrival_s < req[b].arrival_s or (req[a].arrival_s == req[b].arrival_s and a < b))


@bare
def push_future(req: Requests, m: Machine, r: int) -> None:
    """Add ``r``, whose arrival time is set, to the heap of later arrivals."""
    heap, at = m.future, m.counters[FUTURE]
    while at > 0 and _sooner(req, r, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = r
    m.counters[FUTURE] += 1


@bare
def _pop_future(req: Requests, m: Machine) -> int:
    heap = m.future
    first = heap[0]
    m.counters[FUTURE] -= 1
    n, at = m.counters[FUTURE], 0
    last = heap[n]
    while True:
        child = 2 * at + 1
        if child >= n:
            break
        if child + 1 < n and _sooner(req, heap[child + 1], heap[child]):
            child += 1
        if not _sooner(req, heap[child], last):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = last
    return int(first)


@inline
def next_arrival(req: Requests, m: Machine) -> float:
    """Seconds of the next known arrival that is not queued yet, infinity when there is none."""
    count = m.counters
    soonest = np.inf
    if count[ARRIVED] < count[KNOWN]:
        soonest = float(req[m.source[count[ARRIVED]]].arrival_s)
    if count[FUTURE] > 0:
        soonest = min(soonest, float(req[m.future[0]].arrival_s))
    return soonest


@inline
def queue_arrivals(req: Requests, m: Machine, limits: Limits) -> None:
    """Queue everybody who has arrived by now, in order of arrival.

    Under overlap the step is scheduled when the one before it starts: who arrives later misses it.
    """
    count = m.counters
    now = m.clock[1] if limits.overlap else m.clock[0]
    while True:
        r = -1
        if count[ARRIVED] < count[KNOWN]:
            r = m.source[count[ARRIVED]]
        later = count[FUTURE] > 0 and (r < 0 or _sooner(req, m.future[0], r))
        if later:
            r = m.future[0]
        if r < 0 or req[r].arrival_s > now:
            return
        if later:
            _pop_future(req, m)
        else:
            count[ARRIVED] += 1
        m.queue[count[QUEUED]] = r
        count[QUEUED] += 1


@bare
def send_next(req: Requests, m: Machine, limits: Limits, r: int) -> None:
    """Request ``r`` ended: its client, or whoever waits for that end, comes after the pause."""
    end_s = req[r].finish_s
    if limits.closed and m.counters[ISSUED] < len(m.source):
        after = m.source[m.counters[ISSUED]]
        m.counters[ISSUED] += 1
        req[after].arrival_s = end_s + req[after].think_s
        if limits.thinks:
            push_future(req, m, after)
        else:
            m.counters[KNOWN] += 1
    if len(m.future) > 0:
        after = req[r].follower
        while after >= 0:
            req[after].arrival_s = max(req[after].arrival_s, end_s + req[after].think_s)
            push_future(req, m, after)
            after = req[after].sibling


@inline
def waiting(m: Machine) -> int:
    """Requests that have arrived, or were preempted, and do not run."""
    return int(m.counters[QUEUED] - m.counters[ADMITTED] + m.counters[PREEMPTED])
