"""The largest rate at which the SLOs are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kplan import metrics
from kplan.registry import PolicySpec
from kplan.search.evaluate import ATTAINMENT, OVER, Evaluated, meets_slo, slos_s
from kplan.simulate import Drawn, Setup, at_rate, default_requests, draw_requests, for_each, run_policy

PROBED = 2
"""Replicas simulated at each rate; those behind a round robin are alike."""
PRECISION = 0.01
"""The rate is found to this share of itself."""
LEAST = 1e-3
"""Below this share of the sustained rate the answer is 0: not even requests alone meet the SLOs."""


def max_qps_within(
    setup: Setup, spec: PolicySpec, drawn: Sequence[Drawn], replicas: int, met: float, missed: float
) -> float:
    """The largest rate at which ATTAINMENT of the requests meet every SLO and nothing saturates.

    A bisection: the same requests at every rate, arriving 1 / rate apart as drawn (common random numbers), so
    that the share which meets the SLOs falls with the rate but for little. Where chance makes it rise again,
    the search keeps below the lowest rate that it saw missing; what it answers was seen to meet them.

    Args:
        drawn: requests of each replication, enough to settle at ``missed`` (fewer are taken at lower rates).
        met: requests/s over all replicas known to meet the SLOs, or 0.
        missed: requests/s over all replicas known to miss them, or the bound that nothing exceeds.

    Returns:
        Requests per second over all replicas, 0 when no rate meets the SLOs.
    """
    tpot_s, ttft_s = slos_s(setup)
    least = LEAST * missed

    def meets(qps: float) -> bool:
        n = min(default_requests(at_rate(setup, qps), replicas), len(drawn[0].prompt_len))
        runs = for_each(
            spec,
            lambda one: run_policy(setup, spec, one.take(n), qps=qps, replicas=replicas, simulated=PROBED),
            drawn,
        )
        growing = sum(run.saturated for run in runs) * 2 > len(runs)
        share = np.mean([metrics.attainment(run, tpot_s, ttft_s) for run in runs])
        return bool(share >= ATTAINMENT) and not growing

    return largest(meets, met, missed, least)


def largest(meets: Callable[[float], bool], met: float, missed: float, least: float) -> float:
    """Bisect between a value that meets and one that does not, to PRECISION of the latter.

    Returns:
        The largest value seen to meet (or ``met``), 0 when the search came below ``least`` without one.
    """
    while missed - met > PRECISION * missed:
        middle = (met + missed) / 2
        if meets(middle):
            met = middle
        elif middle < least:
            return 0.0
        else:
            missed = middle
    return met


def slo_rate(setup: Setup, done: Evaluated, drawn: Sequence[Drawn], replicas: int) -> float | None:
    """:func:`max_qps_within` for a policy that was run at the load's own rate, whose verdict stands.

    Returns:
        Requests per second over all replicas; None without an SLO, in a closed loop, and for a ramp.
    """
    qps = setup.rate
    if qps is None or setup.scenario.ramp_to_qps is not None or slos_s(setup) == (None, None):
        return None
    bound = OVER * done.max_qps
    if done.saturated or not meets_slo(setup, done):
        return max_qps_within(setup, done.spec, drawn, replicas, 0.0, min(qps, bound))
    if bound <= qps:
        return qps
    top = default_requests(at_rate(setup, bound), replicas)
    more = [draw_requests(setup, top, setup.scenario.seed + i) for i in range(len(drawn))]
    return max_qps_within(setup, done.spec, more, replicas, qps, bound)
