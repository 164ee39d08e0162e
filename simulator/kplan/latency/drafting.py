"""Price a drafter: as the passes it makes, each over how many tokens, with how many rows through its LM head.

| kind | passes | tokens of the first | of a later one | rows of the LM head |
|---|---|---|---|---|
| HEAD, MODEL | K, at least 1 | all of the step | 1 per request | 1 per request |
| with a tree | its depth, at least 1 | all of the step | topk per request | 1, later topk per request |
| PARALLEL | 1 | all of the step, and K masks per request | - | K per request |
| SELF | K | 1 per request | 1 per request | 1 per request |
| LOOKUP | none: CPU time by request and by token of context |||||

The branches of a tree share one read of their request's KV cache.
"""

from __future__ import annotations

import numpy as np

from kplan.errors import InputError
from kplan.latency import ops
from kplan.latency.attention import UNBOUNDED
from kplan.latency.compiled import (
    DRAFT_FIRST,
    DRAFT_HEAD,
    DRAFT_NEXT,
    LOOKUP_DRAFTER,
    MODEL_DRAFTER,
    TARGET,
    StepCost,
)
from kplan.latency.ops import Array
from kplan.latency.tables import Setup, head_s, layers_s, sampler_row_s, target_cost
from kplan.profiles import Calibration, Decoder, Drafter, DrafterKind

EAGLE = "eagle"
"""The proposer whose host time stands for heads without one of their own: in vLLM one class, EagleProposer,
runs the passes of EAGLE, EAGLE-3 and MTP heads (its parallel drafting too)."""


def step_cost(setup: Setup, max_tokens: int, max_seqs: int, max_k: int) -> StepCost:
    """The tables for steps of up to ``max_tokens`` tokens and ``max_seqs`` requests with K <= ``max_k``.

    Raises InputError when the drafter has no decoder to price, or no host time is known for its passes.
    """
    drafter = setup.drafter
    masks = max_seqs * max_k if drafter is not None and drafter.kind is DrafterKind.PARALLEL else 0
    cost = target_cost(setup, max(max_tokens + masks, max_seqs * (max_k + 2), 2))
    if drafter is None:
        return cost
    if drafter.kind is DrafterKind.LOOKUP:
        return cost._replace(drafter=LOOKUP_DRAFTER)
    verified = cost._replace(
        drafter=MODEL_DRAFTER, verify_request_s=setup.calibration.host.verify_request_s.value
    )
    if drafter.kind is DrafterKind.SELF:
        return _with_self(setup, drafter, verified)
    if drafter.decoder is None:
        raise InputError("drafter", drafter.name, f"a {drafter.kind} drafter needs a decoder", "add it")
    return _with_decoder(setup, drafter, drafter.decoder, verified)


def draft_pass_s(calibration: Calibration, drafter: Drafter, *, on_host: bool = False) -> float:
    """Host time of one pass: measured per head; per layer for a draft model, and a fixed part where the
    calibration has one (0 where not: then it is within that of the layers).

    On a CPU (``on_host``) launching a layer is part of the fixed times of its kernels.

    A proposer without a figure takes that of its head (``eagle3-tree``: eagle3's), else EAGLE's and a layer's
    launch for each layer beyond its first.
    """
    host = calibration.host
    layers = 1 if drafter.decoder is None else drafter.decoder.layers
    if drafter.kind is DrafterKind.MODEL:
        fixed = host.pass_s[drafter.proposer].value if drafter.proposer in host.pass_s else 0.0
        return fixed if on_host else fixed + host.layer_s.value * layers
    for name in (drafter.proposer, drafter.proposer.partition("-")[0]):
        if name in host.pass_s:
            return host.pass_s[name].value
    if EAGLE not in host.pass_s:
        known = ", ".join(sorted(host.pass_s))
        raise InputError(
            "proposer", drafter.proposer, f"the calibration has host times for {known}", "add its pass_s"
        )
    return host.pass_s[EAGLE].value + host.layer_s.value * (layers - 1)


def _with_decoder(setup: Setup, drafter: Drafter, decoder: Decoder, cost: StepCost) -> StepCost:
    """A drafter with layers and a KV cache of its own, which its first pass keeps current."""
    parallel = drafter.kind is DrafterKind.PARALLEL
    on_host = setup.hardware.is_host
    pass_s = draft_pass_s(setup.calibration, drafter, on_host=on_host)
    most = cost.tables.shape[1] - 1
    cost.tables[DRAFT_FIRST] = _body_s(setup, drafter, decoder, most, first=True)
    cost.tables[DRAFT_NEXT] = _body_s(setup, drafter, decoder, most, first=False)
    if on_host:  # the same processor does both, one after the other
        cost.tables[DRAFT_FIRST : DRAFT_NEXT + 1, 1:] += pass_s
        pass_s = 0.0
    if (step := setup.calibration.host.draft_step_s) is not None:
        cost.tables[DRAFT_FIRST, 1:] += step.value
    cost.tables[DRAFT_HEAD] = _argmax_s(setup, decoder, most)
    return cost._replace(
        draft_attention=ops.attention_cost(
            setup.calibration, setup.hardware, decoder, setup.tp, drafter.kv_dtype
        ),
        draft_pass_s=0.0 if setup.traits.captured_drafts else pass_s,
        draft_eager_pass_s=pass_s,
        draft_catches_up=True,
        draft_passes=1 if parallel else drafter.tree.depth if drafter.tree else 0,
        draft_width=drafter.tree.topk if drafter.tree else 1,
        draft_masks=int(parallel),
    )


def _with_self(setup: Setup, drafter: Drafter, cost: StepCost) -> StepCost:
    """The target drafts for itself on ``kv_budget`` tokens per request: its own tables, graphs and cache.

    Nothing has to be caught up with, so K = 0 costs nothing. Choosing the tokens kept is not priced.
    """
    cost.tables[DRAFT_NEXT] = cost.tables[TARGET]
    cost.tables[DRAFT_HEAD] = _argmax_s(setup, setup.model.decoder, cost.tables.shape[1] - 1)
    return cost._replace(
        draft_pass_s=cost.graph_floor_s,
        draft_eager_pass_s=cost.eager_floor_s,
        draft_reach=drafter.kv_budget or UNBOUNDED,
    )


def _body_s(setup: Setup, drafter: Drafter, decoder: Decoder, max_tokens: int, *, first: bool) -> Array:
    """A pass over 0..max_tokens tokens without attention and head; the hidden-state projection runs when it
    has input."""
    tokens = setup.padded(max_tokens)
    body = layers_s(setup, decoder, drafter.weight_dtype, tokens)
    if drafter.fusion is not None and (first or drafter.fuses_every_pass):
        body = body + ops.gemm_s(setup.rates(drafter.weight_dtype), tokens, drafter.fusion)
    return body


def _argmax_s(setup: Setup, decoder: Decoder, max_rows: int) -> Array:
    """The LM head on 0..max_rows rows and one reading of their logits for the argmax."""
    head = head_s(setup, decoder, max_rows)
    return head + np.arange(len(head)) * sampler_row_s(setup, decoder.vocab) * ops.BF16_BYTES
