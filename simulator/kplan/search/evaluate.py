"""Run policies under common random numbers and turn the replications into comparable results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan import metrics
from kplan.config.plan import PolicyResult
from kplan.engine.state import W_STEPS
from kplan.metrics import Measured
from kplan.registry import PolicySpec
from kplan.simulate import Drawn, Setup, run_policy, sustained_qps

OVER, CLOSE = 0.995, 0.95
"""A load above the share OVER of the sustained rate is saturated. Above CLOSE it is when its backlog grows: a
run cannot tell slow settling from none there."""


@dataclass(frozen=True)
class Evaluated:
    """One policy's replications with its sustained rate over all replicas."""

    spec: PolicySpec
    runs: tuple[Measured, ...]
    max_qps: float
    saturated: bool

    @property
    def tpot_s(self) -> float:
        """Mean TPOT, NaN when saturated or when nothing decoded."""
        if self.saturated:
            return float("nan")
        return float(np.mean([run.mean_tpot_s for run in self.runs]))


def evaluate(
    setup: Setup, spec: PolicySpec, drawn: Sequence[Drawn], replicas: int, max_qps: float
) -> Evaluated:
    """Simulate ``spec`` once per element of ``drawn``.

    Args:
        max_qps: its sustained rate over all replicas (see :func:`capacity`).
    """
    runs = tuple(run_policy(setup, spec, requests, replicas=replicas) for requests in drawn)
    qps = setup.scenario.qps
    growing = sum(run.saturated for run in runs) * 2 > len(runs)
    share = 0.0 if qps is None else qps / max_qps
    return Evaluated(spec, runs, max_qps, saturated=share > OVER or (growing and share > CLOSE))


def capacity(setup: Setup, spec: PolicySpec, drawn: Drawn) -> float:
    """Requests per second that one replica sustains with ``spec``."""
    return sustained_qps(setup, spec, drawn)


def paired_speedup(base: Evaluated, other: Evaluated) -> tuple[float, tuple[float, float]] | None:
    """Mean TPOT of ``base`` over that of ``other``, with the paired 95% interval.

    The requests are the same ones in the same order, so the pairs are blocks of consecutive requests of each
    replication. None when either is saturated or has no TPOT.
    """
    if base.saturated or other.saturated:
        return None
    ratios = [
        upper / lower
        for one, two in zip(base.runs, other.runs, strict=True)
        for upper, lower in zip(metrics.block_means(one.tpot_s), metrics.block_means(two.tpot_s), strict=True)
    ]
    values = np.array([x for x in ratios if np.isfinite(x)])
    if len(values) == 0:
        return None
    return float(values.mean()), metrics.mean_interval(values)


def result(setup: Setup, done: Evaluated, off: Evaluated | None, engine: str) -> PolicyResult:
    """The record of one policy, as written to plan.json and printed by ``--json``."""
    scenario, runs, spec = setup.scenario, done.runs, done.spec
    info = spec.info
    slo_tpot = scenario.slo_tpot_ms / 1e3 if scenario.slo_tpot_ms else None
    slo_ttft = scenario.slo_ttft_ms / 1e3 if scenario.slo_ttft_ms else None
    speedup = paired_speedup(off, done) if off is not None else None
    tok_s = np.array([run.output_tok_s for run in runs])
    goodput = np.array([metrics.attainment(run, slo_tpot, slo_ttft) * run.admitted_qps for run in runs])
    exportable = engine in info.engines
    why_not = info.why_not
    if not exportable and info.engines:
        why_not = f"{engine} has no such policy; it runs on {', '.join(info.engines)}"
    return PolicyResult(
        name=spec.text,
        exportable=exportable,
        why_not="" if exportable else why_not,
        tpot_ms=None if done.saturated else metrics.stat_ms(runs, "tpot_s"),
        ttft_ms=None if done.saturated else metrics.stat_ms(runs, "ttft_s"),
        output_tok_s=float(tok_s.mean()),
        output_tok_s_ci95=_interval(tok_s),
        goodput_qps=float(goodput.mean()),
        goodput_ci95=_interval(goodput),
        speedup_vs_off=speedup[0] if speedup else None,
        speedup_ci95=speedup[1] if speedup else None,
        mean_batch=metrics.mean_batch(runs),
        mean_k=metrics.mean_k(runs),
        acceptance_length=metrics.acceptance_length(runs),
        saturated=done.saturated,
        max_qps=done.max_qps if scenario.qps is not None else None,
        split=metrics.time_split(runs),
        mean_context=metrics.mean_context(runs),
        preemptions=sum(run.preemptions for run in runs),
        k_share=metrics.k_share(runs),
    )


def _interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    """95% interval over replications; one replication says nothing about its own spread."""
    return metrics.mean_interval(values) if len(values) > 1 else None


def batch_quantiles(done: Evaluated, *quantiles: float) -> tuple[int, ...]:
    """Batch sizes below which the given shares of the measured steps lie."""
    counts = np.sum([run.batch_steps for run in done.runs], axis=0)
    if metrics.total(done.runs, W_STEPS) == 0:
        return tuple(0 for _ in quantiles)
    cumulated = np.cumsum(counts) / counts.sum()
    return tuple(int(np.searchsorted(cumulated, q)) for q in quantiles)
