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
def _free_blocks(req: Requests, m: Machine, r: int) -> None:
    m.counters[FREE_BLOCKS] += req[r].blocks
    req[r].blocks = 0


@njit(cache=True)
def _preempt_newest(req: Requests, m: Machine) -> int:
    """Push the newest running request back to the head of the queue; returns its row in the batch."""
    row = m.counters[RUNNING] - 1
    r = m.rows[row].running
    _free_blocks(req, m, r)
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
    c = req[r].emitted
    return int(min(int(traces.acc[req[r].trace_at + c]), drafts + 1, req[r].output_len - c))


@njit(cache=True)
def _offer(req: Requests, traces: Traces, r: int, position: int, k: int) -> int:
    """Drafts that the proposer really has at ``position`` when asked for ``k``."""
    if position >= req[r].output_len:
        return 0
    return min(k, int(traces.drafted[req[r].trace_at + position]))


@njit(cache=True)
def useful_drafts(req: Requests, m: Machine, limits: Limits, traces: Traces, row: int) -> int:
    """The oracle's knowledge: drafts of the coming proposal that would be accepted and still needed."""
    r = m.rows[row].running
    c = req[r].emitted
    if not limits.k_now:
        if m.rows[row].decodes == 1:
            c += _verdict(req, traces, r, req[r].drafts)
        elif req[r].computed + m.rows[row].chunk == req[r].prompt_len + c:
            c += 1
        else:
            return 0
    elif m.rows[row].decodes == 0:
        return 0
    if c >= req[r].output_len:
        return 0
    at = req[r].trace_at + c
    useful = min(int(traces.acc[at]), req[r].output_len - c) - 1
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
        if m.rows[row].chunk == 0:
            continue
        k_each[row] = useful_drafts(req, m, limits, traces, row)
        requests += 1
        r = m.rows[row].running
        total_kv += req[r].prompt_len + req[r].emitted
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
            if m.rows[row].chunk > 0:
                deepest = max(deepest, k_each[row])
    for row in range(m.counters[RUNNING]):
        q = m.rows[row].chunk
        if q == 0:
            continue
        r = m.rows[row].running
        if m.rows[row].decodes == 1:
            if limits.k_now:
                asked = k_each[row] if each else k
                req[r].drafts = _offer(req, traces, r, req[r].emitted, min(asked, q - 1))
                q = 1 + req[r].drafts
                m.rows[row].chunk = q
            context = req[r].computed + 1
            tokens += q
            kv += context
            qk += q * context
        else:
            done = req[r].computed
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
    known = len(req)
    measured = m.counters[NEXT_WAITING] > limits.window_from and m.counters[NEXT_WAITING] <= limits.window_to
    emitted = decode_emitted = proposed = accepted = context = 0
    kept = 0
    for row in range(m.counters[RUNNING]):
        r = m.rows[row].running
        q = m.rows[row].chunk
        finished = False
        if q > 0 and m.rows[row].decodes == 1:
            drafts = req[r].drafts
            right = min(int(traces.acc[req[r].trace_at + req[r].emitted]) - 1, drafts)
            n = _verdict(req, traces, r, drafts)
            context += req[r].computed + 1
            req[r].emitted += n
            req[r].computed += n
            req[r].steps += 1
            req[r].proposed += drafts
            req[r].accepted += right
            m.rows[row].proposed = drafts
            m.rows[row].accepted = right
            emitted += n
            decode_emitted += n
            proposed += drafts
            accepted += right
            if measured:
                m.k_steps[drafts] += 1
                m.accepted_steps[right] += 1
            finished = req[r].emitted >= req[r].output_len
        elif q > 0:
            req[r].computed += q
            if req[r].computed == req[r].prompt_len + req[r].emitted:
                if req[r].emitted == 0:
                    req[r].first_token_s = end_s
                req[r].emitted += 1
                emitted += 1
                finished = req[r].emitted >= req[r].output_len
        if finished:
            req[r].finish_s = end_s
            _free_blocks(req, m, r)
            m.counters[FINISHED] += 1
            if limits.closed and m.counters[KNOWN] < known:
                req[m.counters[KNOWN]].arrival_s = end_s
                m.counters[KNOWN] += 1
            continue
        decoding = req[r].computed + 1 == req[r].prompt_len + req[r].emitted and req[r].emitted > 0
        if q > 0 and decoding and not limits.k_now:
            asked = k_each[row] if each else k
            req[r].drafts = _offer(req, traces, r, req[r].emitted, asked)
        m.rows[kept].running = r
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
    return float(req[r].arrival_s) if r < m.counters[KNOWN] else np.inf


@njit(cache=True)
def waiting(req: Requests, m: Machine) -> int:
    """Requests that have arrived, or were preempted, and do not run."""
    known = m.counters[KNOWN]
    arrived = np.searchsorted(req.arrival_s[:known], m.clock[0], side="right")
    return int(max(arrived - m.counters[NEXT_WAITING], 0) + m.counters[PREEMPTED])


@njit(cache=True)
def look(
    req: Requests, m: Machine, limits: Limits, traces: Traces, last: I64, with_future: bool
) -> tuple[I64, I64, I64, I64]:
    """What a policy sees of the scheduled batch, copied out.

    Args:
        last: (2, n) drafts proposed and accepted in each request's latest observed decode step.
        with_future: also look up the useful drafts of the coming proposal.

    Returns:
        rows: (B,) rows of the batch that run in this step.
        decode_rows: (D,) those of them that decode.
        seen: (5, B) request, position, context, last proposed, last accepted.
        future: (B,) useful drafts, empty unless ``with_future``.
    """
    batch = m.counters[DECODES] + m.counters[PREFILLS]
    rows = np.empty(batch, np.int64)
    decode_rows = np.empty(m.counters[DECODES], np.int64)
    seen = np.empty((5, batch), np.int64)
    future = np.empty(batch if with_future else 0, np.int64)
    i = d = 0
    for row in range(m.counters[RUNNING]):
        if m.rows[row].chunk == 0:
            continue
        r = m.rows[row].running
        rows[i] = row
        if m.rows[row].decodes == 1:
            decode_rows[d] = row
            d += 1
        seen[0, i] = r
        seen[1, i] = req[r].emitted
        seen[2, i] = req[r].prompt_len + req[r].emitted
        seen[3, i] = last[0, r]
        seen[4, i] = last[1, r]
        if with_future:
            future[i] = useful_drafts(req, m, limits, traces, row)
        i += 1
    return rows, decode_rows, seen, future


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
            if m.counters[FINISHED] == len(req):
                return DONE
            if m.counters[PREEMPTED] > 0:  # the last request preempted itself: it is admitted again now
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
