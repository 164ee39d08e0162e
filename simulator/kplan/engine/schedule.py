"""Build the next step of a replica: who runs, with how many tokens, on which KV blocks.

vLLM V1 scheduler: running requests first, in order of admission; then waiting ones first come, first served,
under the token budget, ``max_num_seqs`` and the KV blocks; a running request that finds no block preempts the
newest one, which is recomputed later. SGLang: a waiting prompt is run before, and without, decodes.
"""

from __future__ import annotations

from numba import njit

from kplan.engine.state import (
    DECODES,
    FREE_BLOCKS,
    KNOWN,
    NEXT_WAITING,
    PEAK_BLOCKS,
    PREEMPTED,
    PREEMPTIONS,
    PREFILLS,
    RUNNING,
    SCHEDULED_TOKENS,
    Limits,
    Machine,
    Requests,
)


@njit(cache=True)
def _take_blocks(req: Requests, m: Machine, limits: Limits, r: int, tokens: int) -> bool:
    """Grow request ``r`` to hold ``tokens``; False, and nothing changed, when too few blocks are free."""
    more = (tokens + limits.block_tokens - 1) // limits.block_tokens - req[r].blocks
    if more <= 0:
        return True
    if more > m.counters[FREE_BLOCKS]:
        return False
    m.counters[FREE_BLOCKS] -= more
    req[r].blocks += more
    used = limits.total_blocks - m.counters[FREE_BLOCKS]
    m.counters[PEAK_BLOCKS] = max(m.counters[PEAK_BLOCKS], used)
    return True


@njit(cache=True)
def free_blocks(req: Requests, m: Machine, r: int) -> None:
    m.counters[FREE_BLOCKS] += req[r].blocks
    req[r].blocks = 0


@njit(cache=True)
def _preempt_newest(req: Requests, m: Machine) -> int:
    """Push the newest running request back to the head of the queue; returns its row in the batch."""
    row = m.counters[RUNNING] - 1
    r = m.rows[row].running
    free_blocks(req, m, r)
    req[r].computed = 0
    req[r].drafts = 0
    req[r].preempted += 1
    m.rows[m.counters[PREEMPTED]].stack = r
    m.counters[PREEMPTED] += 1
    m.counters[PREEMPTIONS] += 1
    m.counters[RUNNING] = row
    return int(row)


@njit(cache=True)
def _schedule_running(req: Requests, m: Machine, limits: Limits, budget: int) -> tuple[int, bool]:
    """Give every running request its query tokens; returns the budget left and whether any was preempted."""
    preempted = False
    row = 0
    while row < m.counters[RUNNING]:
        r = m.rows[row].running
        m.rows[row].chunk = 0
        m.rows[row].decodes = 0
        have = req[r].prompt_len + req[r].emitted
        left = have - req[r].computed
        decoding = left == 1 and req[r].emitted > 0
        if budget <= 0 or (limits.prefill_first and not decoding):
            row += 1
            continue
        if decoding:
            drafts = limits.max_k if limits.k_now else req[r].drafts
            want = min(1 + drafts, budget)
        else:
            want = min(left, budget)
        fits = _take_blocks(req, m, limits, r, req[r].computed + want)
        while not fits:
            preempted = True
            if _preempt_newest(req, m) == row:
                break
            fits = _take_blocks(req, m, limits, r, req[r].computed + want)
        if not fits:
            break
        m.rows[row].chunk = want
        if decoding:
            m.rows[row].decodes = 1
            if not limits.k_now:
                req[r].drafts = want - 1
            m.counters[DECODES] += 1
        else:
            m.counters[PREFILLS] += 1
        budget -= want
        row += 1
    return budget, preempted


@njit(cache=True)
def _schedule_waiting(req: Requests, m: Machine, limits: Limits, budget: int) -> int:
    """Admit waiting requests while tokens, seats and blocks last; returns the budget left."""
    now = m.clock[0]
    while budget > 0 and m.counters[RUNNING] < limits.max_num_seqs:
        from_stack = m.counters[PREEMPTED] > 0
        if from_stack:
            r = m.rows[m.counters[PREEMPTED] - 1].stack
        else:
            r = m.counters[NEXT_WAITING]
            if r >= m.counters[KNOWN] or req[r].arrival_s > now:
                break
        whole = req[r].prompt_len + req[r].emitted
        want = min(whole, budget)
        if not _take_blocks(req, m, limits, r, whole if limits.prefill_first else want):
            break
        if from_stack:
            m.counters[PREEMPTED] -= 1
        else:
            m.counters[NEXT_WAITING] += 1
            req[r].admitted_s = now
        row = m.counters[RUNNING]
        m.rows[row].running = r
        m.rows[row].chunk = want
        m.rows[row].decodes = 0
        m.counters[RUNNING] = row + 1
        m.counters[PREFILLS] += 1
        budget -= want
    return budget


@njit(cache=True)
def _continue_prefills(req: Requests, m: Machine, budget: int) -> int:
    """Prefill-first flavour: go on with prompts that an earlier step left unfinished."""
    for row in range(m.counters[RUNNING]):
        r = m.rows[row].running
        left = req[r].prompt_len + req[r].emitted - req[r].computed
        m.rows[row].chunk = 0
        m.rows[row].decodes = 0
        if budget <= 0 or (left == 1 and req[r].emitted > 0):
            continue
        want = min(left, budget)  # its blocks were taken when it was admitted
        m.rows[row].chunk = want
        m.counters[PREFILLS] += 1
        budget -= want
    return budget


@njit(cache=True)
def schedule(req: Requests, m: Machine, limits: Limits) -> int:
    """Build the next step at the present clock; returns its batch size, 0 when nothing can run now."""
    m.counters[DECODES] = 0
    m.counters[PREFILLS] = 0
    budget = limits.max_num_batched_tokens
    if limits.prefill_first:
        left = _continue_prefills(req, m, budget)
        left = _schedule_waiting(req, m, limits, left)
        if m.counters[PREFILLS] == 0:
            budget = limits.max_num_seqs * (limits.max_k + 1)  # the token budget is for prompts alone
            left, _ = _schedule_running(req, m, limits, budget)
    else:
        left, preempted = _schedule_running(req, m, limits, budget)
        if not preempted:
            left = _schedule_waiting(req, m, limits, left)
    m.counters[SCHEDULED_TOKENS] = budget - left
    return int(m.counters[DECODES] + m.counters[PREFILLS])
