"""Infer the host's share of a step from published vLLM timings, given the GPU's share from kernel tables.

At batch 1 every drafter pass is bound by the host (its GPU work is shorter, which :func:`fit_host` checks),
so step times are linear in the unknowns:

    step of no drafter        = GPU + step_s
    step that verifies K      = GPU + step_s + K x pass_s[proposer]        (heads)
    ... of a draft model      = GPU + step_s + K x layers x layer_s

A further fixed cost of a verifying step was tried: its best non-negative value is 0 (the breakdown has none,
the sweep over K alone would have 0.6 ms and shorter passes), so it is left out.

The growth with the batch comes from the ratio of two bars of one breakdown (overhead over drafting), which
needs no knowledge of the workload because the drafting of K host-bound passes does not grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from kplan.errors import InputError
from kplan.latency.fit_loops import request_s
from kplan.latency.model import LatencyModel
from kplan.latency.published import HostTimings, ShareRow
from kplan.latency.shape import StepShape
from kplan.profiles import DrafterKind

Array = NDArray[np.float64]
ModelFactory = Callable[[str, str | None, int], LatencyModel]

SINGLE_CONTEXT_TOKENS = 500
"""Context assumed for single requests; 1,000 tokens more change their step by 0.06 ms."""

HEADS = ("eagle", "eagle3")


@dataclass(frozen=True)
class HostFitResult:
    """Seconds with standard errors; ``rows`` counts the published figures each group used."""

    seconds: dict[str, float]
    stderr: dict[str, float]
    mape: float
    rows: int


@dataclass(frozen=True)
class _Equation:
    """unknowns . coefficients = seconds, seen in a step of ``step_s`` seconds."""

    group: tuple[str, str, str]
    unknowns: dict[str, float]
    seconds: float
    step_s: float


def fit_host(timings: HostTimings, model_of: ModelFactory) -> HostFitResult:
    """Solve for the host costs. ``model_of(model, proposer, tp)`` prices the GPU; its host costs must be 0.

    Rows of one source and proposer weigh together as much as those of another, so that a sweep over K does
    not outvote a breakdown. Raises InputError when a pass is not host bound after all.
    """
    sampling = _sampling_s(timings, model_of)
    equations = _equations(timings, model_of, sampling)
    names = sorted({name for equation in equations for name in equation.unknowns})
    crowd = Counter(equation.group for equation in equations)
    weight = np.array([1 / (e.step_s * np.sqrt(crowd[e.group])) for e in equations])
    matrix = np.array([[e.unknowns.get(name, 0.0) for name in names] for e in equations])
    target = np.array([e.seconds for e in equations])
    solution = lsq_linear(matrix * weight[:, None], target * weight, bounds=(0, np.inf))
    error = (matrix @ solution.x - target) * weight
    freedom = len(crowd) - len(names)
    if freedom < 1:
        raise InputError(
            "groups of host timings", len(crowd), f"must exceed {len(names)} unknowns", "add sources"
        )
    scaled = matrix * weight[:, None]
    covariance = np.linalg.inv(scaled.T @ scaled) * float(error @ error) / freedom
    values = dict(zip(names, map(float, solution.x), strict=True))
    stderr = dict(zip(names, map(float, np.sqrt(np.diag(covariance))), strict=True))
    _check_host_bound(values, model_of)
    slope, slope_error = _request_slope(timings, model_of)
    loop_models = {(row.model, row.tp): model_of(row.model, None, row.tp) for row in timings.loops}
    request, request_error = request_s(timings.loops, loop_models, values["step_s"] + sampling["plain"][0])
    lookup, lookup_error = _lookup_slope(timings, values, slope)
    values |= {
        "request_s": request,
        "request_total_s": slope,
        "lookup_s": lookup,
        **{f"sampling:{k}": v[0] for k, v in sampling.items()},
    }
    stderr |= {
        "request_s": request_error,
        "request_total_s": slope_error,
        "lookup_s": lookup_error,
        **{f"sampling:{k}": v[1] for k, v in sampling.items()},
    }
    step_error = (matrix @ solution.x - target) / np.array([e.step_s for e in equations])
    return HostFitResult(values, stderr, float(np.mean(np.abs(step_error))), len(equations))


def in_situ_error(timings: HostTimings, model: LatencyModel) -> float:
    """Mean relative distance of GPU verification from the published in-engine one, over its batches and K.

    Kernel tables come from short bursts; the linear model comes from steps of a running engine, so it can
    tell which of two GEMM sources a server sees. It is linear, so it is a judge, not a target.
    """
    linear = timings.linear
    distances = []
    for batch in linear.batches:
        for k in range(linear.k + 1):
            shape = StepShape.decode(batch, k, SINGLE_CONTEXT_TOKENS)
            seen = linear.verify_s(batch * (k + 1), batch * SINGLE_CONTEXT_TOKENS)
            distances.append(abs(float(model.step_seconds(shape).verify_s) / seen - 1))
    return float(np.mean(distances))


def _gpu_verify_s(model: LatencyModel, k: int) -> float:
    """GPU seconds of the target pass of one request that verifies ``k`` drafts."""
    return float(model.step_seconds(StepShape.decode(1, k, SINGLE_CONTEXT_TOKENS)).verify_s)


def _sampling_s(timings: HostTimings, model_of: ModelFactory) -> dict[str, tuple[float, float]]:
    """Sampling per step without and with a model drafter at batch 1: mean and standard error over models."""
    seen: dict[str, list[float]] = {"plain": [], "verify": []}
    for row in timings.shares:
        if row.batch == 1 and row.proposer != "ngram":
            gpu = _gpu_verify_s(model_of(row.model, None, row.tp), row.k)
            seen["plain" if row.proposer is None else "verify"].append(gpu * row.sampling / row.verification)
    return {key: (float(np.mean(s)), float(np.std(s, ddof=1) / np.sqrt(len(s)))) for key, s in seen.items()}


def _equations(
    timings: HostTimings, model_of: ModelFactory, sampling: dict[str, tuple[float, float]]
) -> list[_Equation]:
    equations = []
    for sweep in timings.k_sweep:
        gpu = _gpu_verify_s(model_of(sweep.model, None, 1), sweep.k)
        known = gpu + sampling["plain" if sweep.proposer is None else "verify"][0]
        unknowns = _unknowns(model_of, sweep.model, sweep.proposer, 1, sweep.k)
        group = (sweep.source, sweep.model, sweep.proposer or "off")
        equations.append(_Equation(group, unknowns, sweep.step_s - known, sweep.step_s))
    for share in timings.shares:
        if share.batch == 1 and share.proposer != "ngram":
            gpu = _gpu_verify_s(model_of(share.model, None, share.tp), share.k)
            seconds = gpu * (share.overhead + share.drafting) / share.verification
            unknowns = _unknowns(model_of, share.model, share.proposer, share.tp, share.k)
            group = (share.source, share.model, share.proposer or "off")
            equations.append(_Equation(group, unknowns, seconds, gpu * 100 / share.verification))
    linear = timings.linear
    gpu = _gpu_verify_s(model_of(linear.model, None, 1), linear.k)
    drafting = linear.draft_fixed_s + linear.draft_token_s * (linear.k + 1)
    equations.append(
        _Equation(
            (linear.source, linear.model, "off"), {"step_s": 1.0}, linear.overhead_s, gpu + linear.overhead_s
        )
    )
    equations.append(
        _Equation(
            (linear.source, linear.model, linear.proposer),
            _unknowns(model_of, linear.model, linear.proposer, 1, linear.k),
            linear.overhead_s + drafting,
            gpu + linear.overhead_s + drafting,
        )
    )
    return equations


def _unknowns(model_of: ModelFactory, model: str, proposer: str | None, tp: int, k: int) -> dict[str, float]:
    if proposer is None:
        return {"step_s": 1.0}
    drafter = model_of(model, proposer, tp).drafter
    if drafter is not None and drafter.kind is DrafterKind.MODEL and drafter.decoder is not None:
        return {"step_s": 1.0, "layer_s": float(k * drafter.decoder.layers)}
    return {"step_s": 1.0, f"pass_s:{proposer}": float(k)}


def _check_host_bound(values: dict[str, float], model_of: ModelFactory) -> None:
    for proposer in HEADS:
        model = model_of("llama-3.1-8b", proposer, 1)
        gpu_s = float(model.step_seconds(StepShape.decode(1, 1, SINGLE_CONTEXT_TOKENS)).draft_s)
        if gpu_s > values[f"pass_s:{proposer}"]:
            raise InputError(
                f"host time of a {proposer} pass",
                f"{values[f'pass_s:{proposer}'] * 1e3:.3f} ms",
                f"is below its GPU time of {gpu_s * 1e3:.3f} ms, so it is not identified",
            )


def _request_slope(timings: HostTimings, model_of: ModelFactory) -> tuple[float, float]:
    """Host seconds per request and step under speculation, from overhead / drafting of heads at batch > 1."""
    slopes = []
    for rows in _by_setting(timings, HEADS).values():
        single = next(row for row in rows if row.batch == 1)
        gpu = _gpu_verify_s(model_of(single.model, None, single.tp), single.k)
        drafting = gpu * single.drafting / single.verification
        overhead = {row.batch: drafting * row.overhead / row.drafting for row in rows}
        slopes += [(overhead[batch] - overhead[1]) / (batch - 1) for batch in overhead if batch > 1]
    return float(np.mean(slopes)), float(np.std(slopes, ddof=1) / np.sqrt(len(slopes)))


def _lookup_slope(timings: HostTimings, values: dict[str, float], request_s: float) -> tuple[float, float]:
    """Seconds of n-gram lookup per request, from drafting / overhead, the overhead being that of one step."""
    slopes = []
    for rows in _by_setting(timings, ("ngram",)).values():
        for row in rows:
            if row.batch > 1:
                overhead = values["step_s"] + request_s / 2 * row.batch
                slopes.append(overhead * row.drafting / row.overhead / row.batch)
    return float(np.mean(slopes)), float(np.std(slopes, ddof=1) / np.sqrt(len(slopes)))


def _by_setting(timings: HostTimings, proposers: tuple[str, ...]) -> dict[tuple[str, str], list[ShareRow]]:
    settings: dict[tuple[str, str], list[ShareRow]] = {}
    for row in timings.shares:
        if row.proposer in proposers:
            settings.setdefault((row.model, row.proposer), []).append(row)
    return settings
