"""Seconds of single operations on one GPU: the roofline with a smooth maximum, vectorised over counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kplan.latency.compiled import AttentionCost
from kplan.profiles import AllReduceFit, AttentionFit, Decoder, ElementwiseFit, GemmFit, Hardware, Matmul

Array = NDArray[np.float64]

GEMM_BYTES_PER_VALUE = 2.0
"""Activations are bf16 on both sides of every matrix."""


def gemm_s(
    fit: GemmFit, hardware: Hardware, m: Array, matmul: Matmul, weight_bytes_per_param: float = 2.0
) -> Array:
    """Seconds of (m, k) x (k, n) for every ``m``; 0 where m is 0.

    t0 + ((bytes / (BW e_b))^p + (flops / (peak e_f))^p)^(1/p), bytes = weights + inputs + outputs.
    """
    traffic = weight_bytes_per_param * matmul.params + GEMM_BYTES_PER_VALUE * m * (matmul.n + matmul.k)
    memory_s = traffic / (hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value)
    compute_s = 2.0 * m * matmul.params / (hardware.peak_flops.value * fit.flops_eff.value)
    p = fit.p.value
    seconds: Array = fit.t0_s.value + (memory_s**p + compute_s**p) ** (1.0 / p)
    return np.where(m > 0, seconds, 0.0)


def elementwise_bytes_per_token(decoder: Decoder, tp: int) -> float:
    """Traffic of one layer's norms, rotary embedding and activation for one token (bf16).

    Two fused residual-add norms read and write the stream and the residual (8 hidden), the gate reads
    2 intermediate and writes 1, rotary reads and writes queries and keys.
    """
    rotary = 2 * (decoder.heads // tp + decoder.kv_heads_per_rank(tp)) * decoder.head_dim
    return 2.0 * (8 * decoder.hidden + 3 * decoder.intermediate / tp + rotary)


def elementwise_s(fit: ElementwiseFit, hardware: Hardware, decoder: Decoder, tp: int, tokens: Array) -> Array:
    """Seconds of one layer's elementwise work."""
    traffic = elementwise_bytes_per_token(decoder, tp) * tokens
    seconds: Array = fit.t0_s.value + traffic / (hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value)
    return np.where(tokens > 0, seconds, 0.0)


def all_reduce_s(fit: AllReduceFit, message_bytes: Array) -> Array:
    """Seconds of one all-reduce over the ranks the fit is for."""
    seconds: Array = fit.t0_s.value + message_bytes / fit.bytes_per_s.value
    return np.where(message_bytes > 0, seconds, 0.0)


def attention_cost(
    fit: AttentionFit, hardware: Hardware, decoder: Decoder, tp: int, kv_bytes_per_value: float
) -> AttentionCost:
    """Attention of all layers on one rank as seconds per count.

    A KV token is read once per request whatever the query length is; the flops grow with it.
    """
    layers, heads, kv_heads = decoder.layers, decoder.heads // tp, decoder.kv_heads_per_rank(tp)
    bandwidth = hardware.bandwidth_bytes_s.value
    read = bandwidth * fit.bandwidth_eff.value
    prefill_read = bandwidth * fit.prefill_bandwidth_eff.value
    compute = hardware.peak_flops.value * fit.flops_eff.value
    kv_bytes = 2.0 * kv_heads * decoder.head_dim * kv_bytes_per_value
    query_bytes = 2.0 * heads * decoder.head_dim * GEMM_BYTES_PER_VALUE
    pair_flops = 4.0 * heads * decoder.head_dim
    return AttentionCost(
        launch_s=layers * fit.t0_s.value,
        request_s=layers * kv_heads * fit.tile_s.value,
        kv_token_s=layers * kv_bytes / read,
        query_s=layers * query_bytes / read,
        pair_s=layers * pair_flops / compute,
        p=fit.p.value,
        prefill_query_s=layers * query_bytes / prefill_read,
        prefill_kv_token_s=layers * kv_bytes / prefill_read,
        prefill_pair_s=layers * pair_flops / compute,
    )


def padded(tokens: NDArray[np.int64], capture_sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Token counts after padding to the next captured graph; counts above the largest stay as they are."""
    if not capture_sizes:
        return tokens
    sizes = np.asarray(capture_sizes, dtype=np.int64)
    slot = np.searchsorted(sizes, tokens)
    inside = (slot < len(sizes)) & (tokens > 0)
    return np.where(inside, sizes[np.minimum(slot, len(sizes) - 1)], tokens)
