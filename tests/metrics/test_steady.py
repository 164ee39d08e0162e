"""MSER-5 on series with a known warm-up, and the verdict on windows with and without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan import metrics
from kplan.config.scenario import make_scenario
from kplan.engine.state import BINS
from kplan.metrics import Steadiness, mser5, steadiness
from kplan.registry import parse_policy
from kplan.simulate import Setup, draw_requests, prepare, run_policy, settling


def test_the_cut_of_twenty_values_by_hand() -> None:
    """Means of five: 0, 8, 10, 12. From 0: 83 / 16 = 5.2; from 1: 8 / 9 = 0.89; from 2: 2 / 4 = 0.5."""
    series = np.repeat([0.0, 8.0, 10.0, 12.0], 5)
    assert mser5(series) == 10


def test_a_cut_that_leaves_too_little_is_not_worth_it() -> None:
    """Means 0, 9.5, 10, 12. From 1: 3.5 / 9 = 0.39; from 2: 2 / 4 = 0.5."""
    assert mser5(np.repeat([0.0, 9.5, 10.0, 12.0], 5)) == 5


@pytest.mark.parametrize("warm", [20, 45, 80])
def test_a_step_is_cut_where_it_ends(warm: int) -> None:
    rng = np.random.default_rng(1)
    series = np.where(np.arange(200) < warm, 3.0, 10.0) + rng.normal(0, 0.5, 200)
    assert mser5(series) == warm


def test_an_exponential_warm_up_is_cut_once_it_is_below_the_noise() -> None:
    """10 (1 - exp(-i / 20)) and noise of sigma 0.5: at 60 what is missing equals the noise."""
    cuts = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        cuts.append(mser5(10 * (1 - np.exp(-np.arange(400) / 20)) + rng.normal(0, 0.5, 400)))
    assert 50 <= np.median(cuts) <= 110


def test_a_constant_series_and_a_short_one_are_left_whole() -> None:
    assert mser5(np.full(100, 4.0)) == 0
    assert mser5(np.array([1.0, 9.0, 9.0])) == 0


def _bins(batch: np.ndarray, tokens_s: np.ndarray) -> np.ndarray:
    second = np.full(len(batch), 0.1)
    return np.column_stack([second, second * batch, second * tokens_s])


def test_the_shift_is_that_of_the_mean() -> None:
    """A quarter at 60, the rest at 100: the mean of 90 moves up to 100, by 11.1%."""
    batch = np.where(np.arange(BINS) < BINS // 4, 60.0, 100.0)
    found = steadiness(_bins(batch, np.full(BINS, 1000.0)), 1)
    assert found.cut == 0.25
    assert found.shift == pytest.approx(100 / 90 - 1)
    assert found.bound == pytest.approx(0.10)
    assert not found.steady


def test_a_batch_that_falls_is_no_warm_up() -> None:
    """It shrinks by chance, or since the replica recovers from a crowd: nothing fills up."""
    batch = np.where(np.arange(BINS) < BINS // 4, 140.0, 100.0)
    assert steadiness(_bins(batch, np.full(BINS, 1000.0)), 1).steady


def test_an_empty_window_is_steady() -> None:
    assert steadiness(np.zeros((BINS, 3)), 1).steady


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(make_scenario({"qps": 16.0}))


def _windows(setup: Setup, stretch: float, groups: int) -> list[Steadiness]:
    """Verdicts on 20 s at 16 QPS (84% of what a replica sustains), three seeds together, by group."""
    wait = settling(setup, 16.0)
    n = int(16.0 * (stretch * wait.settle_s + 20.0 + wait.drain_s))
    free = replace(setup, scenario=setup.scenario.model_copy(update={"requests": n}))
    spec, found = parse_policy("fixed:2"), []
    for group in range(groups):
        runs = [run_policy(free, spec, draw_requests(free, n, 3 * group + i, stretch)) for i in range(3)]
        found.append(metrics.steadiness(np.sum([run.bins for run in runs], axis=0), 3))
    return found


def test_a_window_from_the_first_request_is_never_steady(setup: Setup) -> None:
    assert not any(one.steady for one in _windows(setup, 0.0, 8))


def test_a_window_after_the_warm_up_of_theory_is(setup: Setup) -> None:
    assert sum(not one.steady for one in _windows(setup, 1.0, 12)) <= 1
