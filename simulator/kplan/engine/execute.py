"""Run a scheduled step: price it, then commit what it emits, finishes and drafts next."""

from __future__ import annotations

import numpy as np

from kplan.engine.arrive import send_next, waiting
from kplan.engine.price import offer, price, proposer_of, turn
from kplan.engine.schedule import free_blocks
from kplan.engine.state import (
    ADMITTED,
    BIN_BATCH_S,
    BIN_EMITTED,
    BIN_S,
    BINS,
    DECODES,
    DRAFT_S,
    ENDED,
    FINISHED,
    FREE_BLOCKS,
    I64,
    LAST_K,
    LOGGED,
    OVERHEAD_S,
    PREEMPTIONS,
    PREFILLS,
    RUNNING,
    SAMPLING_S,
    STEPS,
    SWITCHED,
    VERIFY_S,
    W_BATCH,
    W_CLOSE_S,
    W_CONTEXT,
    W_DECODE_EMITTED,
    W_DECODES,
    W_EMITTED,
    W_K_SWITCHES,
    W_OPEN_S,
    W_PROPOSED,
    W_STEPS,
    W_SWITCHES,
    WINDOW_FROM,
    WINDOW_SPAN,
    WINDOW_TO,
    AnyTraces,
    Limits,
    Machine,
    Requests,
    apart_of,
)
from kplan.jit import inline
from kplan.latency.compiled import StepCost


@inline
def execute(
    req: Requests,
    m: Machine,
    limits: Limits,
    traces: AnyTraces,
    cost: StepCost,
    k: int,
    each: bool,
    k_each: I64,
) -> float:
    """Run the scheduled step with ``k`` drafts for all, or ``k_each[row]`` per row when ``each``.

    Advances the clock, emits tokens, finishes requests, proposes the next drafts; returns the seconds taken.
    """
    parts = price(req, m, limits, traces, cost, k, each, k_each)
    return commit(req, m, limits, traces, parts, 0.0, k, each, k_each)


@inline
def commit(
    req: Requests,
    m: Machine,
    limits: Limits,
    traces: AnyTraces,
    parts: tuple[float, float, float, float],
    wait_s: float,
    k: int,
    each: bool,
    k_each: I64,
) -> float:
    """Take the step as run, ``wait_s`` later than its ``parts`` (see price) say; seconds taken."""
    count, rows, k_steps = m.counters, m.rows, m.k_steps
    acc, drafted, apart = traces.acc, traces.drafted, apart_of(traces)
    verify_s, draft_s, sampling_s, overhead_s = parts
    overhead_s += wait_s
    step_s = verify_s + draft_s + sampling_s + overhead_s
    start_s = m.clock[0]
    end_s = start_s + step_s
    batch = count[DECODES] + count[PREFILLS]
    measured = count[WINDOW_FROM] < count[ADMITTED] <= count[WINDOW_TO]
    used_blocks = limits.total_blocks - count[FREE_BLOCKS]
    running = count[RUNNING]
    emitted = decode_emitted = proposed = accepted = context = ended = 0
    kept = tokens = 0
    switched = count[SWITCHED]
    count[SWITCHED] = 0
    for row in range(running):
        # what a row needs stands in locals: numba cannot know that writing one record leaves another as it is
        r = rows[row].running
        q = rows[row].chunk
        tokens += q
        at, last = req[r].emitted, req[r].output_len
        drafting = False
        if q > 0 and rows[row].decodes == 1:
            drafts, computed = req[r].drafts, req[r].computed
            right = int(acc[req[r].trace_at + at])
            n = min(right, drafts + 1, last - at)
            right = min(right - 1, drafts)
            context += computed + 1
            at += n
            req[r].emitted = at
            req[r].computed = computed + n
            req[r].steps += 1
            req[r].proposed += drafts
            req[r].accepted += right
            rows[row].proposed = drafts
            rows[row].accepted = right
            decode_emitted += n
            proposed += drafts
            accepted += right
            if measured:
                k_steps[drafts] += 1
                if apart > 0 and drafts > 0:
                    m.proposer_steps[proposer_of(req[r].trace_at, apart)] += 1
            drafting = True
        elif q > 0:
            computed = req[r].computed + q
            req[r].computed = computed
            if computed == req[r].prompt_len + at:
                if at == 0:
                    req[r].first_token_s = end_s
                at += 1
                req[r].emitted = at
                emitted += 1
                drafting = True
        finished = at >= last
        if finished:
            req[r].finish_s = end_s
            free_blocks(req, m, limits, r)
            count[FINISHED] += 1
            m.ended[ended] = r
            ended += 1
            send_next(req, m, limits, r)
            continue
        if drafting and not limits.k_now:
            asked = k_each[row] if each else k
            if apart > 0:
                turn(req, count, m.proposer, apart, r, row, asked)
            req[r].drafts = offer(req, drafted, r, at, asked)
        rows[kept].running = r
        kept += 1
    emitted += decode_emitted
    other_k = 0
    if not limits.k_now or count[DECODES] > 0:  # SGLang's prefill of its own asks for nothing
        other_k = int(0 < count[LAST_K] != k + 1)
        count[LAST_K] = k + 1
    count[RUNNING] = kept
    count[ENDED] = ended
    count[STEPS] += 1
    m.clock[0], m.clock[1] = end_s, start_s
    if len(m.log) > 0:
        step = m.log[count[LOGGED]]
        count[LOGGED] += 1
        step.start_s = start_s
        step.verify_s = verify_s
        step.draft_s = draft_s
        step.sampling_s = sampling_s
        step.overhead_s = overhead_s
        step.context = context
        step.batch = batch
        step.decodes = count[DECODES]
        step.tokens = tokens
        step.k = k
        step.proposed = proposed
        step.accepted = accepted
        step.emitted = emitted
        step.decode_emitted = decode_emitted
        step.finished = ended
        step.running = running
        step.waiting = waiting(m)
        step.used_blocks = used_blocks
        step.preemptions = count[PREEMPTIONS]
        step.switches = switched
        step.measured = measured
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
        s[W_DECODES] += count[DECODES]
        s[W_EMITTED] += emitted
        s[W_DECODE_EMITTED] += decode_emitted
        s[W_PROPOSED] += proposed
        s[W_CONTEXT] += context
        s[W_SWITCHES] += switched
        s[W_K_SWITCHES] += other_k
        m.batch_steps[batch] += 1
        inside = count[ADMITTED] - count[WINDOW_FROM] - 1
        b = m.bins[min(inside * BINS // count[WINDOW_SPAN], BINS - 1)]
        b[BIN_S] += step_s
        b[BIN_BATCH_S] += batch * step_s
        b[BIN_EMITTED] += emitted
    return step_s
