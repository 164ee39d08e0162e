"""What a scheduled step costs, what it would accept, and the oracle that knows both."""

from __future__ import annotations

from kplan.engine.state import (
    DECODES,
    F64,
    I64,
    PREFILLS,
    RUNNING,
    SWITCHED,
    U8,
    AnyTraces,
    Limits,
    Machine,
    Requests,
    apart_of,
)
from kplan.jit import bare, inline
from kplan.latency.compiled import StepCost, mixed_parts, step_parts


@inline
def verdict(req: Requests, acc: U8, r: int, drafts: int) -> int:
    """Tokens that a verification of ``drafts`` tokens emits for request ``r`` at its present position."""
    c = req[r].emitted
    return int(min(int(acc[req[r].trace_at + c]), drafts + 1, req[r].output_len - c))


@inline
def offer(req: Requests, drafted: U8, r: int, position: int, k: int) -> int:
    """Drafts that the proposer really has at ``position`` when asked for ``k``."""
    return offer_at(req, drafted, r, req[r].trace_at, position, k)


@inline
def offer_at(req: Requests, drafted: U8, r: int, trace_at: int, position: int, k: int) -> int:
    """The same of the proposer whose array of the request begins at ``trace_at``."""
    if position >= req[r].output_len:
        return 0
    return min(k, int(drafted[trace_at + position])) if len(drafted) > 0 else k


@bare
def proposer_of(trace_at: int, apart: int) -> int:
    """Which of several proposers' arrays ``trace_at`` points into; on its own, for a division may raise."""
    return trace_at // apart


@inline
def turn(req: Requests, count: I64, proposer: I64, apart: int, r: int, row: int, asked: int) -> None:
    """Let request ``r`` draft with the ``proposer`` of its row, from the same position of its array.

    Asked for no draft it stays with the one it had. What it takes before it has drafted at all is no change.
    """
    if asked == 0:
        return
    change = proposer[row] - proposer_of(req[r].trace_at, apart)
    if change != 0:
        req[r].trace_at += change * apart
        if req[r].proposed > 0:
            count[SWITCHED] += 1


@bare
def proposal_at(req: Requests, m: Machine, limits: Limits, traces: AnyTraces, row: int) -> int:
    """The position that the coming proposal starts from; the end of the output where none is made."""
    rows = m.rows
    r = rows[row].running
    c = req[r].emitted
    if not limits.k_now:
        if rows[row].decodes == 1:
            return int(c + verdict(req, traces.acc, r, req[r].drafts))
        if req[r].computed + rows[row].chunk == req[r].prompt_len + c:
            return int(c + 1)
    elif rows[row].decodes == 1:
        return int(c)
    return int(req[r].output_len)


@bare
def useful_at(req: Requests, limits: Limits, traces: AnyTraces, r: int, trace_at: int, c: int) -> int:
    """Drafts from position ``c`` of the array at ``trace_at`` that would be accepted and still needed."""
    if c >= req[r].output_len:
        return 0
    useful = min(int(traces.acc[trace_at + c]), req[r].output_len - c) - 1
    if len(traces.drafted) > 0:
        useful = min(useful, int(traces.drafted[trace_at + c]))
    return int(min(useful, limits.max_k))


@bare
def useful_drafts(req: Requests, m: Machine, limits: Limits, traces: AnyTraces, row: int) -> int:
    """The oracle's knowledge: drafts of the coming proposal that would be accepted and still needed."""
    r = m.rows[row].running
    return useful_at(req, limits, traces, r, req[r].trace_at, proposal_at(req, m, limits, traces, row))


@bare
def steady_step_s(cost: StepCost, requests: int, kv_tokens: int, tokens: int, depth: int) -> float:
    """Seconds of a decode step over ``kv_tokens`` of context: verify ``tokens``, draft ``depth`` deep."""
    qk = int(tokens * (kv_tokens / max(requests, 1)))
    parts = step_parts(cost, requests, tokens, kv_tokens, qk, 0, 0, 0, 0.0, tokens, requests, depth)
    return parts[0] + parts[1] + parts[2] + parts[3]


@bare
def price_mixes(
    cost: StepCost, requests: int, kv_tokens: int, tokens: I64, depth: I64, drafting: I64, prices: F64
) -> None:
    """Fill ``prices`` (n,) as :func:`steady_step_s` does, where ``drafting`` of the requests, of mean
    context, draft with the model drafter."""
    mean_kv = kv_tokens / max(requests, 1)
    for i in range(len(prices)):
        parts = mixed_parts(
            cost, requests, tokens[i], kv_tokens, int(tokens[i] * mean_kv), 0, 0, 0, 0.0,
            tokens[i], requests, drafting[i], int(drafting[i] * mean_kv), depth[i],
        )  # fmt: skip
        prices[i] = parts[0] + parts[1] + parts[2] + parts[3]


@bare
def several_parts(
    cost: StepCost,
    decodes: int,
    tokens: int,
    kv: int,
    qk: int,
    prefills: int,
    prefill_tokens: int,
    prefill_kv: int,
    prefill_qk: float,
    looking: int,
    drafting: int,
    draft_kv: int,
    deepest: int,
    switched: int,
) -> tuple[float, float, float, float]:
    """:func:`mixed_parts` of a step of several proposers, and what ``switched`` requests cost; apart, so that
    the loop of one proposer does not hold it."""
    verify, draft, sampling, overhead = mixed_parts(
        cost, decodes, tokens, kv, qk, prefills, prefill_tokens, prefill_kv, prefill_qk,
        tokens + prefills, looking, drafting, draft_kv, deepest,
    )  # fmt: skip
    return verify, draft, sampling, overhead + switched * cost.switch_s


@bare
def model_drafts(
    req: Requests, m: Machine, cost: StepCost, k: int, each: bool, k_each: I64
) -> tuple[int, int, int]:
    """Of several proposers, the model drafter's part in the step: requests, their context, deepest draft."""
    rows = m.rows
    drafting = kv = deepest = 0
    for row in range(m.counters[RUNNING]):
        asked = k_each[row] if each else k
        if rows[row].chunk == 0 or asked == 0 or m.proposer[row] != cost.drafter_at:
            continue
        r = rows[row].running
        drafting += 1
        kv += req[r].computed + (1 if rows[row].decodes == 1 else rows[row].chunk)
        deepest = max(deepest, asked)
    return drafting, kv, deepest


@bare
def choose_oracle(
    req: Requests, m: Machine, limits: Limits, traces: AnyTraces, cost: StepCost, k_each: I64
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
    req: Requests,
    m: Machine,
    limits: Limits,
    traces: AnyTraces,
    cost: StepCost,
    k: int,
    each: bool,
    k_each: I64,
) -> tuple[float, float, float, float]:
    """Seconds of the step that was scheduled: (verify, draft, sampling, overhead).

    In the k_now flavour, settles this step's drafts first. Of several proposers, lookups look for everybody
    before the choice, and the model drafter's later passes are over the requests that draft with it.
    """
    count, rows, drafted, apart = m.counters, m.rows, traces.drafted, apart_of(traces)
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
                if apart > 0:
                    turn(req, count, m.proposer, apart, r, row, asked)
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
    if apart > 0:
        drafting, draft_kv, deepest = model_drafts(req, m, cost, k, each, k_each)
        looking = 0 if limits.k_now and decodes == 0 else decodes + prefills
        return several_parts(
            cost, decodes, tokens, kv, qk, prefills, prefill_tokens, prefill_kv, prefill_qk,
            looking, drafting, draft_kv, deepest, count[SWITCHED],
        )  # fmt: skip
    return step_parts(
        cost, decodes, tokens, kv, qk, prefills, prefill_tokens, prefill_kv, prefill_qk,
        tokens + prefills, decodes + prefills, deepest,
    )  # fmt: skip
