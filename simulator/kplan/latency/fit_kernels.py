"""Fit the roofline of single kernels: robust least squares on relative errors, with bounds and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from kplan.errors import InputError
from kplan.latency import fit_tables
from kplan.latency.ops import BF16_BYTES, conversion_bytes
from kplan.profiles import Dtype, Hardware

Array = NDArray[np.float64]

OUTLIER_SCALE = 0.05
"""Relative error above which a row counts linearly, no longer quadratically (soft L1)."""

MIN_ROWS_PER_COEFFICIENT = 3


@dataclass(frozen=True)
class Fit:
    """Coefficients of one kernel model.

    Attributes:
        coefficients: name -> value; stderr: name -> its standard error, same unit; none at a bound.
        measured_s, predicted_s: (r,) seconds of the rows used.
    """

    coefficients: dict[str, float]
    stderr: dict[str, float]
    measured_s: Array
    predicted_s: Array

    @property
    def rows(self) -> int:
        return len(self.measured_s)

    @property
    def mape(self) -> float:
        """Mean absolute relative error."""
        return float(np.mean(np.abs(self.predicted_s / self.measured_s - 1.0)))


@dataclass(frozen=True)
class Coefficient:
    """A name with its starting point and bounds."""

    name: str
    start: float
    low: float
    high: float


def fit(what: str, coefficients: tuple[Coefficient, ...], model: Callable[[Array], Array], y: Array) -> Fit:
    """Minimise the soft-L1 loss of log(model / y). ``model`` maps (c,) coefficients to (r,) seconds.

    Raises InputError when rows are too few, or leave a coefficient without effect on any row.
    """
    needed = MIN_ROWS_PER_COEFFICIENT * len(coefficients)
    if len(y) < needed:
        raise InputError(f"rows for {what}", len(y), f"at least {needed} are needed", "add measurements")
    scale = np.array([c.start for c in coefficients])

    def residual(x: Array) -> Array:
        return np.asarray(np.log(model(x * scale) / y), dtype=np.float64)

    bounds = (
        np.array([c.low for c in coefficients]) / scale,
        np.array([c.high for c in coefficients]) / scale,
    )
    solution = least_squares(
        residual, np.ones(len(scale)), bounds=bounds, loss="soft_l1", f_scale=OUTLIER_SCALE, x_scale="jac"
    )
    error = residual(solution.x)
    jacobian = solution.jac
    if np.linalg.matrix_rank(jacobian) < len(scale):
        blind = [
            c.name
            for c, effect in zip(coefficients, np.abs(jacobian).max(axis=0), strict=True)
            if effect < 1e-9
        ]
        raise InputError(
            f"rows for {what}",
            len(y),
            f"do not identify {', '.join(blind) or 'all coefficients'}",
            "add that regime",
        )
    # A coefficient at its bound is not free: it has no standard error and takes none of the others'.
    free = solution.active_mask == 0
    inside = jacobian[:, free]
    covariance = np.linalg.inv(inside.T @ inside) * float(error @ error) / (len(y) - int(free.sum()))
    names = [c.name for c in coefficients]
    free_names = [name for name, is_free in zip(names, free, strict=True) if is_free]
    return Fit(
        coefficients=dict(zip(names, map(float, solution.x * scale), strict=True)),
        stderr=dict(zip(free_names, map(float, np.sqrt(np.diag(covariance)) * scale[free]), strict=True)),
        measured_s=y,
        predicted_s=model(solution.x * scale),
    )


def fit_gemm(rows: fit_tables.GemmRows, hardware: Hardware) -> Fit:
    """t0 + ((bytes / (BW e_b))^p + (flops / (peak e_f))^p)^(1/p), the peak being that of the weights' format.

    Weights and inputs have the format's bytes, outputs two, as steps are priced. The table's fp8 times hold
    the conversion of the inputs, a pass of its own: its bytes / (BW e_c) come on top.
    """
    traffic = rows.dtype.bytes * rows.k * (rows.n + rows.m) + BF16_BYTES * rows.m * rows.n
    flops = 2.0 * rows.m * rows.n * rows.k
    memory_s = traffic / hardware.bandwidth_bytes_s.value
    compute_s = flops / hardware.peak(rows.dtype).value

    converts = rows.dtype is not Dtype.BF16
    convert_s = conversion_bytes(rows.dtype) * rows.m * rows.k / hardware.bandwidth_bytes_s.value

    def model(x: Array) -> Array:
        t0, bandwidth_eff, flops_eff, p = x[:4]
        product = ((memory_s / bandwidth_eff) ** p + (compute_s / flops_eff) ** p) ** (1 / p)
        return np.asarray(t0 + product + (convert_s / x[4] if converts else 0.0))

    return fit(
        "GEMM",
        (
            Coefficient("t0_s", 4e-6, 1e-7, 3e-5),
            Coefficient("bandwidth_eff", 0.85, 0.3, 1.0),
            Coefficient("flops_eff", 0.8, 0.3, 1.0),
            Coefficient("p", 3.0, 1.0, 20.0),
            *([Coefficient("convert_eff", 0.5, 0.02, 1.0)] if converts else []),
        ),
        model,
        rows.seconds,
    )


def fit_decode_attention(rows: fit_tables.AttentionRows, hardware: Hardware, flops_eff: float) -> Fit:
    """t0 + max(((tile x requests x KV heads)^p + (bytes / (BW e_b))^p)^(1/p), flops / (peak e_f)), one layer.

    As priced: the KV cache is read once per request, inputs and outputs grow with the query length.

    Args:
        flops_eff: e_f, from prefill; only long queries come near it.
    """
    tiles = rows.requests * rows.kv_heads
    head_bytes = rows.head_dim * 2.0 * rows.dtype.bytes
    queries = rows.requests * rows.query_len
    query = queries * 2 * rows.heads * rows.head_dim * BF16_BYTES
    memory_s = (tiles * rows.kv_len * head_bytes + query) / hardware.bandwidth_bytes_s.value
    flops = 4.0 * rows.heads * rows.head_dim * queries * rows.kv_len
    compute_s = flops / (hardware.peak_flops.value * flops_eff)

    def model(x: Array) -> Array:
        t0, tile, bandwidth_eff, p = x
        traffic = ((tile * tiles) ** p + (memory_s / bandwidth_eff) ** p) ** (1 / p)
        return np.asarray(t0 + np.maximum(traffic, compute_s))

    return fit(
        "decode attention",
        (
            Coefficient("t0_s", 1e-5, 1e-6, 5e-5),
            Coefficient("tile_s", 2.5e-8, 1e-9, 1e-6),
            Coefficient("bandwidth_eff", 0.9, 0.3, 1.0),
            Coefficient("p", 1.5, 1.0, 20.0),
        ),
        model,
        rows.seconds,
    )


def fit_prefill_attention(rows: fit_tables.AttentionRows, hardware: Hardware) -> Fit:
    """t0 + bytes / (BW e_b) + causal flops / (peak e_f): the smooth maximum fits with p = 1, a plain sum.

    The peak is bf16's whatever the cache holds, as attention is priced.
    """
    tokens = rows.requests * rows.kv_len
    values = rows.heads * BF16_BYTES + rows.kv_heads * rows.dtype.bytes
    memory_s = tokens * 2 * values * rows.head_dim / hardware.bandwidth_bytes_s.value
    pairs = rows.requests * rows.kv_len**2 / 2
    compute_s = 4.0 * rows.heads * rows.head_dim * pairs / hardware.peak_flops.value

    def model(x: Array) -> Array:
        t0, bandwidth_eff, flops_eff = x
        return np.asarray(t0 + memory_s / bandwidth_eff + compute_s / flops_eff)

    return fit(
        "prefill attention",
        (
            Coefficient("t0_s", 1e-5, 1e-6, 5e-5),
            Coefficient("prefill_bandwidth_eff", 0.5, 0.05, 1.0),
            Coefficient("flops_eff", 0.6, 0.05, 1.0),
        ),
        model,
        rows.seconds,
    )


def fit_elementwise(rows: fit_tables.LayerRows, hardware: Hardware) -> Fit:
    """Per layer: t0 + bytes / (BW e_b)."""
    memory_s = rows.traffic_bytes / hardware.bandwidth_bytes_s.value

    def model(x: Array) -> Array:
        t0, bandwidth_eff = x
        return np.asarray(t0 + memory_s / bandwidth_eff)

    return fit(
        "elementwise operations",
        (Coefficient("t0_s", 1e-5, 1e-7, 1e-4), Coefficient("bandwidth_eff", 0.8, 0.05, 1.0)),
        model,
        rows.seconds,
    )


def fit_sampler(rows: fit_tables.SamplerRows, bytes_s: float) -> Fit:
    """t0 + logits x bytes_per_logit / bytes_s. The launches (t0) are paid by the host, whose fit is another.

    Args:
        bytes_s: what elementwise work reaches of the bandwidth, by which the sampler is priced.
    """

    def model(x: Array) -> Array:
        t0, bytes_per_logit = x
        return np.asarray(t0 + rows.logits * bytes_per_logit / bytes_s)

    return fit(
        "sampler",
        (Coefficient("t0_s", 1e-5, 1e-7, 1e-3), Coefficient("bytes_per_logit", 10.0, 0.1, 1000.0)),
        model,
        rows.seconds,
    )


def fit_all_reduce(rows: fit_tables.AllReduceRows) -> Fit:
    """t0 + min(bytes / rate in one shot, one more exchange + bytes / rate in two)."""

    def model(x: Array) -> Array:
        t0, one_shot, exchange, rate = x
        sent = rows.message_bytes
        return np.asarray(t0 + np.minimum(sent / one_shot, exchange + sent / rate))

    return fit(
        "all-reduce",
        (
            Coefficient("t0_s", 5e-6, 1e-7, 1e-4),
            Coefficient("one_shot_bytes_per_s", 6e10, 1e9, 1e12),
            Coefficient("two_shot_s", 4e-6, 0.0, 5e-5),
            Coefficient("bytes_per_s", 2e11, 1e9, 1e12),
        ),
        model,
        rows.seconds,
    )
