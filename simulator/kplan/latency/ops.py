"""Seconds of single operations on one GPU: the roofline with a smooth maximum, vectorised over counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.latency.attention import UNBOUNDED, AttentionCost
from kplan.profiles import (
    AllReduceFit,
    AttentionFit,
    Calibration,
    Decoder,
    Dtype,
    ElementwiseFit,
    GemmFit,
    Hardware,
    Matmul,
    MixtureOfExperts,
)

Array = NDArray[np.float64]

BF16_BYTES = 2.0
"""Bytes of an activation, but for the inputs of fp8 products."""


@dataclass(frozen=True)
class GemmRate:
    """Reachable speed of products with weights of one number format.

    Attributes:
        t0_s, p: of the fit.
        bytes_s, flops_s: peaks times the fitted shares of them.
        weight_bytes, input_bytes: per value; outputs are bf16.
        convert_s: per input value that a pass before the product converts; 0 where none does.
    """

    t0_s: float
    p: float
    bytes_s: float
    flops_s: float
    weight_bytes: float
    input_bytes: float
    convert_s: float

    def seconds(self, m: Array, traffic: Array, flops: Array, inputs: Array) -> Array:
        """t0 + conversion + ((bytes / (BW e_b))^p + (flops / (peak e_f))^p)^(1/p); 0 where ``m`` is 0."""
        memory_s, compute_s = traffic / self.bytes_s, flops / self.flops_s
        fixed = self.t0_s + inputs * self.convert_s
        seconds: Array = fixed + (memory_s**self.p + compute_s**self.p) ** (1.0 / self.p)
        return np.where(m > 0, seconds, 0.0)

    def moved_per_row(self, matmul: Matmul) -> float:
        """Bytes of one row's inputs and outputs."""
        return matmul.copies * (self.input_bytes * matmul.k + BF16_BYTES * matmul.n)


@dataclass(frozen=True)
class GemmRates:
    """Of the matrices that have the model's weight format, and of those that stay bf16."""

    quantized: GemmRate
    plain: GemmRate

    def of(self, matmul: Matmul) -> GemmRate:
        return self.quantized if matmul.quantized else self.plain


def gemm_fit(calibration: Calibration, hardware: Hardware, dtype: Dtype) -> GemmFit:
    """The fit of products with weights of ``dtype``.

    fp8's own where the GPU computes in fp8 and it was measured. Else bf16's: its shares of the peaks are then
    assumed to hold for the other formats, and the expansion of their weights to hide behind the reads.
    """
    if dtype is Dtype.FP8 and hardware.peak_flops_fp8 is not None and calibration.gemm_fp8 is not None:
        return calibration.gemm_fp8
    return calibration.gemm


def conversion_bytes(dtype: Dtype) -> float:
    """Traffic per input value of the pass that converts bf16 inputs to ``dtype``: read, and written."""
    return BF16_BYTES + dtype.bytes


def gemm_rates(calibration: Calibration, hardware: Hardware, dtype: Dtype) -> GemmRates:
    """Rates of a model with weights of ``dtype``. Inputs are fp8 where the GPU computes in fp8; all other
    formats are expanded to bf16 on the way to the tensor cores."""

    def rate(each: Dtype) -> GemmRate:
        fit = gemm_fit(calibration, hardware, each)
        computes_fp8 = each is Dtype.FP8 and hardware.peak_flops_fp8 is not None
        return GemmRate(
            t0_s=fit.t0_s.value,
            p=fit.p.value,
            bytes_s=hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value,
            flops_s=hardware.peak(each).value * fit.flops_eff.value,
            weight_bytes=each.bytes,
            input_bytes=Dtype.FP8.bytes if computes_fp8 else BF16_BYTES,
            convert_s=conversion_bytes(each) / (hardware.bandwidth_bytes_s.value * fit.convert_eff.value)
            if computes_fp8 and fit.convert_eff is not None
            else 0.0,
        )

    return GemmRates(quantized=rate(dtype), plain=rate(Dtype.BF16))


def gemm_s(rates: GemmRates, m: Array, matmul: Matmul) -> Array:
    """Seconds of (m, k) x (k, n) for every ``m``: weights, inputs and outputs move once."""
    rate = rates.of(matmul)
    traffic = rate.weight_bytes * matmul.params + m * rate.moved_per_row(matmul)
    return rate.seconds(m, traffic, 2.0 * m * matmul.params, m * matmul.copies * matmul.k)


def routed_gemm_s(rates: GemmRates, tokens: Array, matmul: Matmul, moe: MixtureOfExperts) -> Array:
    """Seconds of one grouped product over the experts that ``tokens`` tokens are routed to: one launch.

    Reads the weights of every expert touched, and ``active`` rows per token. Its shares of peak are those
    of dense products (assumed: no grouped product was measured), with no loss for uneven groups.
    """
    rate = rates.of(matmul)
    rows = tokens * moe.active
    traffic = rate.weight_bytes * matmul.params * moe.distinct(tokens) + rows * rate.moved_per_row(matmul)
    return rate.seconds(tokens, traffic, 2.0 * rows * matmul.params, rows * matmul.k)


def elementwise_bytes_per_token(decoder: Decoder, tp: int, *, routed: bool = False) -> float:
    """Traffic of one layer's norms, rotary embedding and activation for one token (bf16).

    Two fused residual-add norms read and write the stream and the residual (8 hidden), the gate reads
    2 intermediate and writes 1, rotary reads and writes queries and keys. A routed layer gates the active and
    the shared experts, and reads the outputs of the active ones to write their sum. MLA rotates its rotary
    parts only, and reads and writes its compressed vectors to normalise them.
    """
    heads, kv_heads = decoder.heads // tp, decoder.kv_heads_per_rank(tp)
    position = 2.0 * (heads + kv_heads) * decoder.head_dim
    if (mla := decoder.latent) is not None:
        position = 2.0 * ((heads + 1) * mla.rope_dim + mla.q_rank + mla.kv_rank)
    gated, summed = decoder.intermediate / tp, 0
    if routed and (moe := decoder.moe) is not None:
        gated = (moe.active * moe.intermediate + moe.shared_intermediate) / tp
        summed = (moe.active + 1) * decoder.hidden
    return 2.0 * (8 * decoder.hidden + 3 * gated + position + summed)


def elementwise_s(
    fit: ElementwiseFit, hardware: Hardware, decoder: Decoder, tp: int, tokens: Array, *, routed: bool
) -> Array:
    """Seconds of one layer's elementwise work. The launches are those of a dense layer (routing's own few are
    left out: not measured)."""
    traffic = elementwise_bytes_per_token(decoder, tp, routed=routed) * tokens
    seconds: Array = fit.t0_s.value + traffic / (hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value)
    return np.where(tokens > 0, seconds, 0.0)


def all_reduce_s(fit: AllReduceFit, message_bytes: Array) -> Array:
    """Seconds of one all-reduce over the ranks the fit is for."""
    one_shot_s = message_bytes / fit.one_shot_bytes_per_s.value
    two_shot_s = fit.two_shot_s.value + message_bytes / fit.bytes_per_s.value
    return np.where(message_bytes > 0, fit.t0_s.value + np.minimum(one_shot_s, two_shot_s), 0.0)


@dataclass(frozen=True)
class AttentionCounts:
    """What one layer's attention moves and computes on one rank.

    Attributes:
        kv_heads: heads of the cache that are worked on separately (1 in MLA).
        kv_bytes: of one cached token, read once per request whatever the query length is.
        query_bytes: of one query token's inputs and outputs.
        pair_flops: per query token and context token.
        prefill_kv_bytes, prefill_query_bytes, prefill_pair_flops: the same of prompt chunks.
    """

    kv_heads: int
    kv_bytes: float
    query_bytes: float
    pair_flops: float
    prefill_kv_bytes: float
    prefill_query_bytes: float
    prefill_pair_flops: float


def attention_counts(decoder: Decoder, tp: int, kv_dtype: Dtype) -> AttentionCounts:
    """Counts of grouped-query attention, or of MLA (DeepSeek-V2, section 2.1).

    MLA decodes absorbed: every head attends to the one compressed vector and its rotary key. It prefills
    unabsorbed, on keys and values expanded per head; expanding what earlier chunks cached is left out.
    """
    heads, kv_bytes = decoder.heads // tp, decoder.layer_kv_values(tp) * kv_dtype.bytes
    if (mla := decoder.latent) is not None:
        width, key = mla.kv_rank + mla.rope_dim, mla.nope_dim + mla.rope_dim
        return AttentionCounts(
            kv_heads=1,
            kv_bytes=kv_bytes,
            query_bytes=heads * (width + mla.kv_rank) * BF16_BYTES,
            pair_flops=2.0 * heads * (width + mla.kv_rank),
            prefill_kv_bytes=heads * (key + mla.v_dim) * BF16_BYTES,
            prefill_query_bytes=heads * (key + mla.v_dim) * BF16_BYTES,
            prefill_pair_flops=2.0 * heads * (key + mla.v_dim),
        )
    query_bytes = 2.0 * heads * decoder.head_dim * BF16_BYTES
    pair_flops = 4.0 * heads * decoder.head_dim
    return AttentionCounts(
        decoder.kv_heads_per_rank(tp), kv_bytes, query_bytes, pair_flops, kv_bytes, query_bytes, pair_flops
    )


def attention_fit(calibration: Calibration, kv_dtype: Dtype) -> AttentionFit:
    """The fit for that KV cache; bf16's where none was measured with fp8 (its shares of the peaks then hold
    for fp8 too: assumed). Both are shares of the bf16 peak."""
    if kv_dtype is Dtype.FP8 and calibration.attention_fp8 is not None:
        return calibration.attention_fp8
    return calibration.attention


def attention_cost(
    calibration: Calibration, hardware: Hardware, decoder: Decoder, tp: int, kv_dtype: Dtype
) -> AttentionCost:
    """Attention of all layers on one rank as seconds per count."""
    fit, counts, layers = (
        attention_fit(calibration, kv_dtype),
        attention_counts(decoder, tp, kv_dtype),
        decoder.layers,
    )
    bandwidth = hardware.bandwidth_bytes_s.value
    read = bandwidth * fit.bandwidth_eff.value
    prefill_read = bandwidth * fit.prefill_bandwidth_eff.value
    compute = hardware.peak_flops.value * fit.flops_eff.value
    window = decoder.window
    return AttentionCost(
        launch_s=layers * fit.t0_s.value,
        request_s=layers * counts.kv_heads * fit.tile_s.value,
        kv_token_s=layers * counts.kv_bytes / read,
        query_s=layers * counts.query_bytes / read,
        pair_s=layers * counts.pair_flops / compute,
        p=fit.p.value,
        prefill_query_s=layers * counts.prefill_query_bytes / prefill_read,
        prefill_kv_token_s=layers * counts.prefill_kv_bytes / prefill_read,
        prefill_pair_s=layers * counts.prefill_pair_flops / compute,
        local=0.0 if window is None else window.layers / layers,
        window=float(UNBOUNDED if window is None else window.tokens),
    )


def padded(tokens: NDArray[np.int64], capture_sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """Token counts after padding to the next captured graph; counts above the largest stay as they are."""
    if not capture_sizes:
        return tokens
    sizes = np.asarray(capture_sizes, dtype=np.int64)
    slot = np.searchsorted(sizes, tokens)
    inside = (slot < len(sizes)) & (tokens > 0)
    return np.where(inside, sizes[np.minimum(slot, len(sizes) - 1)], tokens)
