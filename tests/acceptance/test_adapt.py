"""Moving a model by its hazards: what moves and what stays, the solver by closed forms, and the bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace, adapt, cells, walk
from kplan.acceptance.adapt import (
    depth_groups,
    expit,
    logit,
    match_depths,
    match_position_median,
    match_walk,
    sample_lengths,
    shift_all,
    shift_depths,
    smooth_shifts,
    solve,
    stretch_states,
    walk_lengths,
)
from kplan.errors import InputError
from tests.acceptance.made import flat_model, trace_of

LOG_3 = float(np.log(3))
"""The log-odds of 3/4."""


def test_log_odds_and_back() -> None:
    np.testing.assert_allclose(logit(np.array([0.5, 0.75, 0.25])), [0.0, LOG_3, -LOG_3], atol=1e-15)
    np.testing.assert_allclose(expit(np.array([0.0, LOG_3, -LOG_3])), [0.5, 0.75, 0.25])
    # no chance and certainty are taken for one in a million and all but one
    np.testing.assert_allclose(logit(np.array([0.0, 1.0])), np.log(999_999) * np.array([-1, 1]))


def test_a_shift_by_depth_leaves_what_is_confirmed_and_the_tail() -> None:
    """From 1/2: odds of 3^d at depth d, so 3^d / (1 + 3^d)."""
    depth = np.arange(1, 21)
    found = shift_depths(flat_model([0.5]), LOG_3 * depth).hazard[0]
    moved = 3.0**depth / (1 + 3.0**depth)
    for low in (cells.FAILED, cells.UNSEEN, cells.NEW):
        np.testing.assert_allclose(found[low : low + 20], moved)
    np.testing.assert_allclose(found[cells.FIRST : cells.CONFIRMED], 0.75)
    for stays in (
        slice(cells.MATCH, cells.FIRST),
        slice(cells.CONFIRMED, cells.FAILED),
        slice(cells.TAIL, None),
    ):
        np.testing.assert_allclose(found[stays], 0.5)


def test_a_shift_of_all_moves_every_cell() -> None:
    np.testing.assert_allclose(shift_all(flat_model([0.5, 0.25]), LOG_3).hazard[:, ::7].T, [[0.75, 0.5]] * 23)


def test_a_stretch_scales_the_distance_to_the_pooled() -> None:
    """Odds of 3 and 1/3 beside pooled ones of 1: squared by a factor of two; and 27 to 9 beside 3."""
    found = stretch_states(flat_model([0.75, 0.25]), np.full(cells.CELLS, 0.5), 2.0).hazard
    np.testing.assert_allclose(found[:, 3], [9 / 10, 1 / 10])
    found = stretch_states(flat_model([0.75]), np.full(cells.CELLS, 0.9), 2.0).hazard  # 9 x (3 / 9)^2 = 1
    np.testing.assert_allclose(found, 0.5)


def test_depths_between_two_k_share_a_shift() -> None:
    assert depth_groups([2, 4, 7]).tolist() == [0, 0, 1, 1, 2, 2, 2, *[2] * 13]
    assert depth_groups([1]).tolist() == [0] * 20
    np.testing.assert_allclose(smooth_shifts(3), [[-2, 2, 0], [0, -2, 2]])


def test_a_straight_line_is_solved_in_one_round() -> None:
    """The normal equations: (A'W'WA + R'R) x = A'W'W t."""
    draw = np.random.default_rng(1)
    slopes, target, weight = draw.normal(size=(4, 2)), draw.normal(size=4), np.array([1.0, 2.0, 3.0, 0.5])
    ridge = np.array([[0.7, -0.7]])
    weighed = slopes * weight[:, None]
    x = np.linalg.solve(weighed.T @ weighed + ridge.T @ ridge, weighed.T @ (weight * target))
    left = float(np.sum((weight * (target - slopes @ x)) ** 2) + np.sum((ridge @ x) ** 2))
    for rounds, start in ((1, None), (1, np.array([0.4, -1.0])), (3, None)):
        found, reached, rest = solve(lambda at: slopes @ at, target, weight, ridge, rounds, start)
        np.testing.assert_allclose(found, x, rtol=1e-9)
        np.testing.assert_allclose(reached, slopes @ x, rtol=1e-9)
        assert rest == pytest.approx(left)
    found, _, _ = solve(lambda at: slopes @ at, target, weight, ridge, 0)
    assert found.tolist() == [0.0, 0.0]


NO_RIDGE = np.zeros((1, 1))
ONE = np.ones(1)


def counted(
    curve: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], list[float]]:
    """A curve, and the places at which it was asked for."""
    asked: list[float] = []

    def reach(x: NDArray[np.float64]) -> NDArray[np.float64]:
        asked.append(float(x[0]))
        return curve(x)

    return reach, asked


def test_no_shift_is_larger_than_three() -> None:
    for target, bound in ((10.0, 3.0), (-10.0, -3.0)):
        found, _, left = solve(lambda x: x, np.array([target]), ONE, NO_RIDGE, 3)
        assert (found.tolist(), left) == ([bound], pytest.approx(49.0))


def test_a_step_too_far_is_halved() -> None:
    """arctan from 1.5: a whole step to 0 lands at -1.84, further off; half of it at -.17."""
    step = -np.arctan(1.5) / ((np.arctan(1.6) - np.arctan(1.5)) / 0.1)
    reach, asked = counted(np.arctan)
    found, reached, _ = solve(reach, np.zeros(1), ONE, NO_RIDGE, 1, np.array([1.5]))
    assert asked == pytest.approx([1.5, 1.6, 1.5 + step, 1.5 + step / 2])
    assert found == pytest.approx([1.5 + step / 2])
    assert reached == pytest.approx(np.arctan(found))


def test_a_step_that_no_halving_mends_is_given_up() -> None:
    """Falls by a tenth and rises after: the way down leads nowhere."""
    reach, asked = counted(lambda x: np.where(np.abs(x) < 0.11, 1 - x, 9.0))
    found, reached, left = solve(reach, np.zeros(1), ONE, NO_RIDGE, 3)
    assert asked == pytest.approx([0, 0.1, 1, 0.5, 0.25, 0.125])
    assert (found.tolist(), reached.tolist(), left) == ([0.0], [1.0], 1.0)


def test_a_step_that_changes_nothing_is_no_better() -> None:
    reach, asked = counted(lambda x: np.zeros(1))
    found, _, _ = solve(reach, np.ones(1), ONE, np.ones((1, 1)), 3)
    assert (found.tolist(), len(asked)) == ([0.0], 6)


def test_the_lengths_are_cycled_until_there_are_enough() -> None:
    lengths = np.array([10, 20], np.int32)
    assert sample_lengths(lengths, 74).tolist() == [10, 20, 10, 20, 10]
    assert sample_lengths(lengths, 1).tolist() == [10]
    assert len(sample_lengths(lengths)) == 100_000


OUTPUT_LEN = np.full(3, 50, np.int32)


def few(monkeypatch: pytest.MonkeyPatch, positions: int = 1500) -> NDArray[np.int32]:
    """Measure walks on few positions; the lengths of their outputs."""
    sample = sample_lengths(OUTPUT_LEN, positions)
    monkeypatch.setattr(adapt, "sample_lengths", lambda *_: sample)
    return sample


def test_a_walk_is_matched_on_the_sample_that_it_was_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = few(monkeypatch)
    wanted = {1: 1.6, 3: 2.0}
    model, reached = match_walk(flat_model([0.5]), wanted, OUTPUT_LEN)
    again = model.generate(adapt._SEED, sample)
    for k, length in wanted.items():
        assert reached[k] == walk(again, k).acceptance_length
        assert reached[k] == pytest.approx(length, rel=0.01)
    by_depth = logit(model.hazard[0, cells.NEW : cells.TAIL])
    assert by_depth[0] > 0 > by_depth[1]
    np.testing.assert_allclose(by_depth[1:], by_depth[1])
    np.testing.assert_allclose(model.hazard[0, cells.CONFIRMED : cells.FAILED], 0.5)


def test_depths_are_matched_on_the_sample_that_they_were_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = few(monkeypatch)
    model, reached = match_depths(flat_model([0.5]), np.array([0.6, 0.3]), OUTPUT_LEN)
    stats = walk(model.generate(adapt._SEED, sample), 2)
    np.testing.assert_array_equal(reached, stats.accepted_by_depth / stats.steps)
    np.testing.assert_allclose(reached, [0.6, 0.3], atol=0.01)


@pytest.mark.parametrize(
    ("known_k", "marginal", "named"),
    [
        (2, [0.6, 0.5, 0.4], "got '3 values', 1..20 are accepted"),
        (2, [], "got '0 values'"),
        (20, [1.0, 0.5], "got '1,0.5', each must lie within 0 and 1"),
        (20, [0.6, 0.0], "got '0.6,0', each must lie within 0 and 1"),
        (20, [0.6, 0.61], "got '0.6,0.61', none may lie above the one before"),
    ],
)
def test_shares_that_no_chain_has_are_refused(known_k: int, marginal: list[float], named: str) -> None:
    model = replace(flat_model([0.5]), recorded_k=20 if len(marginal) < 3 else known_k)
    named = named.replace("1..20", f"1..{model.recorded_k}")
    with pytest.raises(InputError) as error:
        match_depths(model, np.array(marginal), OUTPUT_LEN)
    assert named in str(error.value)


def test_equal_shares_are_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, 300)
    match_depths(flat_model([0.5]), np.array([0.5, 0.5]), OUTPUT_LEN)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ({1: 2.01}, "acceptance length at K=1: got 2.01, 1..2 is possible"),
        ({1: 0.99}, "acceptance length at K=1: got 0.99, 1..2 is possible"),
        ({3: 2.5, 1: 1.8, 5: 2.4}, "acceptance length at K=5: got 2.4, 2.5..6 is possible"),
    ],
)
def test_lengths_that_no_walk_has_are_refused(lengths: dict[int, float], named: str) -> None:
    with pytest.raises(InputError) as error:
        match_walk(flat_model([0.5]), lengths, OUTPUT_LEN)
    assert named in str(error.value)


def test_lengths_at_their_bounds_are_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, 100)
    _, reached = match_walk(flat_model([0.5]), {20: 2.5, 1: 1.0, 2: 1.0}, OUTPUT_LEN)
    assert list(reached) == [1, 2, 20]
    match_walk(flat_model([0.5]), {1: 2.0}, OUTPUT_LEN)


class Recorded:
    """Stands in for a model that generates one given trace."""

    def __init__(self, trace: ProposerTrace) -> None:
        self.trace = trace

    def generate(self, *_: Any) -> ProposerTrace:
        return self.trace


def test_quartiles_are_of_the_means_of_requests() -> None:
    """Means over the positions but the first: 2, 1, 2.5, 1.5; an output of one token has none."""
    made: Any = Recorded(trace_of([[1, 3, 1], [1, 1], [1], [1, 3, 2], [1, 2, 1]], 3))
    found = adapt._position_quartiles(made, OUTPUT_LEN)
    np.testing.assert_allclose(found, np.quantile([1, 1.5, 2, 2.5], [0.25, 0.5, 0.75]))


def test_a_median_over_positions_is_met_by_one_shift_of_all_depths(monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    model, quartiles = match_position_median(flat_model([0.3, 0.4]), 2.0, OUTPUT_LEN)
    assert quartiles[1] == pytest.approx(2.0, rel=0.02)
    shift = logit(model.hazard[:, cells.NEW :]) - logit(np.array([[0.3], [0.4]]))
    np.testing.assert_allclose(shift[:, :-1], shift[0, 0])
    assert shift[:, -1] == pytest.approx(0.0)
    assert quartiles[0] < quartiles[1] < quartiles[2]


@pytest.mark.parametrize(("hazard", "median"), [(0.01, 2.5), (0.99, 1.01)])
def test_a_median_out_of_reach_is_refused(
    hazard: float, median: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch, 200)
    with pytest.raises(InputError, match="this model reaches"):
        match_position_median(flat_model([hazard]), median, OUTPUT_LEN)


def test_lengths_of_a_walk_end_where_drafts_bring_nothing() -> None:
    """Pairs of tokens: K = 2 brings what K = 1 did. Where K = 1 brings nothing it is told all the same."""
    assert walk_lengths(trace_of([[1, *[2, 1] * 5]], 5)) == {1: 2.0}
    assert walk_lengths(trace_of([[1, *[1] * 5]], 5)) == {1: 1.0}
    # ten steps of 1 and four tokens that were all drafted: 14 of 12 steps at K = 1 and 2, of 11 at K = 3
    assert walk_lengths(trace_of([[1, *[1] * 10, 4, 3, 2, 1]], 9)) == pytest.approx({1: 14 / 12})
    assert walk_lengths(trace_of([[1, *[1] * 10, 4, 3, 2, 1]], 9), -1.0)[3] == pytest.approx(14 / 11)


def test_no_longer_walk_is_told_than_was_recorded() -> None:
    rows = [[1, *[min(9, 40 - i) for i in range(1, 40)]]]
    assert list(walk_lengths(trace_of(rows, 2))) == [1, 2]
    assert list(walk_lengths(trace_of(rows, 8), min_gain=0.0)) == list(range(1, 9))
