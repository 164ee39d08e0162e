"""Precompute a :class:`StepCost`: everything of a step that depends on one count becomes a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kplan.errors import InputError
from kplan.latency import ops
from kplan.latency.compiled import LOOKUP_DRAFTER, MODEL_DRAFTER, NO_DRAFTER, AttentionCost, StepCost
from kplan.latency.ops import Array
from kplan.latency.traits import EngineTraits
from kplan.profiles import Calibration, Decoder, Drafter, DrafterKind, GemmFit, Hardware, Model

PIECEWISE_SHARE = 0.5
"""Host launch time of a layer under piecewise graphs, as a share of an eager one (assumed: attention alone
is launched by the host, a handful of the dozen kernels of a layer)."""

_NO_ATTENTION = AttentionCost(0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
_NO_TABLE = np.zeros(2)


@dataclass(frozen=True)
class Setup:
    """What a step cost is computed from."""

    hardware: Hardware
    model: Model
    drafter: Drafter | None
    calibration: Calibration
    gemm: GemmFit
    tp: int
    traits: EngineTraits


def step_cost(setup: Setup, max_tokens: int, max_seqs: int, max_k: int) -> StepCost:
    """The tables for steps of up to ``max_tokens`` tokens and ``max_seqs`` requests with K <= ``max_k``."""
    hardware, model, calibration, tp = setup.hardware, setup.model, setup.calibration, setup.tp
    most_rows = max_seqs * (max_k + 2)
    tokens = np.arange(max(max_tokens, max_seqs * (max_k + 1), 2) + 1)
    rows = np.arange(max(most_rows, 2) + 1, dtype=np.float64)
    graph_tokens = ops.padded(tokens, setup.traits.capture_sizes).astype(np.float64)
    host, sampler = calibration.host, calibration.sampler
    layer_s = host.layer_s.value * model.decoder.layers
    logits = sampler_row_s(setup, model.decoder.vocab)
    cost = StepCost(
        target_s=_layers_s(setup, model.decoder, model.weight_dtype.bytes, graph_tokens),
        head_s=_head_s(setup, model.decoder, model.weight_dtype.bytes, rows),
        attention=ops.attention_cost(
            calibration.attention, hardware, model.decoder, tp, model.kv_dtype.bytes
        ),
        graph_tokens=max(setup.traits.capture_sizes, default=0),
        graph_floor_s=layer_s * PIECEWISE_SHARE if setup.traits.piecewise else 0.0,
        eager_floor_s=layer_s,
        sample_step_s=sampler.step_s.value,
        sample_row_s=logits * sampler.bytes_per_logit.value,
        verify_sample_step_s=sampler.verify_step_s.value,
        verify_sample_row_s=logits * sampler.verify_bytes_per_logit.value,
        drafter=NO_DRAFTER,
        draft_first_s=_NO_TABLE,
        draft_next_s=_NO_TABLE,
        draft_head_s=_NO_TABLE,
        draft_attention=_NO_ATTENTION,
        draft_pass_s=0.0,
        lookup_request_s=host.lookup_request_s.value,
        lookup_token_s=host.lookup_token_s.value,
        host_step_s=host.step_s.value,
        host_request_s=host.request_s.value,
        overlap=1.0 if setup.traits.async_scheduling else 0.0,
        exposed_s=host.exposed_s.value,
        verify_request_s=0.0,
    )
    drafter = setup.drafter
    if drafter is None:
        return cost
    if drafter.kind is DrafterKind.LOOKUP or drafter.decoder is None:
        return cost._replace(drafter=LOOKUP_DRAFTER)
    one_each = ops.padded(np.arange(max(max_seqs, 2) + 1), setup.traits.capture_sizes).astype(np.float64)
    return cost._replace(
        drafter=MODEL_DRAFTER,
        draft_first_s=_draft_body_s(setup, drafter, drafter.decoder, graph_tokens, first=True),
        draft_next_s=_draft_body_s(setup, drafter, drafter.decoder, one_each, first=False),
        draft_head_s=_draft_head_s(setup, drafter, drafter.decoder, rows[: len(one_each)]),
        draft_attention=ops.attention_cost(
            calibration.attention, hardware, drafter.decoder, tp, drafter.kv_dtype.bytes
        ),
        draft_pass_s=draft_pass_s(calibration, drafter),
        verify_request_s=host.verify_request_s.value,
    )


def draft_pass_s(calibration: Calibration, drafter: Drafter) -> float:
    """Host time of one autoregressive pass: measured per head, per layer for a draft model."""
    host = calibration.host
    if drafter.kind is DrafterKind.MODEL and drafter.decoder is not None:
        return host.layer_s.value * drafter.decoder.layers
    if drafter.proposer not in host.pass_s:
        known = ", ".join(sorted(host.pass_s))
        raise InputError(
            "proposer", drafter.proposer, f"the calibration has host times for {known}", "add its pass_s"
        )
    return host.pass_s[drafter.proposer].value


def sampler_row_s(setup: Setup, vocab: int) -> float:
    """Seconds per row for one byte per logit; logits are gathered, so every rank samples all of them."""
    hardware, fit = setup.hardware, setup.calibration.elementwise
    return vocab / (hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value)


def _layers_s(setup: Setup, decoder: Decoder, weight_bytes: float, tokens: Array) -> Array:
    """Matrices, elementwise work and all-reduce of all layers, without attention."""
    hardware, tp, calibration = setup.hardware, setup.tp, setup.calibration
    layer = ops.elementwise_s(calibration.elementwise, hardware, decoder, tp, tokens)
    for matmul in decoder.blocks(tp)[-1].matmuls:
        layer = layer + ops.gemm_s(setup.gemm, hardware, tokens, matmul, weight_bytes)
    if tp > 1:
        message = tokens * decoder.hidden * ops.GEMM_BYTES_PER_VALUE
        layer = layer + 2.0 * ops.all_reduce_s(calibration.all_reduce[tp], message)
    return decoder.layers * layer


def _head_s(setup: Setup, decoder: Decoder, weight_bytes: float, rows: Array) -> Array:
    """LM head on ``rows``; several ranks gather their logits (half the traffic of an all-reduce)."""
    head = ops.gemm_s(setup.gemm, setup.hardware, rows, decoder.head_matmul(setup.tp), weight_bytes)
    if setup.tp > 1:
        gathered = rows * decoder.vocab * ops.GEMM_BYTES_PER_VALUE / 2.0
        head = head + ops.all_reduce_s(setup.calibration.all_reduce[setup.tp], gathered)
    return head


def _draft_body_s(setup: Setup, drafter: Drafter, decoder: Decoder, tokens: Array, *, first: bool) -> Array:
    """A drafter pass without attention and head; the hidden-state projection runs when it has input."""
    body = _layers_s(setup, decoder, drafter.weight_dtype.bytes, tokens)
    fusion = drafter.fusion(setup.tp)
    if fusion is not None and (first or drafter.fuses_every_pass):
        body = body + ops.gemm_s(setup.gemm, setup.hardware, tokens, fusion, drafter.weight_dtype.bytes)
    return body


def _draft_head_s(setup: Setup, drafter: Drafter, decoder: Decoder, rows: Array) -> Array:
    """The drafter's LM head and one reading of its logits for the argmax."""
    head = _head_s(setup, decoder, drafter.weight_dtype.bytes, rows)
    return head + rows * sampler_row_s(setup, decoder.vocab) * ops.GEMM_BYTES_PER_VALUE
