"""What a scheduled step costs, what it would accept, and the oracle that knows both."""

from __future__ import annotations

from kplan.engine.state import (
    DECODES,
    I64,
    PREFILLS,
    RUNNING,
    U8,
    Limits,
    Machine,
    Requests,
    Traces,
)
from kplan.jit import bare, inline
from kplan.latency.compiled import StepCost, step_parts


@inline
def verdict(req: Requests, acc: U8, r: int, drafts: int) -> int:
    """Tokens that a verification of ``drafts`` tokens emits for request ``r`` at its present position."""
    c = req[r].emitted
    return int(min(int(acc[req[r].trace_at + c]), drafts + 1, req[r].output_len - c))


@inline
def offer(req: Requests, drafted: U8, r: int, position: int, k: int) -> int:
    """Drafts that the proposer really has at ``position`` when asked for ``k``."""
    if position >= req[r].output_len:
        return 0
    return min(k, int(drafted[req[r].trace_at + position])) if len(drafted) > 0 else k


@bare
def useful_drafts(req: Requests, m: Machine, limits: Limits, traces: Traces, row: int) -> int:
    """The oracle's knowledge: drafts of the coming proposal that would be accepted and still needed."""
    rows = m.rows
    r = rows[row].running
    c = req[r].emitted
    if not limits.k_now:
        if rows[row].decodes == 1:
            c += verdict(req, traces.acc, r, req[r].drafts)
        elif req[r].computed + rows[row].chunk == req[r].prompt_len + c:
            c += 1
        else:
            return 0
    elif rows[row].decodes == 0:
        return 0
    if c >= req[r].output_len:
        return 0
    at = req[r].trace_at + c
    useful = min(int(traces.acc[at]), req[r].output_len - c) - 1
    if len(traces.drafted) > 0:
        useful = min(useful, int(traces.drafted[at]))
    return int(min(useful, limits.max_k))


@bare
def steady_step_s(cost: StepCost, requests: int, kv_tokens: int, tokens: int, depth: int) -> float:
    """Seconds of a decode step over ``kv_tokens`` of context: verify ``tokens``, draft ``depth`` deep."""
    qk = int(tokens * (kv_tokens / max(requests, 1)))
    parts = step_parts(cost, requests, tokens, kv_tokens, qk, 0, 0, 0, 0.0, tokens, requests, depth)
    return parts[0] + parts[1] + parts[2] + parts[3]


@bare
def choose_oracle(
    req: Requests, m: Machine, limits: Limits, traces: Traces, cost: StepCost, k_each: I64
) -> int:
    """Fill ``k_each`` with the useful drafts of every row, cut at the depth with the most tokens per second.

    A drafter runs as many passes as its deepest request asks for, so in a large batch one long acceptance
    is not worth the passes it costs everybody; the cut is chosen by pricing every depth. Returns that depth.
    """
    rows = m.rows
    n = m.counters[RUNNING]
    total_kv = 0
    requests = 0
    at_least = limits.max_num_seqs  # where in ``k_each`` the rows that want so many drafts are counted
    k_each[at_least:] = 0
    for row in range(n):
        k_each[row] = 0
        if rows[row].chunk == 0:
            continue
        k_each[row] = useful_drafts(req, m, limits, traces, row)
        requests += 1
        r = rows[row].running
        total_kv += req[r].prompt_len + req[r].emitted
        for depth in range(1, k_each[row] + 1):
            k_each[at_least + depth] += 1
    best, best_rate = 0, 0.0
    drafts = 0
    for depth in range(limits.max_k + 1):
        drafts += k_each[at_least + depth]
        tokens = requests + drafts
        rate = tokens / steady_step_s(cost, requests, total_kv, tokens, depth)
        if rate > best_rate:
            best, best_rate = depth, rate
    for row in range(n):
        k_each[row] = min(k_each[row], best)
    return best


@inline
def price(
    req: Requests, m: Machine, limits: Limits, traces: Traces, cost: StepCost, k: int, each: bool, k_each: I64
) -> tuple[float, float, float, float]:
    """Seconds of the step that was scheduled: (verify, draft, sampling, overhead).

    In the k_now flavour, settles this step's drafts first.
    """
    count, rows, drafted = m.counters, m.rows, traces.drafted
    tokens = kv = qk = prefill_tokens = prefill_kv = 0
    prefill_qk = 0.0
    deepest = k
    if each:
        deepest = 0
        for row in range(count[RUNNING]):
            if rows[row].chunk > 0:
                deepest = max(deepest, k_each[row])
    for row in range(count[RUNNING]):
        q = rows[row].chunk
        if q == 0:
            continue
        r = rows[row].running
        if rows[row].decodes == 1:
            if limits.k_now:
                asked = k_each[row] if each else k
                req[r].drafts = offer(req, drafted, r, req[r].emitted, min(asked, q - 1))
                q = 1 + req[r].drafts
                rows[row].chunk = q
            context = req[r].computed + 1
            tokens += q
            kv += context
            qk += q * context
        else:
            done = req[r].computed
            prefill_tokens += q
            prefill_kv += done + q
            prefill_qk += q * (done + 0.5 * q)
    decodes, prefills = count[DECODES], count[PREFILLS]
    return step_parts(
        cost, decodes, tokens, kv, qk, prefills, prefill_tokens, prefill_kv, prefill_qk,
        tokens + prefills, decodes + prefills, deepest,
    )  # fmt: skip
