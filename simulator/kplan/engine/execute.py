"""Run a scheduled step: price it, then commit what it emits, finishes and drafts next."""

from __future__ import annotations

import numpy as np
from numba import njit

from kplan.engine.schedule import free_blocks
from kplan.engine.state import (
    BIN_BATCH_S,
    BIN_EMITTED,
    BIN_S,
    BINS,
    DECODES,
    DRAFT_S,
    FINISHED,
    I64,
    KNOWN,
    NEXT_WAITING,
    OVERHEAD_S,
    PREFILLS,
    RUNNING,
    SAMPLING_S,
    STEPS,
    VERIFY_S,
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
    emitted = decode_emitted = proposed = context = 0
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
            if measured:
                m.k_steps[drafts] += 1
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
            free_blocks(req, m, r)
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
        s[W_CONTEXT] += context
        m.batch_steps[batch] += 1
        admitted = m.counters[NEXT_WAITING] - limits.window_from - 1
        b = m.bins[admitted * BINS // (limits.window_to - limits.window_from)]
        b[BIN_S] += step_s
        b[BIN_BATCH_S] += batch * step_s
        b[BIN_EMITTED] += emitted
    return step_s
