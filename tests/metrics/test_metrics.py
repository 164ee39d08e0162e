"""Intervals, and the verdict on a growing backlog, against values worked out apart."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.metrics import backlog, mean_interval
from kplan.metrics.measured import BACKLOG_SHARE

SEEDS = 200


def test_student_s_interval_of_five_values() -> None:
    """t(0.975, 4) = 2.7764; sd of 1..5 is 1.5811; half = 2.7764 x 1.5811 / sqrt(5) = 1.9632."""
    low, high = mean_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert (low, high) == pytest.approx((3 - 1.9632, 3 + 1.9632), abs=1e-4)


def test_one_value_has_no_interval() -> None:
    assert mean_interval(np.array([2.5])) is None


def test_no_time_is_negative() -> None:
    low, high = mean_interval(np.array([0.1, 5.0]))
    assert low == 0.0
    assert high > 5


@pytest.mark.parametrize(("rho", "most"), [(0.8, 0.0), (0.9, 0.0), (0.95, 0.01)])
def test_a_stable_queue_rarely_looks_saturated(rho: float, most: float) -> None:
    assert _share_saturated(rho) <= most


@pytest.mark.parametrize(("rho", "least"), [(1.05, 0.65), (1.1, 0.97), (1.2, 1.0)])
def test_an_overloaded_queue_does(rho: float, least: float) -> None:
    """An overload of 5% adds 150 to a queue of 3000 arrivals, whose own growth has a sigma of 77."""
    assert _share_saturated(rho) >= least


@pytest.mark.parametrize("rho", [1.2, 2.0, 3.0])
def test_growth_is_arrivals_less_departures(rho: float) -> None:
    chance = 4 * np.sqrt(2 * 3000)  # 4 sigma of arrivals less departures, both Poisson
    growth, _ = backlog(*_queue(rho, 4000, 7), slice(600, 3600))
    assert growth == pytest.approx(3000 * (1 - 1 / rho), abs=chance)


def test_a_load_that_rises_and_is_admitted_at_once_has_no_backlog() -> None:
    """Arrivals from 1/s to 40/s over 100 s, each kept for 8 s: the number in the system grows by 312."""
    arrival = np.sqrt(np.linspace(0.0, 1.0, 2050)) * 100.0
    growth, _ = backlog(arrival, arrival + 0.01, slice(0, 2050))
    assert abs(growth) < BACKLOG_SHARE * 2050 / 20


def _share_saturated(rho: float) -> float:
    verdicts = []
    for seed in range(SEEDS):
        growth, noise = backlog(*_queue(rho, 4000, seed), slice(600, 3600))
        verdicts.append(growth > max(BACKLOG_SHARE * 3000, noise))
    return float(np.mean(verdicts))


def _queue(rho: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals, and starts of service: one server, exponential service of mean 1 (Lindley)."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rho, n))
    end = np.cumsum(rng.exponential(1.0, n))
    # the k-th service ends at the latest of (arrival_j + services j..k)
    before = np.concatenate([[0.0], end[:-1]])
    start = np.maximum.accumulate(arrival - before) + before
    return arrival, start


def test_bursts_that_are_admitted_as_they_come_have_no_backlog() -> None:
    """Four bursts of 16 at one moment each: all are admitted with the burst, so that nobody ever waits."""
    arrival = np.repeat([0.0, 1.0, 2.0, 3.0], 16)
    assert backlog(arrival, arrival, slice(0, 64)) == (0.0, 0.0)


def test_a_burst_of_which_half_waits_is_counted_whole_at_each_of_its_arrivals() -> None:
    """Of 16 at one moment 8 are admitted at once and 8 half a second later: 8 wait at every arrival."""
    arrival = np.repeat([0.0, 1.0, 2.0, 3.0], 16)
    admitted = arrival + np.tile(np.repeat([0.0, 0.5], 8), 4)
    growth, chance = backlog(arrival, admitted, slice(0, 64))
    assert growth == pytest.approx(0.0, abs=1e-9)
    assert chance == pytest.approx(4 * np.sqrt(2 * 8))
