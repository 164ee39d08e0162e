"""Single operations on a made GPU of round numbers, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.latency import ops
from kplan.latency.attention import UNBOUNDED
from kplan.profiles import Dtype, LatentAttention, Matmul, MixtureOfExperts, SlidingWindow
from tests.latency.round_numbers import CALIBRATION, FP8, GEMM, GPU, SMALL, figure


def rates(dtype: Dtype) -> ops.GemmRates:
    return ops.gemm_rates(CALIBRATION, GPU, dtype)


def counts(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_bf16_product_moves_weights_inputs_and_outputs_once() -> None:
    """3 copies of 10 x 20, 2 rows: 1,200 bytes of weights, 120 in, 240 out at 500 B/s; 2,400 flops."""
    found = ops.gemm_s(rates(Dtype.BF16), counts(0, 2), Matmul(n=20, k=10, copies=3))
    memory, compute = (1200 + 120 + 240) / 500, 2 * 2 * 600 / 2500
    assert found == pytest.approx([0.0, 3 + np.hypot(memory, compute)])


def test_an_fp8_product_converts_its_inputs_first() -> None:
    """A byte a weight and input, 800 B/s, 20,000 flops, p = 1; 3 bytes a converted input at 100 B/s."""
    found = ops.gemm_s(rates(Dtype.FP8), counts(2), Matmul(n=20, k=10, copies=3))
    assert found == pytest.approx(1 + 60 * 3 / 100 + (600 + 60 + 240) / 800 + 2400 / 20_000)
    plain = ops.gemm_s(rates(Dtype.FP8), counts(2), Matmul(n=20, k=10, copies=3, quantized=False))
    assert plain == pytest.approx(ops.gemm_s(rates(Dtype.BF16), counts(2), Matmul(n=20, k=10, copies=3)))


def test_a_grouped_product_reads_the_experts_that_are_touched() -> None:
    """2 of 4 experts a token: 3 tokens touch 4 (1 - 1/8) = 3.5, and bring 6 rows."""
    moe = MixtureOfExperts(experts=4, active=2, intermediate=5)
    found = ops.routed_gemm_s(rates(Dtype.BF16), counts(0, 3), Matmul(n=20, k=10), moe)
    memory, compute = (2 * 200 * 3.5 + 6 * 2 * 30) / 500, 2 * 6 * 200 / 2500
    assert found == pytest.approx([0.0, 3 + np.hypot(memory, compute)])
    fp8 = ops.routed_gemm_s(rates(Dtype.FP8), counts(3), Matmul(n=20, k=10), moe)
    assert fp8 == pytest.approx(1 + 60 * 3 / 100 + (200 * 3.5 + 6 * (10 + 40)) / 800 + 2400 / 20_000)


def test_formats_are_priced_by_what_was_measured_of_them() -> None:
    no_peak = replace(GPU, peak_flops_fp8=None)
    unmeasured = replace(CALIBRATION, gemm_fp8=None)
    assert ops.gemm_fit(CALIBRATION, GPU, Dtype.FP8) is FP8
    assert ops.gemm_fit(CALIBRATION, GPU, Dtype.INT4) is GEMM
    assert ops.gemm_fit(CALIBRATION, no_peak, Dtype.FP8) is GEMM
    assert ops.gemm_fit(unmeasured, GPU, Dtype.FP8) is GEMM
    stored = ops.gemm_rates(CALIBRATION, no_peak, Dtype.FP8).quantized
    assert (stored.weight_bytes, stored.input_bytes, stored.convert_s, stored.flops_s) == (1, 2, 0, 2500)
    assumed = ops.gemm_rates(unmeasured, GPU, Dtype.FP8).quantized
    assert (assumed.input_bytes, assumed.convert_s, assumed.flops_s) == (1, 0, 10_000)


# --- elementwise work, all-reduce, attention


def test_elementwise_traffic_of_dense_routed_and_latent_layers() -> None:
    """8 hidden, 3 intermediate, queries and keys read and written; bf16."""
    assert ops.elementwise_bytes_per_token(SMALL, 1) == 2 * (64 + 36 + 2 * 6 * 2)
    assert ops.elementwise_bytes_per_token(SMALL, 2) == 2 * (64 + 18 + 2 * 3 * 2)
    assert ops.elementwise_bytes_per_token(SMALL, 4) == 2 * (64 + 9 + 2 * 2 * 2)  # a KV head on two ranks
    moe = MixtureOfExperts(experts=4, active=3, intermediate=5, shared_intermediate=7)
    routed = replace(SMALL, moe=moe)
    assert ops.elementwise_bytes_per_token(routed, 1) == ops.elementwise_bytes_per_token(SMALL, 1)
    gated = 3 * 5 + 7
    assert ops.elementwise_bytes_per_token(routed, 1, routed=True) == 2 * (64 + 3 * gated + 24 + 4 * 8)
    mla = LatentAttention(q_rank=6, kv_rank=10, rope_dim=2, nope_dim=3, v_dim=4)
    latent = replace(SMALL, latent=mla)
    assert ops.elementwise_bytes_per_token(latent, 1) == 2 * (64 + 36 + 2 * (5 * 2 + 6 + 10))
    found = ops.elementwise_s(CALIBRATION.elementwise, GPU, SMALL, 1, counts(0, 1, 5), routed=False)
    assert found == pytest.approx([0.0, 2 + 248 / 500, 2 + 5 * 248 / 500])


def test_an_all_reduce_takes_one_shot_or_two() -> None:
    """1 s, then bytes / 10 or 6 s and bytes / 40: equal at 80 bytes."""
    found = ops.all_reduce_s(CALIBRATION.all_reduce[2], counts(0, 40, 80, 120))
    assert found == pytest.approx([0.0, 5.0, 9.0, 10.0])


def test_attention_counts_of_heads_and_of_a_latent_vector() -> None:
    whole = ops.attention_counts(SMALL, 1, Dtype.FP8)
    assert (whole.kv_heads, whole.kv_bytes, whole.query_bytes, whole.pair_flops) == (2, 8, 32, 32)
    assert (whole.prefill_kv_bytes, whole.prefill_query_bytes, whole.prefill_pair_flops) == (8, 32, 32)
    part = ops.attention_counts(SMALL, 4, Dtype.BF16)
    assert (part.kv_heads, part.kv_bytes, part.query_bytes, part.pair_flops) == (1, 8, 8, 8)
    mla = LatentAttention(q_rank=6, kv_rank=10, rope_dim=2, nope_dim=3, v_dim=4)
    latent = ops.attention_counts(replace(SMALL, latent=mla), 2, Dtype.BF16)
    assert (latent.kv_heads, latent.kv_bytes) == (1, 24)
    assert (latent.query_bytes, latent.pair_flops) == (2 * (12 + 10) * 2, 2 * 2 * (12 + 10))
    expanded = (latent.prefill_kv_bytes, latent.prefill_query_bytes, latent.prefill_pair_flops)
    assert expanded == (2 * (5 + 4) * 2, 2 * (5 + 4) * 2, 2 * 2 * (5 + 4))


def test_attention_is_priced_per_count_over_all_layers() -> None:
    cost = ops.attention_cost(CALIBRATION, GPU, SMALL, 1, Dtype.BF16)
    assert cost.launch_s == pytest.approx(21)
    assert cost.request_s == pytest.approx(3 * 2 * 0.3)
    assert cost.kv_token_s == pytest.approx(3 * 16 / 800)
    assert cost.query_s == pytest.approx(3 * 32 / 800)
    assert cost.pair_s == pytest.approx(3 * 32 / 5000)
    assert cost.prefill_query_s == pytest.approx(3 * 32 / 400)
    assert cost.prefill_kv_token_s == pytest.approx(3 * 16 / 400)
    assert cost.prefill_pair_s == pytest.approx(3 * 32 / 5000)
    assert (cost.p, cost.local, cost.window) == (1.5, 0.0, UNBOUNDED)
    near = replace(SMALL, window=SlidingWindow(tokens=50, layers=2))
    windowed = ops.attention_cost(CALIBRATION, GPU, near, 1, Dtype.BF16)
    assert (windowed.local, windowed.window) == (pytest.approx(2 / 3), 50)


def test_an_fp8_cache_has_its_own_fit_where_it_was_measured() -> None:
    own = replace(CALIBRATION.attention, t0_s=figure(1.0))
    measured = replace(CALIBRATION, attention_fp8=own)
    assert ops.attention_fit(measured, Dtype.FP8) is own
    assert ops.attention_fit(measured, Dtype.BF16) is CALIBRATION.attention
    assert ops.attention_fit(CALIBRATION, Dtype.FP8) is CALIBRATION.attention


def test_tokens_are_padded_to_the_next_graph() -> None:
    tokens = np.array([0, 1, 2, 3, 4, 5, 8, 9, 100])
    assert list(ops.padded(tokens, (2, 4, 8))) == [0, 2, 2, 4, 4, 8, 8, 9, 100]
    assert list(ops.padded(tokens, ())) == list(tokens)
