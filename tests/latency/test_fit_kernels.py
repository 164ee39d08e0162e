"""Kernel fits: made rows give back what they were made with, and errors are those of the estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency.fit_kernels import (
    Array,
    Coefficient,
    Fit,
    fit,
    fit_all_reduce,
    fit_decode_attention,
    fit_elementwise,
    fit_gemm,
    fit_prefill_attention,
    fit_sampler,
)
from kplan.latency.fit_tables import AllReduceRows, AttentionRows, GemmRows, LayerRows, SamplerRows
from kplan.profiles import Dtype, load_hardware
from kplan.provenance import Figure, Kind, Provenance

BANDWIDTH, PEAK = 2e12, 5e14
HARDWARE = replace(
    load_hardware("h100-sxm"),
    bandwidth_bytes_s=Figure(BANDWIDTH, Provenance(Kind.ASSUMED, "test")),
    peak_flops=Figure(PEAK, Provenance(Kind.ASSUMED, "test")),
    peak_flops_fp8=Figure(3 * PEAK, Provenance(Kind.ASSUMED, "test")),
)


def grid(*sides: tuple[float, ...]) -> list[Array]:
    """(r,) columns of every combination."""
    return [np.array(column, dtype=np.float64) for column in zip(*product(*sides), strict=True)]


def gemm(t0_s: float, bandwidth_eff: float, flops_eff: float, p: float) -> Fit:
    m, n, k = grid((1, 16, 300, 1000, 6000), (1024, 5000, 14_336), (2048, 8192))
    moved = 2 * m * k + 2 * k * n + 2 * m * n
    memory, compute = moved / (BANDWIDTH * bandwidth_eff), 2 * m * n * k / (PEAK * flops_eff)
    joined = np.array([np.linalg.norm(pair, ord=p) for pair in zip(memory, compute, strict=True)])
    return fit_gemm(GemmRows(m, n, k, t0_s + joined), HARDWARE)


def gemm_fp8(t0_s: float, bandwidth_eff: float, flops_eff: float, p: float, convert_eff: float) -> Fit:
    m, n, k = grid((1, 16, 300, 1000, 6000), (1024, 5000, 14_336), (2048, 8192))
    moved = m * k + k * n + 2 * m * n  # a byte an input, two an output
    memory, compute = moved / (BANDWIDTH * bandwidth_eff), 2 * m * n * k / (3 * PEAK * flops_eff)
    joined = np.array([np.linalg.norm(pair, ord=p) for pair in zip(memory, compute, strict=True)])
    converted = 3 * m * k / (BANDWIDTH * convert_eff)  # two bytes read, one written
    return fit_gemm(GemmRows(m, n, k, t0_s + converted + joined, Dtype.FP8), HARDWARE)


def attention_rows(columns: list[Array], seconds: Array, dtype: Dtype) -> AttentionRows:
    requests, kv_len, heads, kv_heads, query_len, head_dim = columns
    zeros = np.zeros_like(requests)
    return AttentionRows(requests, kv_len, heads, kv_heads, seconds, query_len, head_dim, zeros, dtype)


def decode(t0_s: float, tile_s: float, bandwidth_eff: float, p: float, dtype: Dtype = Dtype.BF16) -> Fit:
    """Long queries of many heads are bound by the compute rate, here 0.5 of the peak."""
    columns = grid((1, 40, 900), (100, 3000, 20_000), (32, 96), (4, 8), (1, 3, 200), (64, 128))
    requests, kv_len, heads, kv_heads, query_len, head_dim = columns
    stored = {Dtype.BF16: 2, Dtype.FP8: 1}[dtype]
    cached = requests * kv_len * kv_heads * head_dim * 2 * stored
    moved = cached + requests * query_len * heads * head_dim * 2 * 2  # queries in, outputs out, bf16
    work, memory = tile_s * requests * kv_heads, moved / (BANDWIDTH * bandwidth_eff)
    traffic = np.array([np.linalg.norm(pair, ord=p) for pair in zip(work, memory, strict=True)])
    compute = 2 * 2 * heads * head_dim * requests * query_len * kv_len / (PEAK * 0.5)
    assert np.any(compute > traffic)
    return fit_decode_attention(
        attention_rows(columns, t0_s + np.maximum(traffic, compute), dtype), HARDWARE, flops_eff=0.5
    )


def prefill(t0_s: float, prefill_bandwidth_eff: float, flops_eff: float, dtype: Dtype = Dtype.BF16) -> Fit:
    columns = grid((1, 7), (10, 300, 4000), (32, 96), (1, 8), (1,), (64, 128))
    requests, length, heads, kv_heads, _, head_dim = columns
    stored = {Dtype.BF16: 2, Dtype.FP8: 1}[dtype]
    tokens = requests * length
    moved = 2 * 2 * tokens * heads * head_dim + 2 * stored * tokens * kv_heads * head_dim
    flops = 2 * 2 * heads * head_dim * requests * length * length / 2  # causal: half of all pairs
    seconds = t0_s + moved / (BANDWIDTH * prefill_bandwidth_eff) + flops / (PEAK * flops_eff)
    return fit_prefill_attention(attention_rows(columns, seconds, dtype), HARDWARE)


def elementwise(t0_s: float, bandwidth_eff: float) -> Fit:
    tokens = np.array([1.0, 8, 64, 512, 4096, 20_000])
    moved = tokens * 100_000
    return fit_elementwise(LayerRows(tokens, moved, t0_s + moved / (BANDWIDTH * bandwidth_eff)), HARDWARE)


def sampler(t0_s: float, bytes_per_logit: float) -> Fit:
    rows = np.array([1.0, 8, 64, 512, 4096, 20_000])
    logits = rows * 32_000
    return fit_sampler(SamplerRows(rows, logits, t0_s + logits * bytes_per_logit / 1e12), 1e12)


def all_reduce(t0_s: float, one_shot_bytes_per_s: float, two_shot_s: float, bytes_per_s: float) -> Fit:
    sent = 2.0 ** np.arange(16, 30, 0.5)
    one, two = sent / one_shot_bytes_per_s, two_shot_s + sent / bytes_per_s
    return fit_all_reduce(AllReduceRows(sent, t0_s + np.where(one < two, one, two)))


GEMM = {"t0_s": 5e-6, "bandwidth_eff": 0.8, "flops_eff": 0.7, "p": 2.5}
DECODE = {"t0_s": 9e-6, "tile_s": 4e-8, "bandwidth_eff": 0.8, "p": 1.7}
PREFILL = {"t0_s": 9e-6, "prefill_bandwidth_eff": 0.4, "flops_eff": 0.7}
REDUCE = {"t0_s": 7e-6, "one_shot_bytes_per_s": 5e10, "two_shot_s": 6e-6, "bytes_per_s": 1.5e11}
KERNELS: dict[str, tuple[Callable[..., Fit], dict[str, float]]] = {
    "gemm": (gemm, GEMM),
    "gemm_fp8": (gemm_fp8, GEMM | {"convert_eff": 0.3}),
    "decode": (decode, DECODE),
    "prefill": (prefill, PREFILL),
    "elementwise": (elementwise, {"t0_s": 7e-6, "bandwidth_eff": 0.9}),
    "sampler": (sampler, {"t0_s": 1.2e-5, "bytes_per_logit": 14.0}),
    "all_reduce": (all_reduce, REDUCE),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_without_noise_give_back_their_coefficients(kernel: str) -> None:
    made, true = KERNELS[kernel]
    found = made(**true)
    assert found.coefficients == pytest.approx(true, rel=1e-3)
    assert found.predicted_s == pytest.approx(found.measured_s, rel=1e-4)
    assert found.rows == len(found.measured_s)
    assert found.mape < 1e-4


@pytest.mark.parametrize(("made", "true"), [(decode, DECODE), (prefill, PREFILL)])
def test_an_fp8_cache_moves_a_byte_a_value(made: Callable[..., Fit], true: dict[str, float]) -> None:
    found = made(**true, dtype=Dtype.FP8)
    assert found.coefficients == pytest.approx(true, rel=1e-3)
    assert found.mape < 1e-4


BOUNDS = [
    ("gemm", "t0_s", 1e-7, 3e-5),
    ("gemm", "bandwidth_eff", 0.3, 1.0),
    ("gemm", "flops_eff", 0.3, 1.0),
    ("gemm", "p", 1.0, 20.0),
    ("gemm_fp8", "convert_eff", 0.02, 1.0),
    ("decode", "t0_s", 1e-6, 5e-5),
    ("decode", "tile_s", 1e-9, 1e-6),
    ("decode", "bandwidth_eff", 0.3, 1.0),
    ("decode", "p", 1.0, 20.0),
    ("prefill", "t0_s", 1e-6, 5e-5),
    ("prefill", "prefill_bandwidth_eff", 0.05, 1.0),
    ("prefill", "flops_eff", 0.05, 1.0),
    ("elementwise", "t0_s", 1e-7, 1e-4),
    ("elementwise", "bandwidth_eff", 0.05, 1.0),
    ("sampler", "t0_s", 1e-7, 1e-3),
    ("sampler", "bytes_per_logit", 0.1, 1000.0),
    ("all_reduce", "t0_s", 1e-7, 1e-4),
    ("all_reduce", "two_shot_s", 0.0, 5e-5),
]


@pytest.mark.parametrize(("kernel", "name", "low", "high"), BOUNDS)
def test_a_coefficient_stays_within_what_a_kernel_can_be(
    kernel: str, name: str, low: float, high: float
) -> None:
    """Rows of a kernel beyond what any GPU does: the coefficient ends at its bound, without an error."""
    made, true = KERNELS[kernel]
    for bound, beyond in ((low, low / 1.2 or -2e-6), (high, high * 1.2)):
        found = made(**true | {name: beyond})
        assert found.coefficients[name] == pytest.approx(bound, rel=1e-3, abs=1e-9)
        assert low <= found.coefficients[name] <= high


def level(y: Array, *, low: float = 0.1, high: float = 10.0) -> Fit:
    """All rows take the same time."""
    return fit("level", (Coefficient("level", 2.0, low, high),), lambda x: np.full(len(y), x[0]), y)


def test_a_level_and_its_error_are_those_of_the_soft_l1_loss() -> None:
    """4 rows at log 0, 3 at log L = 25/12 s, of scale s = 0.05. At residuals s tan a and s tan b the loss is
    least where 4 sin a = 3 sin b: at tan a = 3/4 and tan b = 4/3. Its curvature weighs rows by cos^3."""
    s = 0.05
    found = level(np.array([1.0] * 4 + [float(np.exp(s * 25 / 12))] * 3))
    assert found.coefficients["level"] == pytest.approx(np.exp(s * 3 / 4), rel=1e-6)
    squares = s**2 * (4 * (3 / 4) ** 2 + 3 * (4 / 3) ** 2)
    error = np.sqrt(squares / 6 / (4 * 0.8**3 + 3 * 0.6**3))
    assert found.stderr["level"] == pytest.approx(np.exp(s * 3 / 4) * error, rel=1e-4)
    over, under = np.exp(s * 3 / 4) - 1, 1 - np.exp(-s * 4 / 3)
    assert found.mape == pytest.approx((4 * over + 3 * under) / 7, rel=1e-6)


def test_a_coefficient_at_its_bound_takes_no_freedom_from_the_others() -> None:
    """y = a b^t; b ends at its bound of 2, so a is the mean of log y - t log 2 with an error of 7 degrees."""
    t = np.array([0.0] * 4 + [1.0] * 4)
    rest = np.array([0.003, -0.001, -0.002, 0.004, 0.012, 0.009, 0.011, 0.010])
    y = 3.0 * 2.0**t * np.exp(rest)
    found = fit(
        "growth",
        (Coefficient("a", 1.0, 0.1, 10.0), Coefficient("b", 1.5, 1.0, 2.0)),
        lambda x: np.asarray(x[0] * x[1] ** t),
        y,
    )
    assert found.coefficients["b"] == pytest.approx(2.0, rel=1e-6)
    assert found.stderr.keys() == {"a"}
    a = 3 * np.exp(rest.mean())
    assert found.coefficients["a"] == pytest.approx(a, rel=1e-4)
    error = np.sqrt(np.sum((rest - rest.mean()) ** 2) / 7 / 8)
    assert found.stderr["a"] == pytest.approx(a * error, rel=0.02)  # the loss bends by a hundredth there


def test_three_rows_a_coefficient_are_needed() -> None:
    assert level(np.ones(3)).coefficients["level"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="rows for level: got 2, at least 3 are needed"):
        level(np.ones(2))


def test_coefficients_without_an_effect_are_named() -> None:
    two = (Coefficient("seen", 1.0, 0.1, 10.0), Coefficient("unseen", 1.0, 0.1, 10.0))
    with pytest.raises(InputError, match="do not identify unseen; add"):
        fit("part", two, lambda x: np.full(8, x[0]), np.full(8, 2.0))
    with pytest.raises(InputError, match="do not identify all coefficients; add"):
        fit("product", two, lambda x: np.full(8, x[0] * x[1]), np.full(8, 2.0))
