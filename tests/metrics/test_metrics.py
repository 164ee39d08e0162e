"""Intervals, percentiles and the verdict on a growing backlog, against values worked out apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.metrics import _backlog, mean_interval


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


@given(st.floats(0.5, 0.9), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_a_stable_queue_does_not_look_saturated(rho: float, seed: int) -> None:
    arrival_s, finish_s = _queue(rho, 4000, seed)
    growth, noise = _backlog(arrival_s, finish_s, slice(600, 3600))
    assert growth <= max(0.03 * 3000, noise) * 1.5


@given(st.floats(1.2, 3.0), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_an_overloaded_queue_does(rho: float, seed: int) -> None:
    arrival_s, finish_s = _queue(rho, 4000, seed)
    growth, noise = _backlog(arrival_s, finish_s, slice(600, 3600))
    assert growth > max(0.03 * 3000, noise)
    expected = 3000 * (1 - 1 / rho)
    chance = 4 * np.sqrt(2 * 3000)  # 4 sigma of arrivals less departures, both Poisson
    assert growth == pytest.approx(expected, abs=chance), "arrivals less departures over the window"


def _queue(rho: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A single server with exponential service of mean 1 and Poisson arrivals at rate rho (Lindley)."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rho, n))
    service = rng.exponential(1.0, n)
    finish = np.empty(n)
    free = 0.0
    for i in range(n):
        free = max(free, arrival[i]) + service[i]
        finish[i] = free
    return arrival, finish
