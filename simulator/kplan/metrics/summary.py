"""From replications to means, percentiles, goodput and confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kplan.config.plan import MixResult, Stat, TimeSplit
from kplan.engine.state import (
    DRAFT_S,
    OVERHEAD_S,
    SAMPLING_S,
    VERIFY_S,
    W_BATCH,
    W_CONTEXT,
    W_DECODE_EMITTED,
    W_DECODES,
    W_PROPOSED,
    W_STEPS,
    W_SWITCHES,
)
from kplan.metrics.measured import Measured, run_mean

F64 = NDArray[np.float64]


def stat_ms(runs: Sequence[Measured], field: str) -> Stat | None:
    """Mean, percentiles and the 95% interval of the mean of a ``field``, ``ttft_s`` or ``tpot_s``, in ms."""
    samples = [getattr(run, field) * 1e3 for run in runs]
    pooled = np.concatenate(samples)
    pooled = pooled[np.isfinite(pooled)]
    if len(pooled) == 0:
        return None
    means = np.array([run_mean(sample) for sample in samples])
    interval = mean_interval(means, float(pooled.mean()))
    return Stat(
        mean=float(pooled.mean()),
        p50=float(np.percentile(pooled, 50)),
        p99=float(np.percentile(pooled, 99)),
        ci95=interval,
    )


def mean_interval(values: F64, center: float | None = None) -> tuple[float, float] | None:
    """As :func:`interval` of ``values`` around ``center``, for a mean that is never negative."""
    found = interval(values, center)
    return None if found is None else (max(found[0], 0.0), found[1])


def interval(values: F64, center: float | None = None) -> tuple[float, float] | None:
    """Student's 95% interval of the mean of ``values``, one a replication, around ``center``.

    None with fewer than two: a run says nothing of its own spread, since its requests share their batches
    (blocks of one run, taken for independent, held the true mean in 37% to 90% of the cases).
    """
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    mid = float(np.mean(values)) if center is None else center
    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return mid - half, mid + half


def attainment(run: Measured, tpot_s: float | None, ttft_s: float | None) -> float:
    """Share of the window's requests that met every SLO given: ``tpot_s``, ``ttft_s`` in seconds."""
    return float(_good(run.ttft_s, run.tpot_s, tpot_s, ttft_s).mean()) if len(run.ttft_s) else 0.0


def goodput_qps(run: Measured, tpot_s: float | None, ttft_s: float | None) -> float:
    """Requests per second that finished and met the SLOs given (else all): ``tpot_s``, ``ttft_s``."""
    ttft, tpot, share = run.done.T
    return float(share[_good(ttft, tpot, tpot_s, ttft_s)].sum())


def _good(ttft: F64, tpot: F64, tpot_s: float | None, ttft_s: float | None) -> NDArray[np.bool_]:
    good = np.ones(len(ttft), np.bool_)
    if tpot_s is not None:
        good &= ~(tpot > tpot_s)
    if ttft_s is not None:
        good &= ttft <= ttft_s
    return good


def total(runs: Sequence[Measured], index: int) -> float:
    """One window sum, of column ``index``, over all replications."""
    return float(sum(run.sums[index] for run in runs))


def ratio(runs: Sequence[Measured], top: int, bottom: int) -> float:
    """Quotient of two window sums, of column ``top`` over ``bottom``; 0 where that sums to 0."""
    below = total(runs, bottom)
    return total(runs, top) / below if below else 0.0


def time_split(runs: Sequence[Measured]) -> TimeSplit:
    """Mean seconds of one step by what they were spent on."""
    return TimeSplit(
        verify_s=ratio(runs, VERIFY_S, W_STEPS),
        draft_s=ratio(runs, DRAFT_S, W_STEPS),
        sampling_s=ratio(runs, SAMPLING_S, W_STEPS),
        overhead_s=ratio(runs, OVERHEAD_S, W_STEPS),
    )


def mean_batch(runs: Sequence[Measured]) -> float:
    """Requests per step, prefills included."""
    return ratio(runs, W_BATCH, W_STEPS)


def mean_k(runs: Sequence[Measured]) -> float:
    """Drafts verified per decoding request and step."""
    return ratio(runs, W_PROPOSED, W_DECODES)


def mean_context(runs: Sequence[Measured]) -> float:
    """Context of a decoding request, tokens."""
    return ratio(runs, W_CONTEXT, W_DECODES)


def acceptance_length(runs: Sequence[Measured]) -> float:
    """Tokens per decoding request and step, bonus included."""
    return ratio(runs, W_DECODE_EMITTED, W_DECODES)


def k_share(runs: Sequence[Measured]) -> dict[str, float]:
    """Share of decoding request-steps at each number of drafts verified; zero shares are left out."""
    counts = np.sum([run.k_steps for run in runs], axis=0)
    whole = counts.sum()
    return {str(k): float(c / whole) for k, c in enumerate(counts) if c} if whole else {}


def mix_result(runs: Sequence[Measured], proposers: Sequence[str]) -> MixResult:
    """Who drafted, of the ``proposers`` in the order of the engine, and how often requests changed."""
    steps = np.sum([run.proposer_steps for run in runs], axis=0)
    whole = total(runs, W_DECODES)
    shares = [float(one / whole) if whole else 0.0 for one in steps]
    return MixResult(
        proposer_share=dict(zip(proposers, shares, strict=True)),
        switches_per_1000=1000 * ratio(runs, W_SWITCHES, W_DECODES),
    )
