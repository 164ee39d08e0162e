"""Routed, latent and windowed layers and number formats against sums written out from their widths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.latency import LatencyModel, StepShape
from kplan.profiles import GemmFit, load_calibration, load_hardware
from kplan.profiles.dtype import Dtype
from kplan.provenance import Figure, Kind, Provenance
from tests.latency.settings import LATENT, LLAMA, ROUTED, WINDOWED, built

CALIBRATION = load_calibration("h100-sxm")
BANDWIDTH, PEAK = 3.35e12, 989.4e12
KNOWN = Provenance(Kind.ASSUMED, "test")
FP8_GPU = replace(load_hardware("h100-sxm"), peak_flops_fp8=Figure(2 * PEAK, KNOWN))


def verify_s(model: LatencyModel, batch: int, k: int, context: int) -> float:
    return float(model.step_seconds(StepShape.decode(batch, k, context)).verify_s)


def roofline_s(
    bytes_moved: float, flops: float, fit: GemmFit = CALIBRATION.gemm, peak: float = PEAK
) -> float:
    memory, compute = bytes_moved / BANDWIDTH / fit.bandwidth_eff.value, flops / peak / fit.flops_eff.value
    p = fit.p.value
    return fit.t0_s.value + float(np.linalg.norm([memory, compute], ord=p))


def gemm_s(m: float, k: float, n: float, copies: int = 1) -> float:
    return roofline_s(2 * copies * (k * n + m * (k + n)), 2 * m * k * n * copies)


def elementwise_s(bytes_moved: float) -> float:
    fit = CALIBRATION.elementwise
    return fit.t0_s.value + bytes_moved / BANDWIDTH / fit.bandwidth_eff.value


def attention_s(requests: int, kv_bytes: float, query_bytes: float, flops: float, kv_heads: int) -> float:
    """One layer's decode attention, its launch included."""
    fit = CALIBRATION.attention
    work = requests * kv_heads * fit.tile_s.value
    traffic = (kv_bytes + query_bytes) / BANDWIDTH / fit.bandwidth_eff.value
    smooth = float(np.linalg.norm([work, traffic], ord=fit.p.value))
    return fit.t0_s.value + max(smooth, flops / PEAK / fit.flops_eff.value)


# --- routed experts


@pytest.mark.parametrize("tokens", [1, 3, 8, 40])
def test_a_routed_layer_reads_the_experts_its_tokens_touch(tokens: int) -> None:
    # Mixtral's widths. Touched experts: drawn, not computed; two different ones per token.
    rng = np.random.default_rng(5)
    draws = rng.random((20_000, tokens, 8)).argsort(axis=2)[:, :, :2]
    touched = float(np.mean([len(np.unique(each)) for each in draws]))
    attention = 6144 * 4096 + 4096 * 4096
    expert = 3 * 4096 * 14_336
    layers = 32 * 2 * (attention + 8 * 4096 + touched * expert)
    work = built(ROUTED).work(StepShape.decode(tokens, 0, 0))
    assert float(work.bytes) == pytest.approx(layers + 2 * 32_000 * 4096, rel=0.01)
    active = 32 * (attention + 8 * 4096 + 2 * expert) + 32_000 * 4096
    assert float(work.flops) == pytest.approx(2 * tokens * active, rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 64, 2000])
def test_a_routed_step_is_its_operations(tokens: int) -> None:
    touched = 8 * (1 - 0.75**tokens)
    rows, hidden, wide = 2 * tokens, 4096, 14_336

    def grouped_s(k: int, n: int) -> float:
        return roofline_s(2 * (touched * k * n + rows * (k + n)), 2 * rows * k * n)

    moved = 2 * tokens * (8 * hidden + 3 * 2 * wide + 2 * 40 * 128 + 3 * hidden)
    layer = (
        gemm_s(tokens, hidden, 6144)
        + gemm_s(tokens, hidden, hidden)
        + gemm_s(tokens, hidden, 8)
        + grouped_s(hidden, 2 * wide)
        + grouped_s(wide, hidden)
        + elementwise_s(moved)
        + attention_s(tokens, 0, tokens * 2 * 32 * 128 * 2, 0, 8)
    )
    expected = 32 * layer + gemm_s(tokens, hidden, 32_000)
    assert verify_s(built(ROUTED), tokens, 0, 0) == pytest.approx(max(expected, 32 * 92.3107e-6), rel=1e-9)


def test_verification_loads_experts_until_all_are_loaded() -> None:
    # A dense model of the same active parameters: one MLP of two experts' width.
    dense = built(replace(ROUTED, moe=None, intermediate=2 * 14_336))
    routed = built(ROUTED)

    def growth(model: LatencyModel, few: int, many: int) -> float:
        return verify_s(model, 1, many - 1, 500) / verify_s(model, 1, few - 1, 500)

    assert growth(dense, 1, 8) < 1.05
    assert 2.0 < growth(routed, 1, 8) < 3.6  # 7.2 of 8 experts instead of 2
    assert growth(routed, 32, 128) < growth(dense, 32, 128) < 1.3


# --- latent attention


@pytest.mark.parametrize(("batch", "k", "context"), [(1, 0, 4000), (16, 3, 8000), (200, 0, 300)])
def test_latent_attention_reads_one_vector_per_token(batch: int, k: int, context: int) -> None:
    # DeepSeek-V2-Lite: 512 + 64 numbers, 1,152 bytes, per token and layer, whatever the number of heads.
    queries = batch * (k + 1)
    per_layer = attention_s(
        batch,
        kv_bytes=batch * context * 1152,
        query_bytes=queries * 16 * (576 + 512) * 2,
        flops=2 * 16 * (576 + 512) * queries * context,
        kv_heads=1,
    )
    empty = attention_s(batch, 0, queries * 16 * (576 + 512) * 2, 0, 1)
    model = built(LATENT)
    measured = verify_s(model, batch, k, context) - verify_s(model, batch, k, 0)
    assert measured == pytest.approx(27 * (per_layer - empty), rel=1e-6)
    work = model.work(StepShape.decode(batch, k, context))
    assert float(work.bytes - model.work(StepShape.decode(batch, k, 0)).bytes) == pytest.approx(
        27 * 1152 * batch * context, rel=1e-9
    )


def test_latent_prompts_attend_to_expanded_keys_and_values() -> None:
    fit, pairs = CALIBRATION.attention, 1e7
    one, two = (
        float(built(LATENT).step_seconds(StepShape(0, 0, 0, 0, 1, 2048, 2048, n * pairs, 1)).verify_s)
        for n in (1, 2)
    )
    flops = 27 * 2 * 16 * ((128 + 64) + 128) * pairs
    assert two - one == pytest.approx(flops / PEAK / fit.flops_eff.value, rel=1e-6)


def test_latent_matrices_are_projected_per_head() -> None:
    # 27 layers: query + compressed KV in one, keys absorbed and values expanded per head, output.
    tokens, hidden = 32, 2048
    attention = (
        gemm_s(tokens, hidden, 16 * 192 + 576)
        + gemm_s(tokens, 128, 512, copies=16)
        + gemm_s(tokens, 512, 128, copies=16)
        + gemm_s(tokens, 16 * 128, hidden)
        + attention_s(tokens, 0, tokens * 16 * (576 + 512) * 2, 0, 1)
    )
    rope = 2 * (17 * 64 + 512)
    dense = (
        gemm_s(tokens, hidden, 2 * 10_944)
        + gemm_s(tokens, 10_944, hidden)
        + elementwise_s(2 * tokens * (8 * hidden + 3 * 10_944 + rope))
    )
    touched, rows = 64 * (1 - (58 / 64) ** tokens), 6 * tokens

    def grouped_s(k: int, n: int) -> float:
        return roofline_s(2 * (touched * k * n + rows * (k + n)), 2 * rows * k * n)

    routed = (
        gemm_s(tokens, hidden, 64)
        + gemm_s(tokens, hidden, 2 * 2816)
        + gemm_s(tokens, 2816, hidden)
        + grouped_s(hidden, 2 * 1408)
        + grouped_s(1408, hidden)
        + elementwise_s(2 * tokens * (8 * hidden + 3 * (6 * 1408 + 2816) + rope + 7 * hidden))
    )
    expected = 27 * attention + dense + 26 * routed + gemm_s(tokens, hidden, 102_400)
    assert verify_s(built(LATENT), tokens, 0, 0) == pytest.approx(expected, rel=1e-9)


# --- sliding windows


@pytest.mark.parametrize(("context", "near"), [(700, 700), (50_000, 1024 + 3)])
def test_windowed_layers_read_no_further_than_their_window(context: int, near: int) -> None:
    # 8 full and 24 local layers; the four queries of a request reach 1,024 + 3 tokens back.
    model, batch, queries = built(WINDOWED), 8, 32
    kv_token, query, pair = 2 * 8 * 128 * 2, 2 * 32 * 128 * 2, 4 * 32 * 128

    def layer_s(kv: int, seen: int) -> float:
        return attention_s(batch, batch * kv * kv_token, queries * query, pair * queries * seen, 8)

    expected = 8 * layer_s(context, context) + 24 * layer_s(near, min(context, 1024)) - 32 * layer_s(0, 0)
    measured = verify_s(model, batch, 3, context) - verify_s(model, batch, 3, 0)
    assert measured == pytest.approx(expected, rel=1e-9)
    grown = (
        model.work(StepShape.decode(batch, 3, context)).bytes
        - model.work(StepShape.decode(batch, 3, 0)).bytes
    )
    assert float(grown) == pytest.approx(batch * kv_token * (8 * context + 24 * near), rel=1e-12)


def test_a_wholly_windowed_model_stops_growing_with_context() -> None:
    window = replace(WINDOWED, window=replace(WINDOWED.window, layers=32))  # type: ignore[type-var]  # it has one
    model = built(window)
    at_window, far = verify_s(model, 32, 0, 1024), verify_s(model, 32, 0, 100_000)
    assert far == at_window
    assert verify_s(model, 32, 0, 1000) < at_window
    assert verify_s(built(LLAMA), 32, 0, 100_000) > 10 * far


def test_prompts_of_windowed_layers_see_their_window() -> None:
    # 4,096 queries of a second chunk: full layers see all pairs, local ones 1,024 per query.
    fit, queries, pairs, kv = CALIBRATION.attention, 4096, 4096 * 6144.0, 8192
    shape = StepShape(0, 0, 0, 0, 1, queries, kv, pairs, 1)
    full, part = (float(built(each).step_seconds(shape).verify_s) for each in (LLAMA, WINDOWED))
    flops = 24 * 4 * 32 * 128 * (pairs - queries * 1024)
    moved = 24 * 2 * 8 * 128 * 2 * (kv - (1023 + queries))
    saved = flops / PEAK / fit.flops_eff.value + moved / BANDWIDTH / fit.prefill_bandwidth_eff.value
    assert full - part == pytest.approx(saved, rel=1e-9)


# --- number formats


UNMEASURED_FP8 = replace(CALIBRATION, gemm_fp8=None, attention_fp8=None)


def llama_step_s(dtype: Dtype, fit: GemmFit, peak: float, input_bytes: float, tokens: int) -> float:
    """Matrices, elementwise work and attention launches of Llama 3.1 8B without context."""

    def product_s(k: int, n: int) -> float:
        moved = dtype.bytes * k * n + tokens * (input_bytes * k + 2 * n)
        return roofline_s(moved, 2 * tokens * k * n, fit, peak)

    layer = product_s(4096, 6144) + product_s(4096, 4096) + product_s(4096, 28_672) + product_s(14_336, 4096)
    layer += elementwise_s(2 * tokens * (8 * 4096 + 3 * 14_336 + 2 * 40 * 128))
    layer += attention_s(tokens, 0, tokens * 2 * 32 * 128 * 2, 0, 8)
    return 32 * layer + gemm_s(tokens, 4096, 128_256)  # the LM head stays bf16


@pytest.mark.parametrize("tokens", [1, 256, 4000])
def test_fp8_and_int4_layers_are_their_operations(tokens: int) -> None:
    gemm = CALIBRATION.gemm
    fp8 = built(weight_dtype=Dtype.FP8, hardware=FP8_GPU, calibration=UNMEASURED_FP8)
    assert verify_s(fp8, tokens, 0, 0) == pytest.approx(
        llama_step_s(Dtype.FP8, gemm, 2 * PEAK, 1, tokens), rel=1e-9
    )
    for dtype, hardware in ((Dtype.INT4, FP8_GPU), (Dtype.FP8, load_hardware("h100-sxm"))):
        stored_only = built(weight_dtype=dtype, hardware=replace(hardware, peak_flops_fp8=None))
        assert verify_s(stored_only, tokens, 0, 0) == pytest.approx(
            llama_step_s(dtype, gemm, PEAK, 2, tokens), rel=1e-9
        )


def test_absorbed_matrices_of_an_fp8_model_are_bf16_products() -> None:
    # 27 layers: all but these two and the router change with the format; 16 heads of 128 x 512 each.
    with_them = built(LATENT, weight_dtype=Dtype.FP8, hardware=FP8_GPU)
    moved = float(with_them.work(StepShape.decode(1, 0, 0)).bytes)
    bf16 = float(built(LATENT).work(StepShape.decode(1, 0, 0)).bytes)
    stay = 27 * 2 * 16 * 128 * 512 + 26 * 64 * 2048 + 102_400 * 2048
    assert 2 * moved - bf16 == pytest.approx(2 * stay, rel=1e-9)
    slow = replace(CALIBRATION, gemm_fp8=replace(CALIBRATION.gemm, t0_s=Figure(1e-3, KNOWN)))
    fp8 = built(LATENT, weight_dtype=Dtype.FP8, hardware=FP8_GPU, calibration=slow)
    # Milliseconds per fp8 product: query, output and, of 26 routed layers, 4 products; of the dense one 2.
    products = 27 * 2 + 26 * 4 + 2
    assert verify_s(fp8, 1, 0, 0) == pytest.approx(products * 1e-3, rel=0.1)


def test_a_measured_fp8_fit_prices_fp8_layers_alone() -> None:
    slow = replace(CALIBRATION.gemm, t0_s=Figure(1e-4, KNOWN), p=Figure(2.0, KNOWN))
    calibration = replace(CALIBRATION, gemm_fp8=slow, host_alternate=None)
    fp8 = built(weight_dtype=Dtype.FP8, hardware=FP8_GPU, calibration=calibration)
    assert verify_s(fp8, 64, 0, 0) == pytest.approx(llama_step_s(Dtype.FP8, slow, 2 * PEAK, 1, 64), rel=1e-9)
    assert fp8.ceilings().peak_flops == 2 * PEAK
    bf16 = built(hardware=FP8_GPU, calibration=calibration)
    assert verify_s(bf16, 64, 0, 0) == verify_s(built(), 64, 0, 0)
    # The second source is of bf16: what is left of the band is the LM head's.
    shape = StepShape.decode(64, 0, 300)
    low, high = fp8.band(shape)
    assert 0 < float(high - low) < 0.1 * float(np.ptp(bf16.band(shape)))


def test_fp8_halves_the_bytes_of_the_layers() -> None:
    shape = StepShape.decode(1, 0, 0)
    head_bytes = 2 * 128_256 * 4096
    bf16, fp8, int4 = (
        float(built(weight_dtype=dtype).work(shape).bytes) - head_bytes
        for dtype in (Dtype.BF16, Dtype.FP8, Dtype.INT4)
    )
    assert fp8 == bf16 / 2
    assert int4 == bf16 * (0.5 + 4 / 128) / 2  # a bf16 scale and zero point per 128 weights


def test_an_fp8_cache_is_half_the_traffic() -> None:
    shape = [StepShape.decode(64, 0, context) for context in (0, 50_000)]
    cost = {}
    for dtype in (Dtype.BF16, Dtype.FP8):
        model = built(kv_dtype=dtype, calibration=UNMEASURED_FP8)
        empty, full = (float(model.step_seconds(each).verify_s) for each in shape)
        cost[dtype] = full - empty
    assert cost[Dtype.FP8] == pytest.approx(cost[Dtype.BF16] / 2, rel=0.01)
    half = replace(
        CALIBRATION.attention, bandwidth_eff=Figure(CALIBRATION.attention.bandwidth_eff.value / 2, KNOWN)
    )
    slow = built(kv_dtype=Dtype.FP8, calibration=replace(CALIBRATION, attention_fp8=half))
    empty, full = (float(slow.step_seconds(each).verify_s) for each in shape)
    assert full - empty == pytest.approx(cost[Dtype.BF16], rel=0.01)
