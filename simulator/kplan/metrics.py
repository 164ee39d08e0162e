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


@dataclass(frozen=True)
class Measured:
    """One replication, measured in its window (warm-up and drain cut off).

    Attributes:
        ttft_s, tpot_s: (n,) per request of the window, in order of arrival within each replica; a request of
            one token has no TPOT (NaN).
        done: (m, 3) TTFT, TPOT, and 1 / window seconds of its replica (scaled), of every request that
            finished while the window was open.
        sums: (SUMS,) window sums over all replicas (see kplan.engine.state).
        window_s: (replicas,) seconds measured on each replica.
        emitted: (replicas,) tokens emitted in the window by each replica, scaled.
        k_steps, batch_steps: histograms over the window, summed over replicas.
        backlog_share: growth of the requests in the system over the window / requests arrived in it.
        backlog_noise: growth that chance alone would explain, same unit.
        steps, output_tokens, preemptions: counts over the whole run.
    """

    ttft_s: F64
    tpot_s: F64
    done: F64
    sums: F64
    window_s: F64
    emitted: F64
    k_steps: I64
    batch_steps: I64
    backlog_share: float
    backlog_noise: float
    requests: int
    steps: int
    output_tokens: int
    preemptions: int

    @property
    def saturated(self) -> bool:
        """The backlog grew, by more than chance explains."""
        return self.backlog_share > max(BACKLOG_SHARE, self.backlog_noise)

    @property
    def output_tok_s(self) -> float:
        """Output tokens per second of all replicas."""
        return float((self.emitted / self.window_s).sum())

    @property
    def mean_tpot_s(self) -> float:
        """Mean TPOT over the requests of the window."""
        return run_mean(self.tpot_s)


def measure(fleet: Fleet, scale: float = 1.0) -> Measured:
    """Reduce the arrays of a finished fleet.

    Args:
        scale: replicas there are / replicas simulated; rates are multiplied by it.
    """
    ttft, tpot, done, sums = [], [], [], np.zeros(SUMS)
    window, emitted = [], []
    growth = noise = arrived = 0.0
    for replica in fleet.replicas:
        req, m, rows = replica.requests[replica.admitted], replica.machine, replica.window
        first_s = req.first_token_s - req.arrival_s
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = (req.finish_s - req.first_token_s) / (req.output_len - 1)
        token_s = np.where(req.output_len > 1, spread, np.nan)
        ttft.append(first_s[rows])
        tpot.append(token_s[rows])
        sums += np.nan_to_num(m.sums)
        open_s, close_s = m.sums[W_OPEN_S], m.sums[W_CLOSE_S]
        window.append(close_s - open_s)
        inside = (req.finish_s > open_s) & (req.finish_s <= close_s)
        share = np.full(int(inside.sum()), scale / (close_s - open_s))
        done.append(np.column_stack([first_s[inside], token_s[inside], share]))
        emitted.append(m.sums[W_EMITTED])
        if not replica.limits.closed:
            up, chance = _backlog(req.arrival_s, req.finish_s, rows)
            growth += up
            noise += chance
            arrived += rows.stop - rows.start
    machines = [replica.machine for replica in fleet.replicas]
    return Measured(
        ttft_s=np.concatenate(ttft),
        tpot_s=np.concatenate(tpot),
        done=np.concatenate(done),
        sums=sums,
        window_s=np.array(window),
        emitted=scale * np.array(emitted),
        k_steps=np.sum([m.k_steps for m in machines], axis=0),
        batch_steps=np.sum([m.batch_steps for m in machines], axis=0),
        backlog_share=growth / arrived if arrived else 0.0,
        backlog_noise=noise / arrived if arrived else 0.0,
        requests=sum(len(r.admitted) for r in fleet.replicas),
        steps=int(sum(m.counters[STEPS] for m in machines)),
        output_tokens=int(sum(r.requests.emitted[r.admitted].sum() for r in fleet.replicas)),
        preemptions=int(sum(m.counters[PREEMPTIONS] for m in machines)),
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
    means = np.array([run_mean(sample) for sample in samples])
    interval = mean_interval(means, float(pooled.mean()))
    return Stat(
        mean=float(pooled.mean()),
        p50=float(np.percentile(pooled, 50)),
        p99=float(np.percentile(pooled, 99)),
        ci95=interval,
    )


def run_mean(values: F64) -> float:
    """Mean of one replication's values, NaNs left out; NaN when none is left."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def mean_interval(values: F64, center: float | None = None) -> tuple[float, float] | None:
    """Student's 95% interval of a non-negative mean over independent replications, around ``center``.

    None with fewer than two: a run says nothing of its own spread, since its requests share their batches
    (blocks of one run, taken for independent, held the true mean in 37% to 90% of the cases).
    """
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    mid = float(np.mean(values)) if center is None else center
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return max(mid - half, 0.0), mid + half


def attainment(run: Measured, tpot_s: float | None, ttft_s: float | None) -> float:
    """Share of the window's requests that met every SLO given."""
    return float(_good(run.ttft_s, run.tpot_s, tpot_s, ttft_s).mean()) if len(run.ttft_s) else 0.0


def goodput_qps(run: Measured, tpot_s: float | None, ttft_s: float | None) -> float:
    """Requests per second that finished and met every SLO given (all that finished, without one)."""
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
