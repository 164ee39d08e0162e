"""The step cost as flat arrays, priced by compiled functions that every path shares.

The engine's compiled loop, a Python policy's ``step.cost`` and the vectorised grid all run these functions:
there is one formula and no second opinion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kplan.jit import bare, inline
from kplan.latency.attention import AttentionCost, decode_attention, pass_s, prompt_counts

NO_DRAFTER = 0
MODEL_DRAFTER = 1
LOOKUP_DRAFTER = 2

# rows of StepCost.tables
TARGET = 0
HEAD = 1
DRAFT_FIRST = 2
DRAFT_NEXT = 3
DRAFT_HEAD = 4


class StepCost(NamedTuple):
    """Everything :func:`step_parts` needs, precomputed for one model, GPU, drafter and engine.

    Attributes:
        tables: (5, N + 1) seconds by a count, extended along their last slope above N; one array, as each one
            passed costs two reference counts per step. TARGET: matrices, elementwise work and all-reduce by
            tokens, padded. HEAD: LM head by rows. DRAFT_FIRST: a drafter pass over the step's tokens.
            DRAFT_NEXT: a later one, by its tokens. DRAFT_HEAD: LM head and argmax of one pass by rows.
            Those of a drafter that makes no passes are zero.
        attention: of the target.
        graph_tokens: largest captured graph; steps above it are launched eagerly.
        graph_floor_s, eager_floor_s: host time to launch a captured and an eager target pass.
        sample_step_s, sample_row_s: plain sampler.
        verify_sample_step_s, verify_sample_row_s: rejection sampler, used when drafts are verified.
        drafter: NO_DRAFTER, MODEL_DRAFTER or LOOKUP_DRAFTER.
        draft_attention: of the drafter; the target's where it has no layers of its own.
        draft_pass_s, draft_eager_pass_s: host time of one pass; of a later one above ``graph_tokens``.
        draft_catches_up: the first pass runs over all tokens of the step, drafts wanted or not.
        draft_passes: passes that draft; 0 means K.
        draft_width: tokens per request in a later pass.
        draft_masks: mask tokens per draft and request in the first pass (1 drafts in parallel, else 0).
        draft_reach: tokens of KV cache per request that a later pass attends to.
        lookup_request_s, lookup_token_s: of a lookup drafter.
        host_step_s, host_request_s: scheduling.
        overlap: 1.0 when the GPU hides scheduling, else 0.0.
        exposed_s: what stays visible when it does.
        verify_request_s: host work per request on verified drafts of a model drafter.
        lookups: lookup drafters beside the model drafter, which look in every step (see mixed_parts).
        drafter_at: place of the model drafter among several.
        switch_s: host time per request that changes its drafter.
    """

    tables: NDArray[np.float64]
    attention: AttentionCost
    graph_tokens: int
    graph_floor_s: float
    eager_floor_s: float
    sample_step_s: float
    sample_row_s: float
    verify_sample_step_s: float
    verify_sample_row_s: float
    drafter: int
    draft_attention: AttentionCost
    draft_pass_s: float
    draft_eager_pass_s: float
    draft_catches_up: bool
    draft_passes: int
    draft_width: int
    draft_masks: int
    draft_reach: int
    lookup_request_s: float
    lookup_token_s: float
    host_step_s: float
    host_request_s: float
    overlap: float
    exposed_s: float
    verify_request_s: float
    lookups: int = 0
    drafter_at: int = 0
    switch_s: float = 0.0


@bare
def _at(tables: NDArray[np.float64], row: int, count: int) -> float:
    last = tables.shape[1] - 1
    value = float(tables[row, min(count, last)])
    if count > last:
        value += (count - last) * float(tables[row, last] - tables[row, last - 1])
    return value


# Inlined into their callers: passing this many fields by value costs as much as the arithmetic. What depends
# on token counts alone is apart from what depends on contexts, so that a grid prices it once for them all.
@inline
def target_rest_s(cost: StepCost, tokens: int, sampled_rows: int) -> float:
    """Seconds of the target pass beside its attention's work."""
    return _at(cost.tables, TARGET, tokens) + _at(cost.tables, HEAD, sampled_rows) + cost.attention.launch_s


@inline
def verify_s(
    cost: StepCost,
    rest_s: float,
    decode_requests: int,
    decode_tokens: int,
    decode_kv_tokens: int,
    decode_qk_tokens: int,
    prefill_requests: int,
    prefill_tokens: int,
    prefill_kv_tokens: int,
    prefill_qk_tokens: float,
) -> float:
    """Seconds of the target pass: its rest, its attention, and no less than the host needs to launch it."""
    attention = cost.attention
    prompt_kv, prompt_pairs = prompt_counts(
        attention, prefill_requests, prefill_tokens, prefill_kv_tokens, prefill_qk_tokens
    )
    gpu_s = (
        rest_s
        + decode_attention(attention, decode_requests, decode_tokens, decode_kv_tokens, decode_qk_tokens)
        + prefill_tokens * attention.prefill_query_s
        + prompt_kv * attention.prefill_kv_token_s
        + prompt_pairs * attention.prefill_pair_s
    )
    eager = decode_tokens + prefill_tokens > cost.graph_tokens
    return max(gpu_s, cost.eager_floor_s if eager else cost.graph_floor_s)


@inline
def first_rest_s(
    cost: StepCost,
    decode_tokens: int,
    prefill_requests: int,
    prefill_tokens: int,
    prefill_kv_tokens: int,
    prefill_qk_tokens: float,
    draft_requests: int,
    draft_k: int,
) -> float:
    """Seconds of the drafter's pass over the step's tokens, beside its decode attention."""
    own, tables = cost.draft_attention, cost.tables
    masks = draft_k * draft_requests * cost.draft_masks
    prompt_kv, prompt_pairs = prompt_counts(
        own, prefill_requests, prefill_tokens, prefill_kv_tokens, prefill_qk_tokens
    )
    return (
        _at(tables, DRAFT_FIRST, decode_tokens + prefill_tokens + masks)
        + (_at(tables, DRAFT_HEAD, max(masks, draft_requests)) if draft_k > 0 and draft_requests > 0 else 0.0)
        + own.launch_s
        + prefill_tokens * own.prefill_query_s
        + prompt_kv * own.prefill_kv_token_s
        + prompt_pairs * own.prefill_pair_s
    )


@inline
def first_pass_s(
    cost: StepCost,
    rest_s: float,
    decode_requests: int,
    decode_tokens: int,
    decode_kv_tokens: int,
    decode_qk_tokens: int,
    prefill_kv_tokens: int,
    draft_requests: int,
    draft_k: int,
) -> float:
    """Seconds of that pass, given its rest. Mask tokens attend to the whole context of their requests."""
    masks = draft_k * draft_requests * cost.draft_masks
    pairs = decode_qk_tokens
    if masks > 0:
        pairs += draft_k * (decode_kv_tokens + prefill_kv_tokens)
    return pass_s(
        cost.draft_pass_s,
        rest_s,
        cost.draft_attention,
        decode_requests,
        decode_tokens + masks,
        decode_kv_tokens,
        pairs,
    )


@inline
def later_pass_s(cost: StepCost, draft_requests: int, kv_tokens: int) -> float:
    """Seconds of a drafter pass after that one (of SELF: of any), over contexts of ``kv_tokens`` in all."""
    own = cost.draft_attention
    rows = draft_requests * cost.draft_width
    kv = min(kv_tokens, draft_requests * cost.draft_reach)
    rest_s = _at(cost.tables, DRAFT_NEXT, rows) + _at(cost.tables, DRAFT_HEAD, rows) + own.launch_s
    host_s = cost.draft_eager_pass_s if rows > cost.graph_tokens else cost.draft_pass_s
    return pass_s(host_s, rest_s, own, draft_requests, rows, kv, cost.draft_width * kv)


@inline
def later_passes(cost: StepCost, draft_requests: int, draft_k: int) -> int:
    """How many of them a step makes."""
    if cost.drafter != MODEL_DRAFTER or draft_k <= 0 or draft_requests <= 0:
        return 0
    passes = cost.draft_passes if cost.draft_passes > 0 else draft_k
    return passes - 1 if cost.draft_catches_up else passes


@inline
def parts_of(
    cost: StepCost,
    verify: float,
    first: float,
    later: float,
    decode_requests: int,
    decode_tokens: int,
    kv_tokens: int,
    prefill_requests: int,
    sampled_rows: int,
    draft_requests: int,
    draft_k: int,
) -> tuple[float, float, float, float]:
    """(verify, draft, sampling, overhead) from the seconds of the target pass and of the drafter's passes."""
    verifies = decode_tokens > decode_requests
    if verifies:
        sampling = cost.verify_sample_step_s + sampled_rows * cost.verify_sample_row_s
    else:
        sampling = cost.sample_step_s + sampled_rows * cost.sample_row_s
    draft = 0.0
    if cost.drafter == MODEL_DRAFTER:
        draft = first + later_passes(cost, draft_requests, draft_k) * later
    elif cost.drafter == LOOKUP_DRAFTER and draft_k > 0:
        draft = draft_requests * cost.lookup_request_s + kv_tokens * cost.lookup_token_s
    host = cost.host_step_s + (decode_requests + prefill_requests) * cost.host_request_s
    if cost.overlap > 0.0:
        host = max(cost.exposed_s, host - (verify + draft + sampling))
    return verify, draft, sampling, host + (decode_requests * cost.verify_request_s if verifies else 0.0)


@inline
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

    See :func:`mixed_parts`; of one drafter, every request of the step drafts with it.
    """
    return mixed_parts(
        cost, decode_requests, decode_tokens, decode_kv_tokens, decode_qk_tokens, prefill_requests,
        prefill_tokens, prefill_kv_tokens, prefill_qk_tokens, sampled_rows, draft_requests, draft_requests,
        decode_kv_tokens + prefill_kv_tokens, draft_k,
    )  # fmt: skip


@inline
def mixed_parts(
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
    look_requests: int,
    draft_requests: int,
    draft_kv_tokens: int,
    draft_k: int,
) -> tuple[float, float, float, float]:
    """Seconds of one step: (verify, draft, sampling, overhead), where lookups may stand beside the drafter.

    The lookups look for ``look_requests`` over the whole context of the step, matches or not. Of the others,
    ``draft_requests`` with ``draft_kv_tokens`` of context draft with the model drafter, ``draft_k`` deep.

    A step without tokens costs nothing. A drafter with a KV cache of its own keeps it current: its first pass
    always runs, over every token of the step (draft_k = 0 included). Each pass takes the longer of its GPU
    work and its host time.
    """
    tokens, kv_tokens = decode_tokens + prefill_tokens, decode_kv_tokens + prefill_kv_tokens
    if tokens <= 0:
        return 0.0, 0.0, 0.0, 0.0
    verify = verify_s(
        cost, target_rest_s(cost, tokens, sampled_rows),
        decode_requests, decode_tokens, decode_kv_tokens, decode_qk_tokens,
        prefill_requests, prefill_tokens, prefill_kv_tokens, prefill_qk_tokens,
    )  # fmt: skip
    first = later = 0.0
    if cost.draft_catches_up:
        rest_s = first_rest_s(
            cost, decode_tokens, prefill_requests, prefill_tokens, prefill_kv_tokens, prefill_qk_tokens,
            draft_requests, draft_k,
        )  # fmt: skip
        first = first_pass_s(
            cost, rest_s, decode_requests, decode_tokens, decode_kv_tokens, decode_qk_tokens,
            prefill_kv_tokens, draft_requests, draft_k,
        )  # fmt: skip
    if later_passes(cost, draft_requests, draft_k) > 0:
        later = later_pass_s(cost, draft_requests, draft_kv_tokens)
    if cost.lookups > 0 and look_requests > 0:
        first += cost.lookups * (look_requests * cost.lookup_request_s + kv_tokens * cost.lookup_token_s)
    return parts_of(
        cost, verify, first, later, decode_requests, decode_tokens, kv_tokens, prefill_requests, sampled_rows,
        draft_requests, draft_k,
    )  # fmt: skip
