"""The compiled step of one replica: schedule, price, commit.

Both paths of a replica run these functions: the fast path loops over them without Python, the Python path
calls a policy between :func:`schedule` and :func:`execute`. Identical code, identical bytes.

Rules (vLLM V1 scheduler, ``engines/vllm``): running requests first, in order of admission; then waiting
ones first come, first served, under the token budget, ``max_num_seqs`` and the KV blocks; a running request
that finds no block preempts the newest one, which is recomputed later; the K chosen in a step governs the
drafts verified in the next.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kplan.engine.state import (
    DECODES,
    DRAFT_S,
    FINISHED,
    FREE_BLOCKS,
    I64,
    KNOWN,
    NEXT_WAITING,
    OVERHEAD_S,
    PEAK_BLOCKS,
    PREEMPTED,
    PREEMPTIONS,
    PREFILLS,
    RUNNING,
    SAMPLING_S,
    SCHEDULED_TOKENS,
    STEPS,
    VERIFY_S,
    W_ACCEPTED,
    W_BATCH,
    W_CLOSE_S,
    W_CONTEXT,
    W_DECODE_EMITTED,
    W_DECODES,
    W_EMITTED,
    W_OPEN_S,
    W_PROPOSED,
    W_STEPS,
    Limits,
    Machine,
    Requests,
    Traces,
)
from kplan.latency.compiled import StepCost, step_parts

# what ``run`` stopped for
DONE = 0  # every request is finished
PAUSED = 1  # the clock reached ``until``
IDLE = 2  # nothing to do before the next arrival, which is not known yet

# how K is chosen without Python
BY_TABLE = 0
BY_ORACLE = 1


@njit(cache=True)
def _take_blocks(req: Requests, m: Machine, limits: Limits, r: int, tokens: int) -> bool:
    """Grow request ``r`` to hold ``tokens``; False, and nothing changed, when too few blocks are free."""
    more = (tokens + limits.block_tokens - 1) // limits.block_tokens - req.blocks[r]
    if more <= 0:
        return True
    if more > m.counters[FREE_BLOCKS]:
        return False
    m.counters[FREE_BLOCKS] -= more
    req.blocks[r] += more
    used = limits.total_blocks - m.counters[FREE_BLOCKS]
    m.counters[PEAK_BLOCKS] = max(m.counters[PEAK_BLOCKS], used)
    return True


@njit(cache=True)
def _free_blocks(req: Requests, m: Machine, r: int) -> None:
    m.counters[FREE_BLOCKS] += req.blocks[r]
    req.blocks[r] = 0


@njit(cache=True)
def _preempt_newest(req: Requests, m: Machine) -> int:
    """Push the newest running request back to the head of the queue; returns its row in the batch."""
    row = m.counters[RUNNING] - 1
    r = m.running[row]
    _free_blocks(req, m, r)
    req.computed[r] = 0
    req.drafts[r] = 0
    req.preempted[r] += 1
    m.stack[m.counters[PREEMPTED]] = r
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
        r = m.running[row]
        m.chunk[row] = 0
        m.decodes[row] = 0
        have = req.prompt_len[r] + req.emitted[r]
        left = have - req.computed[r]
        decoding = left == 1 and req.emitted[r] > 0
        if budget <= 0 or (limits.prefill_first and not decoding):
            row += 1
            continue
        if decoding:
            drafts = limits.max_k if limits.k_now else req.drafts[r]
            want = min(1 + drafts, budget)
        else:
            want = min(left, budget)
        fits = _take_blocks(req, m, limits, r, req.computed[r] + want)
        while not fits:
            preempted = True
            if _preempt_newest(req, m) == row:
                break
            fits = _take_blocks(req, m, limits, r, req.computed[r] + want)
        if not fits:
            break
        m.chunk[row] = want
        if decoding:
            m.decodes[row] = 1
            if not limits.k_now:
                req.drafts[r] = want - 1
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
            r = m.stack[m.counters[PREEMPTED] - 1]
        else:
            r = m.counters[NEXT_WAITING]
            if r >= m.counters[KNOWN] or req.arrival_s[r] > now:
                break
        whole = req.prompt_len[r] + req.emitted[r]
        want = min(whole, budget)
        if not _take_blocks(req, m, limits, r, whole if limits.prefill_first else want):
            break
        if from_stack:
            m.counters[PREEMPTED] -= 1
        else:
            m.counters[NEXT_WAITING] += 1
            req.admitted_s[r] = now
        row = m.counters[RUNNING]
        m.running[row] = r
        m.chunk[row] = want
        m.decodes[row] = 0
        m.counters[RUNNING] = row + 1
        m.counters[PREFILLS] += 1
        budget -= want
    return budget


@njit(cache=True)
def _continue_prefills(req: Requests, m: Machine, budget: int) -> int:
    """Prefill-first flavour: go on with prompts that an earlier step left unfinished."""
    for row in range(m.counters[RUNNING]):
        r = m.running[row]
        left = req.prompt_len[r] + req.emitted[r] - req.computed[r]
        m.chunk[row] = 0
        m.decodes[row] = 0
        if budget <= 0 or (left == 1 and req.emitted[r] > 0):
            continue
        want = min(left, budget)  # its blocks were taken when it was admitted
        m.chunk[row] = want
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
            left, _ = _schedule_running(req, m, limits, budget)
    else:
        left, preempted = _schedule_running(req, m, limits, budget)
        if not preempted:
            left = _schedule_waiting(req, m, limits, left)
    m.counters[SCHEDULED_TOKENS] = budget - left
    return int(m.counters[DECODES] + m.counters[PREFILLS])


@njit(cache=True)
def _verdict(req: Requests, traces: Traces, r: int, drafts: int) -> int:
    """Tokens that a verification of ``drafts`` tokens emits for request ``r`` at its present position."""
    c = req.emitted[r]
    return int(min(int(traces.acc[req.trace_at[r] + c]), drafts + 1, req.output_len[r] - c))


@njit(cache=True)
def _offer(req: Requests, traces: Traces, r: int, position: int, k: int) -> int:
    """Drafts that the proposer really has at ``position`` when asked for ``k``."""
    if position >= req.output_len[r]:
        return 0
    return min(k, int(traces.drafted[req.trace_at[r] + position]))


@njit(cache=True)
def useful_drafts(req: Requests, m: Machine, limits: Limits, traces: Traces, row: int) -> int:
    """The oracle's knowledge: drafts of the coming proposal that would be accepted and still needed."""
    r = m.running[row]
    c = req.emitted[r]
    if not limits.k_now:
        if m.decodes[row] == 1:
            c += _verdict(req, traces, r, req.drafts[r])
        elif req.computed[r] + m.chunk[row] == req.prompt_len[r] + c:
            c += 1
        else:
            return 0
    elif m.decodes[row] == 0:
        return 0
    if c >= req.output_len[r]:
        return 0
    at = req.trace_at[r] + c
    useful = min(int(traces.acc[at]), req.output_len[r] - c) - 1
    return int(min(useful, int(traces.drafted[at]), limits.max_k))


@njit(cache=True)
def steady_step_s(cost: StepCost, requests: int, kv_tokens: int, tokens: int, depth: int) -> float:
    """Seconds of a decode step over ``kv_tokens`` of context: verify ``tokens``, draft ``depth`` deep."""
    qk = int(tokens * (kv_tokens / max(requests, 1)))
    parts = step_parts(cost, requests, tokens, kv_tokens, qk, 0, 0, 0, 0.0, tokens, requests, depth)
    return parts[0] + parts[1] + parts[2] + parts[3]


@njit(cache=True)
def choose_oracle(
    req: Requests, m: Machine, limits: Limits, traces: Traces, cost: StepCost, k_each: I64
) -> int:
    """Fill ``k_each`` with the useful drafts of every row, cut at the depth with the most tokens per second.

    A drafter runs as many passes as its deepest request asks for, so in a large batch one long acceptance
    is not worth the passes it costs everybody; the cut is chosen by pricing every depth. Returns that depth.
    """
    n = m.counters[RUNNING]
    total_kv = 0
    requests = 0
    at_least = np.zeros(limits.max_k + 2, np.int64)
    for row in range(n):
        k_each[row] = 0
        if m.chunk[row] == 0:
            continue
        k_each[row] = useful_drafts(req, m, limits, traces, row)
        requests += 1
        total_kv += req.prompt_len[m.running[row]] + req.emitted[m.running[row]]
        for depth in range(1, k_each[row] + 1):
            at_least[depth] += 1
    best, best_rate = 0, 0.0
    drafts = 0
    for depth in range(limits.max_k + 1):
        drafts += at_least[depth]
        tokens = requests + drafts
        rate = tokens / steady_step_s(cost, requests, total_kv, tokens, depth)
        if rate > best_rate:
            best, best_rate = depth, rate
    for row in range(n):
        k_each[row] = min(k_each[row], best)
    return best


@njit(cache=True)
def _price(
    req: Requests, m: Machine, limits: Limits, traces: Traces, cost: StepCost, k: int, each: bool, k_each: I64
) -> tuple[float, float, float, float]:
    """Seconds of the step that was scheduled. In the k_now flavour, settles this step's drafts first."""
    tokens = kv = qk = prefill_tokens = prefill_kv = 0
    prefill_qk = 0.0
    deepest = k
    if each:
        deepest = 0
        for row in range(m.counters[RUNNING]):
            if m.chunk[row] > 0:
                deepest = max(deepest, k_each[row])
    for row in range(m.counters[RUNNING]):
        q = m.chunk[row]
        if q == 0:
            continue
        r = m.running[row]
        if m.decodes[row] == 1:
            if limits.k_now:
                asked = k_each[row] if each else k
                req.drafts[r] = _offer(req, traces, r, req.emitted[r], min(asked, q - 1))
                q = 1 + req.drafts[r]
                m.chunk[row] = q
            context = req.computed[r] + 1
            tokens += q
            kv += context
            qk += q * context
        else:
            done = req.computed[r]
            prefill_tokens += q
            prefill_kv += done + q
            prefill_qk += q * (done + 0.5 * q)
    decodes, prefills = m.counters[DECODES], m.counters[PREFILLS]
    return step_parts(
        cost, decodes, tokens, kv, qk, prefills, prefill_tokens, prefill_kv, prefill_qk,
        tokens + prefills, decodes + prefills, deepest,
    )  # fmt: skip


@njit(cache=True)
def execute(
    req: Requests, m: Machine, limits: Limits, traces: Traces, cost: StepCost, k: int, each: bool, k_each: I64
) -> float:
    """Run the scheduled step with ``k`` drafts for all, or ``k_each[row]`` per row when ``each``.

    Advances the clock, emits tokens, finishes requests, proposes the next drafts; returns the seconds taken.
    """
    verify_s, draft_s, sampling_s, overhead_s = _price(req, m, limits, traces, cost, k, each, k_each)
    step_s = verify_s + draft_s + sampling_s + overhead_s
    start_s = m.clock[0]
    end_s = start_s + step_s
    batch = m.counters[DECODES] + m.counters[PREFILLS]
    known = len(req.arrival_s)
    measured = m.counters[NEXT_WAITING] > limits.window_from and m.counters[NEXT_WAITING] <= limits.window_to
    emitted = decode_emitted = proposed = accepted = context = 0
    kept = 0
    for row in range(m.counters[RUNNING]):
        r = m.running[row]
        q = m.chunk[row]
        finished = False
        if q > 0 and m.decodes[row] == 1:
            drafts = req.drafts[r]
            right = min(int(traces.acc[req.trace_at[r] + req.emitted[r]]) - 1, drafts)
            n = _verdict(req, traces, r, drafts)
            context += req.computed[r] + 1
            req.emitted[r] += n
            req.computed[r] += n
            req.steps[r] += 1
            req.proposed[r] += drafts
            req.accepted[r] += right
            emitted += n
            decode_emitted += n
            proposed += drafts
            accepted += right
            if measured:
                m.k_steps[drafts] += 1
                m.accepted_steps[right] += 1
            finished = req.emitted[r] >= req.output_len[r]
        elif q > 0:
            req.computed[r] += q
            if req.computed[r] == req.prompt_len[r] + req.emitted[r]:
                if req.emitted[r] == 0:
                    req.first_token_s[r] = end_s
                req.emitted[r] += 1
                emitted += 1
                finished = req.emitted[r] >= req.output_len[r]
        if finished:
            req.finish_s[r] = end_s
            _free_blocks(req, m, r)
            m.counters[FINISHED] += 1
            if limits.closed and m.counters[KNOWN] < known:
                req.arrival_s[m.counters[KNOWN]] = end_s
                m.counters[KNOWN] += 1
            continue
        decoding = req.computed[r] + 1 == req.prompt_len[r] + req.emitted[r] and req.emitted[r] > 0
        if q > 0 and decoding and not limits.k_now:
            asked = k_each[row] if each else k
            req.drafts[r] = _offer(req, traces, r, req.emitted[r], asked)
        m.running[kept] = r
        kept += 1
    m.counters[RUNNING] = kept
    m.counters[STEPS] += 1
    m.clock[0] = end_s
    if measured:
        s = m.sums
        if np.isnan(s[W_OPEN_S]):
            s[W_OPEN_S] = start_s
        s[W_CLOSE_S] = end_s
        s[VERIFY_S] += verify_s
        s[DRAFT_S] += draft_s
        s[SAMPLING_S] += sampling_s
        s[OVERHEAD_S] += overhead_s
        s[W_STEPS] += 1
        s[W_BATCH] += batch
        s[W_DECODES] += m.counters[DECODES]
        s[W_EMITTED] += emitted
        s[W_DECODE_EMITTED] += decode_emitted
        s[W_PROPOSED] += proposed
        s[W_ACCEPTED] += accepted
        s[W_CONTEXT] += context
        m.batch_steps[batch] += 1
    return step_s


@njit(cache=True)
def next_arrival(req: Requests, m: Machine) -> float:
    """Seconds of the next known arrival that was not admitted, infinity when there is none."""
    r = m.counters[NEXT_WAITING]
    return float(req.arrival_s[r]) if r < m.counters[KNOWN] else np.inf


@njit(cache=True)
def run(
    req: Requests,
    m: Machine,
    limits: Limits,
    traces: Traces,
    cost: StepCost,
    mode: int,
    table: I64,
    k_each: I64,
    until: float,
) -> int:
    """Run whole stretches without Python, until every request is finished or the clock reaches ``until``.

    Args:
        mode: BY_TABLE or BY_ORACLE.
        table: (max_num_seqs + 1,) K by batch size, for BY_TABLE.
        k_each: (max_num_seqs,) scratch for per-request K.
        until: seconds; no step starts at or after it.
    """
    while m.clock[0] < until:
        batch = schedule(req, m, limits)
        if batch == 0:
            if m.counters[FINISHED] == len(req.arrival_s):
                return DONE
            if (
                m.counters[PREEMPTED] > 0
            ):  # the last request preempted itself: it is admitted again now
                continue
            ahead = next_arrival(req, m)
            if ahead == np.inf:
                return IDLE
            if ahead >= until:
                m.clock[0] = until
                return PAUSED
            m.clock[0] = max(m.clock[0], ahead)
            continue
        if limits.k_now and m.counters[DECODES] == 0:  # a prefill of its own: only the drafter's KV is filled
            execute(req, m, limits, traces, cost, 0, False, k_each)
        elif mode == BY_ORACLE:
            k = choose_oracle(req, m, limits, traces, cost, k_each)
            execute(req, m, limits, traces, cost, k, True, k_each)
        else:
            execute(req, m, limits, traces, cost, table[batch], False, k_each)
    return PAUSED
