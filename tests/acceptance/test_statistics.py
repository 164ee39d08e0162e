"""The shape of a walk, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.acceptance import Steps, compare, walk_shape, walk_steps
from kplan.acceptance.statistics import recorded_k_at, shape_of
from tests.acceptance.made import trace_of


def steps_of_tokens(*requests: list[int], cut: int = 1) -> Steps:
    """Steps of these tokens, each followed by a last one of ``cut`` tokens."""
    tokens = [token for request in requests for token in (*request, cut)]
    row = [r for r, request in enumerate(requests) for _ in range(len(request) + 1)]
    last = [at == len(request) for request in requests for at in range(len(request) + 1)]
    some = np.array(tokens)
    return Steps(len(requests), some, some, some, np.array(row), np.array(last))


def test_neighbours_correlate_about_the_mean_of_all_and_about_that_of_each() -> None:
    """Steps of 1 1 3 and of 3 5 5 tokens, and cut ones that count for the length alone. About 3: -2 -2 0 and
    0 2 2, variance 16/6, products of neighbours 4, 0, 0, 4. About 5/3 and 13/3: -2/3 -2/3 4/3 and
    -4/3 2/3 2/3, variance 48/9/6 = 8/9, products 4/9, -8/9, -8/9, 4/9."""
    shape = shape_of(steps_of_tokens([1, 1, 3], [3, 5, 5], cut=7), 9)
    assert shape.k == 9
    assert shape.acceptance_length == pytest.approx((18 + 14) / 8)
    assert shape.lag1 == pytest.approx(2 / (16 / 6))
    assert shape.lag1_within == pytest.approx((-2 / 9) / (8 / 9))
    assert np.isnan(shape.request_sd)


def test_only_requests_of_ten_steps_tell_the_spread() -> None:
    """Means of 1, 2 and 4, of 12, 10 and 10 steps: an SD of sqrt(7/3); one of 9 steps is left out."""
    rows = [1] * 12, [1, 3] * 5, [4] * 10
    assert shape_of(steps_of_tokens(*rows, [9] * 9), 3).request_sd == pytest.approx((7 / 3) ** 0.5)
    assert np.isnan(shape_of(steps_of_tokens([4] * 10, [9] * 9), 3).request_sd)
    assert shape_of(steps_of_tokens([4] * 10, [9] * 10), 3).request_sd == pytest.approx((25 / 2) ** 0.5)


def test_where_nothing_varies_there_is_no_correlation() -> None:
    for rows in ([[2, 2, 2]], [[1], [3]], [[5]], [[]]):
        shape = shape_of(steps_of_tokens(*rows), 3)
        assert np.isnan([shape.lag1, shape.request_sd]).all()
    two = shape_of(steps_of_tokens([1, 3]), 3)
    assert two.lag1 == pytest.approx(-1.0)


def test_no_step_has_no_length() -> None:
    steps = walk_steps(trace_of([[1], [1]], 3), 2)
    assert np.isnan(steps.acceptance_length)
    assert np.isnan(shape_of(steps, 2).acceptance_length)


def test_drafts_are_counted_by_depth_as_far_as_they_were_verified() -> None:
    """3 of 3 drafts right, 1 of 2, 0 of 3, and 1 of 1 where the end hides the rest."""
    tokens, verified = np.array([4, 2, 1, 2]), np.array([3, 2, 3, 1])
    none = np.zeros(4)
    steps = Steps(1, tokens, verified, verified, none.astype(np.int64), none.astype(np.bool_))
    accepted, reached = steps.by_depth(4)
    assert accepted.tolist() == [3, 1, 1, 0]
    assert reached.tolist() == [4, 2, 1, 0]


def test_a_k_for_each_position_is_repeated_for_copies() -> None:
    """Of 2 and 1 drafts: 3 tokens of 4, then 1 of 3 ... the second request as the first."""
    trace = trace_of([[1, 4, 3, 2, 1]] * 2, 5, [[0, 5, 1, 0, 5]] * 2)
    steps = walk_steps(trace, np.array([9, 2, 1, 1, 1], np.uint8))
    assert steps.tokens.tolist() == [3, 1, 3, 1]
    assert steps.offered.tolist() == [2, 1, 2, 1]
    assert steps.verified.tolist() == [2, 0, 2, 0]
    assert steps.request.tolist() == [0, 0, 1, 1]
    assert steps.last.tolist() == [False, True, False, True]


def test_a_step_asks_for_its_k_at_every_position_that_it_covers() -> None:
    """3 drafts at 1, none at 4; before the first step none. A lookup was asked for K throughout."""
    seen = np.array([0, 4, 0, 0, 1, 0, 3, 0], np.uint8)
    trace = replace(trace_of([[1, 3, 1, 1, 1], [1, 2, 1]], 6), seen=seen)
    assert recorded_k_at(trace).tolist() == [0, 3, 3, 3, 0, 0, 2, 2]
    lookup = replace(trace, drafted=np.maximum(seen, 1) - np.uint8(1))
    assert recorded_k_at(lookup).tolist() == [6] * 8


def test_errors_are_relative_but_for_the_correlation() -> None:
    """One accepts every draft, one none: 2 tokens a step and 1 at K = 1."""
    some = trace_of([[1, *[2, 1] * 6, *[1] * 12]], 1)
    none = trace_of([[1, *[1] * 24]], 5)
    (row,) = compare(some, none)
    assert (row["k"], row["real_acceptance_length"], row["model_acceptance_length"]) == (1, 24 / 18, 1.0)
    assert row["acceptance_length_error"] == pytest.approx(18 / 24 - 1)
    assert np.isnan(row["lag1_error"])
    assert np.isnan(row["request_sd_error"])
    assert [row["k"] for row in compare(none, none)] == [1, 3, 5]


def test_the_spread_and_the_correlation_of_a_model_are_told_beside_the_recorded_ones() -> None:
    """Real requests of 1 and 2 tokens a step, the model's of 1 and 3: spreads of 1/sqrt(2) and 2/sqrt(2)."""

    def pair(tokens: int) -> list[list[int]]:
        full = [1, *[min(tokens - at % tokens, 12 * tokens - at) for at in range(12 * tokens)]]
        return [[1] * 13, full]

    (first, second, *_) = compare(trace_of(pair(2), 5), trace_of(pair(3), 5))
    assert (first["k"], second["k"]) == (1, 3)
    assert second["real_request_sd"] == pytest.approx(0.5**0.5)
    assert second["request_sd_error"] == pytest.approx(1.0)
    assert second["lag1_error"] == pytest.approx(second["model_lag1"] - second["real_lag1"])
    assert (second["real_lag1"], second["model_lag1"]) == (pytest.approx(1.0), pytest.approx(1.0))


def test_the_walk_at_a_k_beyond_a_byte_is_that_of_the_largest() -> None:
    assert walk_shape(trace_of([[1, 2, 1, 2, 1]], 5), 300).acceptance_length == 2.0
