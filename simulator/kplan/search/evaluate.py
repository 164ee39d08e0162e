"""Run policies under common random numbers and turn the replications into comparable results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kplan import metrics
from kplan.config.plan import PolicyResult
from kplan.engine.state import W_STEPS
from kplan.errors import InputError
from kplan.metrics import Measured, Steadiness
from kplan.registry import PolicySpec
from kplan.simulate import SIMULATED, Drawn, Setup, Sustained, for_each, is_off, kv_tokens_of, run_policy

ATTAINMENT = 0.9
"""Share of requests that must meet the SLOs for a policy to meet them."""
OVER, CLOSE = 0.995, 0.95
"""A load above the share OVER of the sustained rate is saturated. Above CLOSE it is when its backlog grows: a
run cannot tell slow settling from none there."""


@dataclass(frozen=True)
class Evaluated:
    """One policy's replications with its sustained rate over all replicas."""

    spec: PolicySpec
    runs: tuple[Measured, ...]
    sustained: Sustained
    saturated: bool

    @property
    def max_qps(self) -> float:
        """Sustained rate over all replicas."""
        return self.sustained.qps

    @property
    def steadiness(self) -> Steadiness:
        """Whether the windows, of all replications together, still hold some of the warm-up."""
        series = sum(len(run.window_s) for run in self.runs)
        return metrics.steadiness(np.sum([run.bins for run in self.runs], axis=0), series)

    @property
    def tpot_s(self) -> float:
        """Mean TPOT over all requests, NaN when saturated or when nothing decoded."""
        if self.saturated:
            return float("nan")
        return metrics.run_mean(np.concatenate([run.tpot_s for run in self.runs]))


def check_room(setup: Setup, specs: Sequence[PolicySpec]) -> None:
    """Refuse requests that one of the policies has no KV cache for, before any of them is simulated.

    Raises:
        InputError: the longest request and its drafts do not fit one replica, or a policy that drafts a tree
            otherwise than it is.
    """
    _check_tree(setup, specs)
    block = setup.engine.block_size
    room = min(
        kv_tokens_of(setup, spec) // block * block - 1 - (0 if is_off(spec) else setup.scenario.max_k)
        for spec in specs
    )
    longest = setup.lengths.longest_request
    if longest > room:
        raise InputError(
            "request length", longest, f"the KV cache of one replica has room for {room} tokens and drafts",
            f"use more GPUs per replica (--tp), or end requests earlier: --max-model-len {room}",
        )  # fmt: skip


def _check_tree(setup: Setup, specs: Sequence[PolicySpec]) -> None:
    """Refuse a K that is not the tree's: its acceptance is known for the nodes that it verifies."""
    tree = setup.drafter.tree
    if tree is None:
        return
    served = f"fixed:{tree.verified}"
    for spec in specs:
        if not is_off(spec) and spec.text != served:
            raise InputError(
                "policy",
                spec.text,
                f"the tree of {setup.drafter.proposer} verifies K = {tree.verified} at every step",
                f"use {served} or off, or another tree (--drafter FILE.yaml)",
            )


def evaluate(
    setup: Setup,
    spec: PolicySpec,
    drawn: Sequence[Drawn],
    replicas: int,
    sustained: Sustained,
    simulated: int = SIMULATED,
) -> Evaluated:
    """Simulate ``spec`` once per element of ``drawn``.

    Args:
        sustained: its rate over all replicas (see kplan.simulate.sustained).
        simulated: replicas simulated where there are more (see kplan.simulate.run_policy).
    """
    # the replications of a log differ in what is accepted alone
    alike = is_off(spec) and setup.log is not None
    runs = tuple(
        for_each(
            spec,
            lambda requests: run_policy(setup, spec, requests, replicas=replicas, simulated=simulated),
            drawn,
            alike=alike,
        )
    )
    return Evaluated(spec, runs, sustained, saturated=overload(setup, runs, sustained.qps) > 0)


class Backlogged(Protocol):
    """A replication that says whether its backlog grew by more than chance explains."""

    @property
    def saturated(self) -> bool: ...


def overload(setup: Setup, runs: Sequence[Backlogged], max_qps: float) -> float:
    """By how much the load exceeds what counts as sustained, in shares of the sustained rate.

    Above 0 the load is saturated; a closed loop never is.

    Args:
        max_qps: the sustained rate over all replicas.
    """
    qps = setup.rate
    growing = sum(run.saturated for run in runs) * 2 > len(runs)
    if growing and not setup.stationary:  # its mean rate says little of its peak
        return 1.0
    share = 0.0 if qps is None else qps / max_qps
    return share - (CLOSE if growing else OVER)


def paired_speedup(base: Evaluated, other: Evaluated) -> tuple[float, tuple[float, float] | None] | None:
    """Mean TPOT of ``base`` over that of ``other``, with the paired 95% interval over replications.

    Each replication runs both on the same requests, so its ratio is free of what the requests are like. The
    interval is None with one replication; all is None when either is saturated or has no TPOT.
    """
    speedup = base.tpot_s / other.tpot_s
    if not np.isfinite(speedup):
        return None
    ratios = [one.mean_tpot_s / two.mean_tpot_s for one, two in zip(base.runs, other.runs, strict=True)]
    return speedup, metrics.mean_interval(np.array(ratios), speedup)


def runnable(setup: Setup, spec: PolicySpec) -> bool:
    """Whether the setup's engine of today runs this policy with this drafter."""
    return not why_not_runnable(setup, spec)


def why_not_runnable(setup: Setup, spec: PolicySpec) -> str:
    """The reason when the engine cannot run the policy, "" when it can."""
    engine, info = setup.engine, spec.info
    if not info.engines:
        return info.why_not or "no engine of today runs it"
    if engine.name not in info.engines:
        return f"{engine.name} has no such policy; it runs on {', '.join(info.engines)}"
    if is_off(spec):
        return ""
    method = engine.method(setup.drafter)
    if method is None:
        return f"{engine.name} has no method for {setup.drafter.name}"
    if spec.name != "fixed" and setup.drafter.one_k:
        return f"{engine.name} cannot change K with {setup.drafter.proposer}"
    if spec.name != "fixed" and method not in engine.table_methods:
        return f"{engine.name} cannot change K with method {method}"
    if spec.name != "fixed" and setup.scenario.dp > 1:
        return f"{engine.name} cannot change K with data-parallel ranks: it drops the table"
    return ""


def result(setup: Setup, done: Evaluated, off: Evaluated, max_qps_slo: float | None = None) -> PolicyResult:
    """The record of one policy, as written to plan.json and printed by ``--json``."""
    runs, spec = done.runs, done.spec
    speedup = paired_speedup(off, done)
    why_not = why_not_runnable(setup, spec)
    tok_s = np.array([run.output_tok_s for run in runs])
    goodput = np.array([metrics.goodput_qps(run, *slos_s(setup)) for run in runs])
    return PolicyResult(
        name=spec.text,
        exportable=not why_not,
        why_not=why_not,
        tpot_ms=None if done.saturated else metrics.stat_ms(runs, "tpot_s"),
        ttft_ms=None if done.saturated else metrics.stat_ms(runs, "ttft_s"),
        output_tok_s=float(tok_s.mean()),
        output_tok_s_ci95=metrics.mean_interval(tok_s),
        goodput_qps=float(goodput.mean()),
        goodput_ci95=metrics.mean_interval(goodput),
        speedup_vs_off=speedup[0] if speedup else None,
        speedup_ci95=speedup[1] if speedup else None,
        mean_batch=metrics.mean_batch(runs),
        mean_k=metrics.mean_k(runs),
        acceptance_length=metrics.acceptance_length(runs),
        saturated=done.saturated,
        max_qps=done.max_qps if setup.rate is not None else None,
        max_qps_ci95=done.sustained.ci95,
        max_qps_slo=max_qps_slo,
        steady=done.saturated or done.steadiness.steady,
        split=metrics.time_split(runs),
        mean_context=metrics.mean_context(runs),
        preemptions=sum(run.preemptions for run in runs),
        k_share=metrics.k_share(runs),
    )


def slos_s(setup: Setup) -> tuple[float | None, float | None]:
    """The SLOs of TPOT and TTFT in seconds."""
    tpot, ttft = setup.scenario.slo_tpot_ms, setup.scenario.slo_ttft_ms
    return tpot and tpot / 1e3, ttft and ttft / 1e3


def slo_share(setup: Setup, done: Evaluated) -> float:
    """Share of the requests that met every SLO given; 1 without one."""
    return float(np.mean([metrics.attainment(run, *slos_s(setup)) for run in done.runs]))


def meets_slo(setup: Setup, done: Evaluated) -> bool:
    """Whether ATTAINMENT of the requests met every SLO given."""
    return slo_share(setup, done) >= ATTAINMENT


def batch_quantiles(done: Evaluated, *quantiles: float) -> tuple[int, ...]:
    """Batch sizes below which the given shares of the measured steps lie."""
    counts = np.sum([run.batch_steps for run in done.runs], axis=0)
    if metrics.total(done.runs, W_STEPS) == 0:
        return tuple(0 for _ in quantiles)
    cumulated = np.cumsum(counts) / counts.sum()
    return tuple(int(np.searchsorted(cumulated, q)) for q in quantiles)
