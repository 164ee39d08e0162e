"""Build the next step of a replica: who runs, with how many tokens, on which KV blocks.

vLLM V1 scheduler: running requests first, in order of admission; then waiting ones first come, first served,
under the token budget, ``max_num_seqs`` and the KV blocks; a running request that finds no block preempts the
newest one, which is recomputed later. SGLang: a waiting prompt is run before, and without, decodes.
"""

from __future__ import annotations

from kplan.engine.arrive import queue_arrivals
from kplan.engine.prefix import blocks_to_revive, found, hold, keep, let_go, make_room
from kplan.engine.state import (
    ADMITTED,
    DECODES,
    FREE_BLOCKS,
    PEAK_BLOCKS,
    PREEMPTED,
    PREEMPTIONS,
    PREFILLS,
    QUEUED,
    RUNNING,
    SCHEDULED_TOKENS,
    Limits,
    Machine,
    Requests,
)
from kplan.jit import bare, inline


@inline
def _take_blocks(req: Requests, m: Machine, limits: Limits, r: int, tokens: int) -> bool:
    """Grow request ``r`` to hold ``tokens``; False, and nothing changed, when too few blocks are free."""
    more = (tokens + limits.block_tokens - 1) // limits.block_tokens - req[r].blocks - req[r].shared
    if more <= 0:
        return True
    if more > m.counters[FREE_BLOCKS]:
        return False
    m.counters[FREE_BLOCKS] -= more
    req[r].blocks += more
    if limits.unit_tokens > 0:
        make_room(m, limits)
    used = limits.total_blocks - m.counters[FREE_BLOCKS]
    m.counters[PEAK_BLOCKS] = max(m.counters[PEAK_BLOCKS], used)
    return True


@inline
def _admit(req: Requests, m: Machine, limits: Limits, r: int, hits: int, tokens: int) -> bool:
    """Let ``r`` share its first ``hits`` units and grow to ``tokens``; if it cannot, False and no change."""
    if hits > 0:
        blocks = (tokens + limits.block_tokens - 1) // limits.block_tokens
        own = blocks - hits * (limits.unit_tokens // limits.block_tokens)
        if own + blocks_to_revive(req, m, limits, r, hits) > m.counters[FREE_BLOCKS]:
            return False
        hold(req, m, limits, r, hits)
    return bool(_take_blocks(req, m, limits, r, tokens))


@inline
def free_blocks(req: Requests, m: Machine, limits: Limits, r: int) -> None:
    """Give back every block of ``r``; its units of prefix stay cached."""
    m.counters[FREE_BLOCKS] += req[r].blocks
    req[r].blocks = 0
    if req[r].units_seen > 0:
        let_go(req, m, limits, r)


@bare
def _preempt_newest(req: Requests, m: Machine, limits: Limits) -> int:
    """Push the newest running request back to the head of the queue; returns its row in the batch."""
    row = m.counters[RUNNING] - 1
    r = m.rows[row].running
    free_blocks(req, m, limits, r)
    req[r].computed = 0
    req[r].drafts = 0
    req[r].preempted += 1
    m.rows[m.counters[PREEMPTED]].stack = r
    m.counters[PREEMPTED] += 1
    m.counters[PREEMPTIONS] += 1
    m.counters[RUNNING] = row
    return int(row)


@inline
def _schedule_running(req: Requests, m: Machine, limits: Limits, budget: int) -> tuple[int, bool]:
    """Give every running request its query tokens; returns the budget left and whether any was preempted."""
    count, rows = m.counters, m.rows
    preempted = False
    row = 0
    while row < count[RUNNING]:
        r = rows[row].running
        rows[row].chunk = 0
        rows[row].decodes = 0
        have = req[r].prompt_len + req[r].emitted
        left = have - req[r].computed
        decoding = left == 1 and req[r].emitted > 0
        if budget <= 0 or (limits.prefill_first and not decoding):
            row += 1
            continue
        if decoding:
            drafts = limits.max_k if limits.k_now else req[r].drafts
            want = min(1 + drafts, budget, limits.max_len - 1 - req[r].computed)
        else:
            want = min(left, budget)
        fits = _take_blocks(req, m, limits, r, req[r].computed + want)
        while not fits:
            preempted = True
            if _preempt_newest(req, m, limits) == row:
                break
            fits = _take_blocks(req, m, limits, r, req[r].computed + want)
        if not fits:
            break
        rows[row].chunk = want
        if req[r].units_seen < req[r].units:  # drafts are not kept before they are right
            keep(req, m, limits, r, req[r].computed + (1 if decoding else want))
        if decoding:
            rows[row].decodes = 1
            if not limits.k_now:
                req[r].drafts = want - 1
            count[DECODES] += 1
        else:
            count[PREFILLS] += 1
        budget -= want
        row += 1
    return budget, preempted


@inline
def _schedule_waiting(req: Requests, m: Machine, limits: Limits, budget: int) -> int:
    """Admit waiting requests while tokens, seats and blocks last; returns the budget left."""
    count, rows = m.counters, m.rows
    now = m.clock[0]
    while budget > 0 and count[RUNNING] < limits.max_num_seqs:
        from_stack = count[PREEMPTED] > 0
        if from_stack:
            r = rows[count[PREEMPTED] - 1].stack
        elif count[ADMITTED] < count[QUEUED]:
            r = m.queue[count[ADMITTED]]
        else:
            break
        whole = req[r].prompt_len + req[r].emitted
        hits = found(req, m, limits, r, whole) if limits.unit_tokens > 0 else 0
        cached = hits * limits.unit_tokens
        want = min(whole - cached, budget)
        if not _admit(req, m, limits, r, hits, whole if limits.prefill_first else cached + want):
            break
        req[r].computed = cached
        if limits.unit_tokens > 0:
            keep(req, m, limits, r, cached + want)
        if from_stack:
            count[PREEMPTED] -= 1
        else:
            count[ADMITTED] += 1
            req[r].admitted_s = now
            req[r].cached = cached
        row = count[RUNNING]
        rows[row].running = r
        rows[row].chunk = want
        rows[row].decodes = 0
        count[RUNNING] = row + 1
        count[PREFILLS] += 1
        budget -= want
    return budget


@inline
def _continue_prefills(req: Requests, m: Machine, limits: Limits, budget: int) -> int:
    """Prefill-first flavour: go on with prompts that an earlier step left unfinished."""
    count, rows = m.counters, m.rows
    for row in range(count[RUNNING]):
        r = rows[row].running
        left = req[r].prompt_len + req[r].emitted - req[r].computed
        rows[row].chunk = 0
        rows[row].decodes = 0
        if budget <= 0 or (left == 1 and req[r].emitted > 0):
            continue
        want = min(left, budget)  # its blocks were taken when it was admitted
        rows[row].chunk = want
        if req[r].units_seen < req[r].units:
            keep(req, m, limits, r, req[r].computed + want)
        count[PREFILLS] += 1
        budget -= want
    return budget


@inline
def schedule(req: Requests, m: Machine, limits: Limits) -> int:
    """Build the next step at the present clock; returns its batch size, 0 when nothing can run now."""
    queue_arrivals(req, m, limits)
    m.counters[DECODES] = 0
    m.counters[PREFILLS] = 0
    budget = limits.max_num_batched_tokens
    if limits.prefill_first:
        left = _continue_prefills(req, m, limits, budget)
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
