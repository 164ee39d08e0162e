"""From request and step records to means, percentiles, goodput and confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kplan.config.plan import Stat, TimeSplit
from kplan.engine import Fleet
from kplan.engine.state import (
    DRAFT_S,
    OVERHEAD_S,
    PREEMPTIONS,
    SAMPLING_S,
    STEPS,
    SUMS,
    VERIFY_S,
    W_BATCH,
    W_CLOSE_S,
    W_CONTEXT,
    W_DECODE_EMITTED,
    W_DECODES,
    W_EMITTED,
    W_OPEN_S,
    W_PROPOSED,
    W_STEPS,
)

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

BACKLOG_SHARE = 0.03
"""A load is saturated when its backlog grows by more than this share of the requests that arrive."""
BLOCKS = 5
"""Blocks of consecutive requests per replication; intervals are over the means of the blocks."""


@dataclass(frozen=True)
class Measured:
    """One replication, measured in its window (warm-up and drain cut off).

    Attributes:
        ttft_s, tpot_s: (n,) per request of the window, in order of arrival within each replica; a request of
            one token has no TPOT (NaN).
        sums: (SUMS,) window sums over all replicas (see kplan.engine.state).
        window_s: (replicas,) seconds measured on each replica.
        emitted: (replicas,) tokens emitted in the window by each replica.
        admitted: (replicas,) requests admitted in the window by each replica.
        k_steps, batch_steps, accepted_steps: histograms over the window, summed over replicas.
        backlog_share: growth of the requests in the system over the window / requests arrived in it.
        backlog_noise: growth that chance alone would explain, same unit.
        steps, output_tokens, preemptions: counts over the whole run.
        end_s: simulated seconds of the whole run.
    """

    ttft_s: F64
    tpot_s: F64
    sums: F64
    window_s: F64
    emitted: F64
    admitted: I64
    k_steps: I64
    batch_steps: I64
    accepted_steps: I64
    backlog_share: float
    backlog_noise: float
    requests: int
    steps: int
    output_tokens: int
    preemptions: int
    end_s: float

    @property
    def saturated(self) -> bool:
        """The backlog grew, by more than chance explains."""
        return self.backlog_share > max(BACKLOG_SHARE, self.backlog_noise)

    @property
    def output_tok_s(self) -> float:
        """Output tokens per second of all replicas."""
        return float((self.emitted / self.window_s).sum())

    @property
    def admitted_qps(self) -> float:
        """Requests admitted per second of all replicas: the sustained rate under overload."""
        return float((self.admitted / self.window_s).sum())

    @property
    def mean_tpot_s(self) -> float:
        """Mean TPOT over the requests of the window."""
        return float(np.nanmean(self.tpot_s)) if np.isfinite(self.tpot_s).any() else float("nan")


def measure(fleet: Fleet) -> Measured:
    """Reduce the arrays of a finished fleet."""
    ttft, tpot, sums = [], [], np.zeros(SUMS)
    window, emitted, admitted = [], [], []
    growth = noise = arrived = 0.0
    for replica in fleet.replicas:
        req, m, limits = replica.requests, replica.machine, replica.limits
        rows = slice(limits.window_from, limits.window_to)
        ttft.append((req.first_token_s - req.arrival_s)[rows])
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = (req.finish_s - req.first_token_s) / (req.output_len - 1)
        tpot.append(np.where(req.output_len > 1, spread, np.nan)[rows])
        sums += np.nan_to_num(m.sums)
        window.append(m.sums[W_CLOSE_S] - m.sums[W_OPEN_S])
        emitted.append(m.sums[W_EMITTED])
        admitted.append(limits.window_to - limits.window_from)
        if not limits.closed:
            up, chance = _backlog(req.arrival_s, req.finish_s, rows)
            growth += up
            noise += chance
            arrived += limits.window_to - limits.window_from
    machines = [replica.machine for replica in fleet.replicas]
    return Measured(
        ttft_s=np.concatenate(ttft),
        tpot_s=np.concatenate(tpot),
        sums=sums,
        window_s=np.array(window),
        emitted=np.array(emitted),
        admitted=np.array(admitted, np.int64),
        k_steps=np.sum([m.k_steps for m in machines], axis=0),
        batch_steps=np.sum([m.batch_steps for m in machines], axis=0),
        accepted_steps=np.sum([m.accepted_steps for m in machines], axis=0),
        backlog_share=growth / arrived if arrived else 0.0,
        backlog_noise=noise / arrived if arrived else 0.0,
        requests=sum(len(r.requests) for r in fleet.replicas),
        steps=int(sum(m.counters[STEPS] for m in machines)),
        output_tokens=int(sum(r.requests.emitted.sum() for r in fleet.replicas)),
        preemptions=int(sum(m.counters[PREEMPTIONS] for m in machines)),
        end_s=fleet.end_s,
    )


def _backlog(arrival_s: F64, finish_s: F64, rows: slice) -> tuple[float, float]:
    """Growth of the number in the system over the window (least-squares line), and 4 sigma of chance.

    The number in the system after each arrival is arrivals so far minus departures so far.
    """
    at = arrival_s[rows]
    if len(at) < 8 or at[-1] <= at[0]:
        return 0.0, 0.0
    departed = np.searchsorted(np.sort(finish_s), at, side="right")
    inside = np.arange(rows.start + 1, rows.stop + 1) - departed
    slope = np.polyfit(at - at[0], inside, 1)[0]
    return float(slope * (at[-1] - at[0])), float(4.0 * np.sqrt(2.0 * inside.mean()))


def stat_ms(runs: Sequence[Measured], field: str) -> Stat | None:
    """Mean, percentiles and the 95% interval of the mean of ``ttft_s`` or ``tpot_s``, in ms."""
    samples = [getattr(run, field) * 1e3 for run in runs]
    pooled = np.concatenate(samples)
    pooled = pooled[np.isfinite(pooled)]
    if len(pooled) == 0:
        return None
    means = np.concatenate([block_means(sample) for sample in samples])
    low, high = mean_interval(means[np.isfinite(means)], float(pooled.mean()))
    return Stat(
        mean=float(pooled.mean()),
        p50=float(np.percentile(pooled, 50)),
        p99=float(np.percentile(pooled, 99)),
        ci95=(low, high),
    )


def block_means(values: F64) -> F64:
    """(BLOCKS,) means of consecutive blocks of requests, NaNs left out; NaN for an empty block."""
    parts = [part[np.isfinite(part)] for part in np.array_split(values, BLOCKS)]
    return np.array([part.mean() if len(part) else np.nan for part in parts])


def mean_interval(values: F64, center: float | None = None) -> tuple[float, float]:
    """Student's 95% interval of a mean over independent (or batched) ``values``; a point if there is one."""
    mid = float(np.mean(values)) if center is None else center
    if len(values) < 2:
        return mid, mid
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return mid - half, mid + half


def attainment(run: Measured, tpot_s: float | None, ttft_s: float | None) -> float:
    """Share of the window's requests that met every SLO given."""
    good = np.ones(len(run.ttft_s), np.bool_)
    if tpot_s is not None:
        good &= ~(run.tpot_s > tpot_s)
    if ttft_s is not None:
        good &= run.ttft_s <= ttft_s
    return float(good.mean()) if len(good) else 0.0


def total(runs: Sequence[Measured], index: int) -> float:
    """One window sum over all replications."""
    return float(sum(run.sums[index] for run in runs))


def ratio(runs: Sequence[Measured], top: int, bottom: int) -> float:
    """Quotient of two window sums, 0 when the denominator is empty."""
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
