"""Precompute a :class:`StepCost`: everything of a step that depends on one count becomes a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.latency import ops
from kplan.latency.attention import UNBOUNDED
from kplan.latency.compiled import HEAD, NO_DRAFTER, TARGET, StepCost
from kplan.latency.ops import Array
from kplan.latency.traits import EngineTraits
from kplan.profiles import Block, Calibration, Decoder, Drafter, Dtype, Hardware, Model

PIECEWISE_SHARE = 0.5
"""Host launch time of a layer under piecewise graphs, as a share of an eager one (assumed: attention alone
is launched by the host, a handful of the dozen kernels of a layer)."""


@dataclass(frozen=True)
class Setup:
    """What a step cost is computed from."""

    hardware: Hardware
    model: Model
    drafter: Drafter | None
    calibration: Calibration
    tp: int
    traits: EngineTraits

    def rates(self, dtype: Dtype) -> ops.GemmRates:
        return ops.gemm_rates(self.calibration, self.hardware, dtype)

    def padded(self, most_tokens: int) -> Array:
        """Tokens that the layers compute when a step has 0..most_tokens: the next captured graph's.

        Padding counts as tokens in every matrix, in routed layers too: its rows hold stale hidden states,
        which are routed like any others (an upper bound: stale rows that are alike share their experts).
        """
        counts: NDArray[np.int64] = np.arange(most_tokens + 1)
        return ops.padded(counts, self.traits.capture_sizes).astype(np.float64)


def target_cost(setup: Setup, most: int) -> StepCost:
    """The cost without a drafter, for steps of up to ``most`` tokens and sampled rows."""
    model, tp = setup.model, setup.tp
    host, sampler = setup.calibration.host, setup.calibration.sampler
    layer_s = host.layer_s.value * model.decoder.layers
    logits = sampler_row_s(setup, model.decoder.vocab)
    tables = np.zeros((5, most + 1))
    tables[TARGET] = layers_s(setup, model.decoder, model.weight_dtype, setup.padded(most))
    tables[HEAD] = head_s(setup, model.decoder, most)
    attention = ops.attention_cost(setup.calibration, setup.hardware, model.decoder, tp, model.kv_dtype)
    return StepCost(
        tables=tables,
        attention=attention,
        graph_tokens=max(setup.traits.capture_sizes, default=0),
        graph_floor_s=layer_s * PIECEWISE_SHARE if setup.traits.piecewise else 0.0,
        eager_floor_s=0.0 if setup.hardware.is_host else layer_s,
        sample_step_s=sampler.step_s.value,
        sample_row_s=logits * sampler.bytes_per_logit.value,
        verify_sample_step_s=sampler.verify_step_s.value,
        verify_sample_row_s=logits * sampler.verify_bytes_per_logit.value,
        drafter=NO_DRAFTER,
        draft_attention=attention,
        draft_pass_s=0.0,
        draft_eager_pass_s=0.0,
        draft_catches_up=False,
        draft_passes=0,
        draft_width=1,
        draft_masks=0,
        draft_reach=UNBOUNDED,
        lookup_request_s=host.lookup_request_s.value,
        lookup_token_s=host.lookup_token_s.value,
        host_step_s=host.step_s.value,
        host_request_s=host.request_s.value,
        overlap=1.0 if setup.traits.async_scheduling else 0.0,
        exposed_s=host.exposed_s.value,
        verify_request_s=0.0,
    )


def sampler_row_s(setup: Setup, vocab: int) -> float:
    """Seconds per row for one byte per logit; logits are gathered, so every rank samples all of them."""
    hardware, fit = setup.hardware, setup.calibration.elementwise
    return vocab / (hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value)


def layers_s(setup: Setup, decoder: Decoder, dtype: Dtype, tokens: Array) -> Array:
    """Matrices, elementwise work and all-reduce of all layers, without attention."""
    rates = setup.rates(dtype)
    return sum(
        (block.layers * _layer_s(setup, decoder, rates, block, tokens) for block in decoder.blocks(setup.tp)),
        start=np.zeros_like(tokens),
    )


def _layer_s(setup: Setup, decoder: Decoder, rates: ops.GemmRates, block: Block, tokens: Array) -> Array:
    elementwise = setup.calibration.elementwise
    layer = ops.elementwise_s(
        elementwise, setup.hardware, decoder, setup.tp, tokens, routed=bool(block.routed)
    )
    for matmul in block.matmuls:
        layer = layer + ops.gemm_s(rates, tokens, matmul)
    if decoder.moe is not None:
        for matmul in block.routed:
            layer = layer + ops.routed_gemm_s(rates, tokens, matmul, decoder.moe)
    if setup.tp > 1:
        message = tokens * decoder.hidden * ops.BF16_BYTES
        layer = layer + 2.0 * ops.all_reduce_s(setup.calibration.all_reduce[setup.tp], message)
    return layer


def head_s(setup: Setup, decoder: Decoder, max_rows: int) -> Array:
    """LM head on 0..max_rows rows, bf16 always; several ranks gather their logits (half the traffic of an
    all-reduce)."""
    rows: Array = np.arange(max_rows + 1, dtype=np.float64)
    head = ops.gemm_s(setup.rates(Dtype.BF16), rows, decoder.head_matmul(setup.tp))
    if setup.tp > 1:
        gathered = rows * decoder.vocab * ops.BF16_BYTES / 2.0
        head = head + ops.all_reduce_s(setup.calibration.all_reduce[setup.tp], gathered)
    return head
