"""Simulate one policy, and the rate it sustains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from kplan.engine import (
    Fleet,
    Load,
    deal,
    least_outstanding,
    round_robin,
    serve_apart,
    serve_routed,
)
from kplan.engine.state import I64, W_STEPS, Steps
from kplan.metrics import Measured, mean_interval, measure
from kplan.registry import PolicySpec
from kplan.simulate.draw import Drawn
from kplan.simulate.parallel import for_each
from kplan.simulate.server import cost_of, is_off, observe_lag
from kplan.simulate.settle import FEWEST, Window, limits_of, met_midway, window_of
from kplan.simulate.setup import Setup

SIMULATED = 8
"""Replicas behind a round robin are alike: of more than this, this many are simulated and rates scaled up."""


Record: TypeAlias = Callable[[int, Steps], None]
"""Is given the number of a replica and some of its step records."""


def run_policy(
    setup: Setup,
    spec: PolicySpec,
    drawn: Drawn,
    *,
    qps: float | None = None,
    replicas: int = 1,
    simulated: int = SIMULATED,
    compiled: bool = True,
) -> Measured:
    """Simulate one replication of one policy on the requests ``drawn``.

    Args:
        qps: overrides the scenario's rate (over all replicas); infinity puts every request there at t = 0.
        simulated: replicas simulated where there are more, each with its own share of enough requests.
        compiled: False forces the one-call-per-step path.
    """
    fleet, scale = run_fleet(
        setup, spec, drawn, qps=qps, replicas=replicas, simulated=simulated, compiled=compiled
    )
    return measure(fleet, scale)


def run_fleet(
    setup: Setup,
    spec: PolicySpec,
    drawn: Drawn,
    *,
    qps: float | None = None,
    replicas: int = 1,
    simulated: int = SIMULATED,
    compiled: bool = True,
    record: Record | None = None,
    whole: bool = False,
) -> tuple[Fleet, float]:
    """As :func:`run_policy`: the servers after the run, and requests there are / requests simulated.

    A replica is one server, or as many as it has ranks that step on their own.

    Args:
        qps: requests per second of an open loop; None: the load of ``setup``.
        replicas: servers that the load is dealt to.
        compiled: False runs the policy in Python, step by step, to the same bytes.
        whole: measure every request, warm-up and drain included, as a load generator does.
    """
    rate = setup.rate if qps is None else qps
    ranks = setup.ranks
    replicas *= setup.scenario.dp // ranks
    load = drawn.load(rate, setup.scenario.concurrency, mixed=spec.info.combines)
    each = None if rate is None else rate / replicas / ranks
    routed = setup.routed(replicas)
    if len(load) < FEWEST * replicas:
        simulated = replicas  # each is measured whole, and they are not alike
    shares = [np.arange(len(load))] if routed else _busy(deal(load, replicas))[:simulated]
    alike = 1 if routed else replicas
    windows = [
        Window(0, len(share))
        if whole
        else window_of(setup, load, share, alike, rate=each, stretch=drawn.stretch)
        for share in shares
    ]

    def run(windows: Sequence[Window], record: Record | None = None) -> Fleet:
        if routed:
            return _route(setup, spec, load, windows[0], replicas, compiled=compiled, record=record)
        return _serve(setup, spec, load, shares, windows, replicas, compiled=compiled, record=record)

    fleet = run(windows)
    if any(replica.machine.sums[W_STEPS] == 0 for replica in fleet.replicas if len(replica.admitted)):
        # one step admitted the whole window (a burst): measure everything instead
        windows = [Window(0, len(share)) for share in shares]
        fleet = run(windows)
    if record is not None:
        fleet = run(windows, record)
    return fleet, len(load) / sum(map(len, shares))


def _busy(shares: Sequence[I64]) -> list[I64]:
    """Those of replicas that get any: few requests, or few sessions, leave the last ones idle."""
    return [share for share in shares if len(share)]


def _serve(
    setup: Setup,
    spec: PolicySpec,
    load: Load,
    shares: Sequence[I64],
    windows: Sequence[Window],
    replicas: int,
    *,
    compiled: bool,
    record: Record | None,
) -> Fleet:
    return serve_apart(
        load if setup.sglang else met_midway(load, shares, windows, replicas),
        shares,
        [limits_of(setup, spec, load, window) for window in windows],
        cost_of(setup, spec),
        spec.build,
        replicas=replicas,
        observe_lag=observe_lag(setup, spec),
        compiled=compiled,
        record=record,
    )


def _route(
    setup: Setup,
    spec: PolicySpec,
    load: Load,
    window: Window,
    replicas: int,
    *,
    compiled: bool,
    record: Record | None,
) -> Fleet:
    everyone = [np.arange(len(load))]
    return serve_routed(
        load if setup.sglang else met_midway(load, everyone, [window], 1),
        replicas,
        limits_of(setup, spec, load, window),
        cost_of(setup, spec),
        spec.build,
        route=least_outstanding if setup.scenario.router == "least-outstanding" else round_robin,
        ranks=setup.ranks,
        observe_lag=observe_lag(setup, spec),
        compiled=compiled,
        record=record,
    )


@dataclass(frozen=True)
class Sustained:
    """Requests/s that replicas sustain: the mean over seeds and its 95% interval (None with one seed)."""

    qps: float
    ci95: tuple[float, float] | None = None

    def of(self, replicas: int) -> Sustained:
        """That of ``replicas`` replicas alike."""
        scaled = None if self.ci95 is None else (self.ci95[0] * replicas, self.ci95[1] * replicas)
        return Sustained(self.qps * replicas, scaled)


UNBOUNDED = Sustained(math.inf)
"""Clients of a closed loop never ask for more than is served."""


def sustained(setup: Setup, spec: PolicySpec, samples: Sequence[Drawn]) -> Sustained:
    """:func:`sustained_qps` over the seeds of ``samples``."""
    alike = is_off(spec) and setup.log is not None  # the seeds of a log differ in what is accepted alone
    rates = np.array(for_each(spec, lambda one: sustained_qps(setup, spec, one), samples, alike=alike))
    return Sustained(float(rates.mean()), mean_interval(rates))


def sustained_qps(setup: Setup, spec: PolicySpec, drawn: Drawn) -> float:
    """Requests per second that one replica serves when its queue never empties.

    All requests wait at t = 0. The token rate is taken once the batch turns over and divided by the mean
    output: the rate of requests itself would need every long one to come and go. Where a full KV cache makes
    requests preempt each other, a smaller batch may serve more for a while; once its queue has grown it is
    back at the rate given here, which is therefore the one that lasts.
    """
    overload = drawn.take(3 * max(setup.max_num_seqs, setup.max_num_seqs_off) * setup.scenario.dp)
    now = np.zeros(len(overload.prompt_len))
    overload = replace(overload, unit_arrival_s=now, follows=None, think_s=None)
    run = run_policy(setup, spec, overload, qps=np.inf)
    return run.output_tok_s / float(drawn.output_len.mean())
