"""A few policies at loads around the one asked about, on the same requests, and where they cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kplan import metrics
from kplan.config.evidence import Crossing, Sweep, SweepCurve, SweepPoint
from kplan.metrics import Measured
from kplan.search.evaluate import OVER, Evaluated, overload
from kplan.simulate import (
    Drawn,
    Setup,
    at_rate,
    default_requests,
    draw_requests,
    for_each,
    run_policy,
    with_load,
)

SHARES = (0.1, 0.25, 0.45, 0.65, 0.8, 0.92, 1.2, 1.5)
"""Loads, in shares of what the recommended policy sustains; beyond its limit a policy is not simulated."""
CLIENTS = (0.25, 0.5, 1.0, 1.5, 2.0)
"""Clients of a closed loop, in shares of those asked about."""
NEAR = 0.04
"""A load so close to the one asked about, in shares of it, is left out."""
MOST_POLICIES = 4
MOST_TOKENS = 60_000_000
"""Output tokens that all replications bring to one replica at the largest load that is simulated."""

F64 = NDArray[np.float64]


Runs: TypeAlias = tuple[Measured, ...]
"""The replications of one policy at one load; empty where the load is more than it sustains."""


def shown(done: Sequence[Evaluated], chosen: Evaluated, small: int, large: int) -> tuple[Evaluated, ...]:
    """The policies worth a curve: no speculation, the recommended one, and the fixed Ks that the latency
    model prefers for one request and for the most; the next best fixed K where these leave a place.

    Args:
        done: every policy at the load asked about.
        small, large: those two Ks.
    """
    by_name = {one.spec.text: one for one in done}
    ranked = sorted((one for one in done if one.spec.name == "fixed"), key=_slowness)
    texts = ["off", chosen.spec.text, f"fixed:{small}", f"fixed:{large}", *(one.spec.text for one in ranked)]
    kept = [text for text in dict.fromkeys(texts) if text in by_name][:MOST_POLICIES]
    return tuple(one for one in done if one.spec.text in kept)


def _slowness(one: Evaluated) -> tuple[bool, float]:
    return one.saturated, -one.max_qps if one.saturated else one.tpot_s


def sweep(setup: Setup, policies: Sequence[Evaluated], chosen: Evaluated, replicas: int) -> Sweep | None:
    """Run ``policies`` at loads around the one asked about.

    Every load is served with the first of the same requests, arriving as much apart as it says (common random
    numbers), and as many as it takes to settle, whatever number was asked for. Of replicas behind a round
    robin, which are alike, one is simulated.

    Args:
        policies: as judged at the load asked about, which is not run again.

    Returns:
        None of a log, whose one rate is its own, and where it would take longer than the answer: more than
        MOST_TOKENS, or servers that must be simulated together.
    """
    if setup.log is not None or setup.routed(replicas):
        return None
    loads, asked = _loads(setup, chosen, replicas)
    free, seeds = with_load(setup, requests=None), range(len(chosen.runs))
    most = max(
        (load for load in loads if load != asked and any(_served(one, setup, load) for one in policies)),
        default=asked,
    )
    n = default_requests(_at(free, most), replicas)
    if n * setup.lengths.output * len(seeds) / replicas > MOST_TOKENS:
        return None
    drawn = [draw_requests(free, n, setup.scenario.seed + i) for i in seeds]
    judged = {one.spec.text: one for one in policies}
    runs = {
        text: [
            _judged_runs(one) if load == asked else _runs(free, one, load, drawn, replicas) for load in loads
        ]
        for text, one in judged.items()
    }
    return Sweep(
        unit="requests at a time" if setup.rate is None else "requests/s",
        asked=asked,
        replications=len(seeds),
        curves=tuple(
            SweepCurve(
                policy=text,
                points=tuple(
                    _point(setup, one, load, at_load) for load, at_load in zip(loads, runs[text], strict=True)
                ),
            )
            for text, one in judged.items()
        ),
        crossings=tuple(
            found
            for a, b in combinations(judged, 2)
            if {a, b} & {"off", chosen.spec.text}
            and (found := _crossing(a, b, loads, runs[a], runs[b])) is not None
        ),
    )


def _loads(setup: Setup, chosen: Evaluated, replicas: int) -> tuple[list[float], float]:
    """The loads in rising order, and the one asked about, which is among them."""
    rate = setup.rate
    if rate is None:
        clients = setup.scenario.concurrency
        assert clients is not None
        fewest = replicas * setup.scenario.dp  # one for each server
        return sorted({clients, *(max(fewest, round(share * clients)) for share in CLIENTS)}), clients
    others = [share * chosen.max_qps for share in SHARES]
    return sorted([rate, *(one for one in others if abs(one - rate) > NEAR * rate)]), rate


def _served(one: Evaluated, setup: Setup, load: float) -> bool:
    """Whether the policy may sustain the load; clients of a closed loop wait."""
    return setup.rate is None or load <= OVER * one.max_qps


def _at(setup: Setup, load: float) -> Setup:
    """The same setup at another load."""
    return with_load(setup, concurrency=round(load)) if setup.rate is None else at_rate(setup, load)


def _runs(setup: Setup, one: Evaluated, load: float, drawn: Sequence[Drawn], replicas: int) -> Runs:
    """The replications of a policy at another load."""
    if not _served(one, setup, load):
        return ()
    there = _at(setup, load)
    n = min(default_requests(there, replicas), len(drawn[0].prompt_len))
    runs = tuple(
        for_each(
            one.spec,
            lambda each: run_policy(there, one.spec, each.take(n), replicas=replicas, simulated=1),
            drawn,
        )
    )
    return runs if overload(there, runs, one.max_qps) <= 0 else ()


def _judged_runs(one: Evaluated) -> Runs:
    """Those at the load asked about."""
    return () if one.saturated else one.runs


def _point(setup: Setup, one: Evaluated, load: float, runs: Runs) -> SweepPoint:
    if not runs:
        rate, ends = one.sustained.qps, one.sustained.ci95
        output = setup.lengths.output
        return SweepPoint(
            load=load, batch=None, context=None, tpot_ms=None, tpot_ci95=None,
            output_tok_s=rate * output,
            output_tok_s_ci95=None if ends is None else (ends[0] * output, ends[1] * output),
            saturated=True,
        )  # fmt: skip
    tpot = metrics.stat_ms(runs, "tpot_s")
    tok_s = np.array([run.output_tok_s for run in runs])
    return SweepPoint(
        load=load,
        batch=metrics.mean_batch(runs),
        context=metrics.mean_context(runs),
        tpot_ms=None if tpot is None else tpot.mean,
        tpot_ci95=None if tpot is None else tpot.ci95,
        output_tok_s=float(tok_s.mean()),
        output_tok_s_ci95=metrics.mean_interval(tok_s),
        saturated=False,
    )


def _crossing(
    a: str, b: str, loads: Sequence[float], one: Sequence[Runs], two: Sequence[Runs]
) -> Crossing | None:
    """The last load at which ``a`` and ``b`` change places, told only where they do on every replication."""
    kept = [i for i in range(len(loads)) if one[i] and two[i]]
    if len(kept) < 2:
        return None
    lead = np.array(
        [[math.log(x.mean_tpot_s / y.mean_tpot_s) for x, y in zip(one[i], two[i], strict=True)] for i in kept]
    )
    at = [last_crossing([loads[i] for i in kept], each) for each in lead.T]
    found = np.array([each[0] for each in at if each is not None])
    rising = {each[1] for each in at if each is not None}
    if len(found) < len(at) or len(rising) > 1:
        return None
    below, above = (a, b) if rising.pop() else (b, a)
    return Crossing(below=below, above=above, load=float(found.mean()), ci95=metrics.mean_interval(found))


def last_crossing(x: Sequence[float], y: F64) -> tuple[float, bool] | None:
    """Where the line through (n,) points last changes its sign, and whether it rises there; None: nowhere."""
    turns = np.flatnonzero((y[:-1] < 0) != (y[1:] < 0))
    if not len(turns):
        return None
    i = int(turns[-1])
    return float(x[i] + (x[i + 1] - x[i]) * y[i] / (y[i] - y[i + 1])), bool(y[i] < 0)
