"""When a load that changes is at its highest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.simulate import Drawn, Setup

MINUTE_S = 60.0


@dataclass(frozen=True)
class Peak:
    """The highest requests/s of a load, and when that is: "at its end", "in its busiest minute"."""

    qps: float
    when: str


def peak_of(setup: Setup, drawn: Drawn) -> Peak | None:
    """The peak of a ramp or a log; None of a load that stays the same, or lasts less than a minute.

    Args:
        drawn: the requests of a replication.
    """
    scenario = setup.scenario
    if setup.stationary or setup.rate is None:
        return None
    if scenario.ramp_to_qps is not None:
        assert scenario.qps is not None
        admitted = 1 - setup.source.refused
        rises = scenario.ramp_to_qps > scenario.qps
        top = max(scenario.qps, scenario.ramp_to_qps) * admitted
        return Peak(top, "at its end" if rises else "at its beginning")
    arrival_s = drawn.unit_arrival_s / setup.rate
    if arrival_s[-1] < MINUTE_S:
        return None
    return Peak(busiest(arrival_s, MINUTE_S), "in its busiest minute")


def busiest(arrival_s: NDArray[np.float64], seconds: float) -> float:
    """The largest number of (n,) sorted arrivals within any stretch of ``seconds``, per second."""
    within = np.searchsorted(arrival_s, arrival_s + seconds) - np.arange(len(arrival_s))
    return float(within.max() / seconds)
