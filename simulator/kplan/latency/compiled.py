"""The step cost as flat arrays, priced by one compiled function that every path shares.

The engine's compiled loop, a Python policy's ``step.cost`` and the vectorised grid all call
:func:`step_parts`, so there is one formula and no second opinion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

NO_DRAFTER = 0
MODEL_DRAFTER = 1
LOOKUP_DRAFTER = 2


class AttentionCost(NamedTuple):
    """Attention of all layers of one model on one rank (see :class:`kplan.profiles.AttentionFit`).

    Seconds: per launch, per request, per KV token read, per query token moved, per query x context pair;
    then the same for prefill chunks.
    """

    launch_s: float
    request_s: float
    kv_token_s: float
    query_s: float
    pair_s: float
    p: float
    prefill_query_s: float
    prefill_kv_token_s: float
    prefill_pair_s: float


class StepCost(NamedTuple):
    """Everything :func:`step_parts` needs, precomputed for one model, GPU, drafter and engine.

    Tables are indexed by a count and extended along their last slope above their end.

    Attributes:
        target_s: (T + 1,) matrices, elementwise work and all-reduce of the target by tokens, padded.
        head_s: (R + 1,) the target's LM head by rows.
        attention: of the target.
        graph_tokens: largest captured graph; steps above it are launched eagerly.
        graph_floor_s, eager_floor_s: host time to launch a captured and an eager target pass.
        sample_step_s, sample_row_s: plain sampler.
        verify_sample_step_s, verify_sample_row_s: rejection sampler, used when drafts are verified.
        drafter: NO_DRAFTER, MODEL_DRAFTER or LOOKUP_DRAFTER.
        draft_first_s: (T + 1,) the drafter's first pass by tokens; draft_next_s: (B + 1,) a later one.
        draft_head_s: (B + 1,) LM head and argmax of one pass by requests.
        draft_attention: of the drafter.
        draft_pass_s: host time of one pass.
        lookup_request_s, lookup_token_s: of a lookup drafter.
        host_step_s, host_request_s: scheduling.
        overlap: 1.0 when the GPU hides scheduling, else 0.0.
        exposed_s: what stays visible when it does.
        verify_request_s: host work per request on verified drafts of a model drafter.
    """

    target_s: NDArray[np.float64]
    head_s: NDArray[np.float64]
    attention: AttentionCost
    graph_tokens: int
    graph_floor_s: float
    eager_floor_s: float
    sample_step_s: float
    sample_row_s: float
    verify_sample_step_s: float
    verify_sample_row_s: float
    drafter: int
    draft_first_s: NDArray[np.float64]
    draft_next_s: NDArray[np.float64]
    draft_head_s: NDArray[np.float64]
    draft_attention: AttentionCost
    draft_pass_s: float
    lookup_request_s: float
    lookup_token_s: float
    host_step_s: float
    host_request_s: float
    overlap: float
    exposed_s: float
    verify_request_s: float


@njit(cache=True)
def _at(table: NDArray[np.float64], count: int) -> float:
    last = len(table) - 1
    value = float(table[min(count, last)])
    if count > last:
        value += (count - last) * float(table[last] - table[last - 1])
    return value


@njit(cache=True)
def _decode_attention(cost: AttentionCost, requests: float, queries: float, kv: float, pairs: float) -> float:
    """Smooth maximum of per-request work and memory traffic; the flops of K+1 queries are a plain bound."""
    work = requests * cost.request_s
    traffic = kv * cost.kv_token_s + queries * cost.query_s
    high, low = max(work, traffic), min(work, traffic)
    if low <= 0.0:
        return max(high, pairs * cost.pair_s)
    smooth: float = high * (1.0 + (low / high) ** cost.p) ** (1.0 / cost.p)
    return max(smooth, pairs * cost.pair_s)


@njit(cache=True)
def _pass_s(
    host_s: float,
    rest_s: float,
    cost: AttentionCost,
    requests: float,
    queries: float,
    kv: float,
    pairs: float,
) -> float:
    """A drafter pass: the longer of host and GPU, whose part beside decode attention is ``rest_s``."""
    most = requests * cost.request_s + kv * cost.kv_token_s + queries * cost.query_s + pairs * cost.pair_s
    if rest_s + most <= host_s:  # the sum bounds the smooth maximum, so its powers need not be taken
        return host_s
    return max(host_s, rest_s + _decode_attention(cost, requests, queries, kv, pairs))


# Inlined into its callers: passing this many fields by value costs as much as the arithmetic.
@njit(cache=True, forceinline=True)
def step_parts(
    cost: StepCost,
    decode_requests: int,
    decode_tokens: int,
    decode_kv_tokens: int,
    decode_qk_tokens: int,
    prefill_requests: int,
    prefill_tokens: int,
    prefill_kv_tokens: int,
    prefill_qk_tokens: float,
    sampled_rows: int,
    draft_requests: int,
    draft_k: int,
) -> tuple[float, float, float, float]:
    """Seconds of one step: (verify, draft, sampling, overhead). Arguments as in StepShape.

    A step without tokens costs nothing. With a model drafter the first drafter pass always runs, over every
    token of the step, so that its KV cache stays current (draft_k = 0 included); each of the draft_k passes
    takes the longer of its GPU work and its host time.
    """
    tokens = decode_tokens + prefill_tokens
    if tokens <= 0:
        return 0.0, 0.0, 0.0, 0.0
    verifies = decode_tokens > decode_requests

    attention = cost.attention
    verify = (
        _at(cost.target_s, tokens)
        + _at(cost.head_s, sampled_rows)
        + attention.launch_s
        + _decode_attention(attention, decode_requests, decode_tokens, decode_kv_tokens, decode_qk_tokens)
        + prefill_tokens * attention.prefill_query_s
        + prefill_kv_tokens * attention.prefill_kv_token_s
        + prefill_qk_tokens * attention.prefill_pair_s
    )
    verify = max(verify, cost.eager_floor_s if tokens > cost.graph_tokens else cost.graph_floor_s)

    if verifies:
        sampling = cost.verify_sample_step_s + sampled_rows * cost.verify_sample_row_s
    else:
        sampling = cost.sample_step_s + sampled_rows * cost.sample_row_s

    draft = 0.0
    extra = 0.0
    if cost.drafter == MODEL_DRAFTER:
        own = cost.draft_attention
        drafts = draft_k > 0 and draft_requests > 0
        head = _at(cost.draft_head_s, draft_requests) if drafts else 0.0
        first = (
            _at(cost.draft_first_s, tokens)
            + head
            + own.launch_s
            + prefill_tokens * own.prefill_query_s
            + prefill_kv_tokens * own.prefill_kv_token_s
            + prefill_qk_tokens * own.prefill_pair_s
        )
        draft = _pass_s(
            cost.draft_pass_s, first, own, decode_requests, decode_tokens, decode_kv_tokens, decode_qk_tokens
        )
        if drafts and draft_k > 1:
            kv = decode_kv_tokens + prefill_kv_tokens
            later = _at(cost.draft_next_s, draft_requests) + head + own.launch_s
            draft += (draft_k - 1) * _pass_s(
                cost.draft_pass_s, later, own, draft_requests, draft_requests, kv, kv
            )
        if verifies:
            extra = decode_requests * cost.verify_request_s
    elif cost.drafter == LOOKUP_DRAFTER and draft_k > 0:
        kv = decode_kv_tokens + prefill_kv_tokens
        draft = draft_requests * cost.lookup_request_s + kv * cost.lookup_token_s

    host = cost.host_step_s + (decode_requests + prefill_requests) * cost.host_request_s
    if cost.overlap > 0.0:
        host = max(cost.exposed_s, host - (verify + draft + sampling))
    return verify, draft, sampling, host + extra


@njit(cache=True)
def price(cost: StepCost, counts: tuple[NDArray[np.float64], ...], out: NDArray[np.float64]) -> None:
    """Price a grid: ``counts`` are 11 arrays of one shape in StepShape's order, ``out`` is (4, size) in
    :func:`step_parts`'s. The arrays may be broadcast views: nothing is copied."""
    for i, at in enumerate(np.ndindex(counts[0].shape)):
        out[0, i], out[1, i], out[2, i], out[3, i] = step_parts(
            cost,
            int(counts[0][at]),
            int(counts[1][at]),
            int(counts[2][at]),
            int(counts[3][at]),
            int(counts[4][at]),
            int(counts[5][at]),
            int(counts[6][at]),
            float(counts[7][at]),
            int(counts[8][at]),
            int(counts[9][at]),
            int(counts[10][at]),
        )
