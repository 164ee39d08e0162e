"""The walk against its definition, its laws and a closed form."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.acceptance import MAX_K, ProposerTrace, oracle_walk, step_tokens, walk, walk_steps
from kplan.errors import InputError
from tests.acceptance.made import leviathan_length, plain_walk, trace_of, traces


@settings(deadline=None)  # the first call compiles
@given(traces(), st.integers(0, MAX_K))
def test_walk_is_its_definition(trace: ProposerTrace, k: int) -> None:
    stats = walk(trace, k)
    assert (stats.steps, stats.tokens, stats.drafted) == plain_walk(trace, k)


@settings(deadline=None)  # the first call compiles
@given(traces(), st.integers(0, MAX_K))
def test_counts_add_up(trace: ProposerTrace, k: int) -> None:
    stats = walk(trace, k)
    assert stats.tokens == int(np.sum(trace.output_len - 1))
    assert stats.accepted == stats.tokens - stats.steps == int(stats.accepted_by_depth.sum())
    assert stats.drafted == int(stats.drafted_by_depth.sum())
    assert np.all(stats.accepted_by_depth <= stats.drafted_by_depth)
    assert np.all(np.diff(stats.accepted_by_depth) <= 0)
    assert stats.request_steps.sum() == stats.steps
    assert stats.request_tokens.sum() == stats.tokens
    if stats.steps:
        assert 1.0 <= stats.acceptance_length <= k + 1


@settings(deadline=None)  # the first call compiles
@given(traces(consistent=True))
def test_more_drafts_never_take_more_steps(trace: ProposerTrace) -> None:
    """A law of traces whose right drafts stay right; a trace at odds with itself may break it."""
    steps = [walk(trace, k).steps for k in range(0, min(trace.recorded_k, 12) + 1)]
    assert all(later <= earlier for earlier, later in pairwise(steps))


@settings(deadline=None)  # the first call compiles
@given(traces(), st.integers(0, MAX_K))
def test_oracle_wastes_no_draft_and_loses_no_token(trace: ProposerTrace, k: int) -> None:
    oracle, fixed = oracle_walk(trace, k), walk(trace, k)
    assert oracle.drafted == oracle.accepted
    assert oracle.drafted <= fixed.drafted
    assert (oracle.steps, oracle.tokens) == (fixed.steps, fixed.tokens)


@settings(deadline=None)  # the first call compiles
@given(traces(), st.integers(0, MAX_K))
def test_listed_steps_are_those_that_are_counted(trace: ProposerTrace, k: int) -> None:
    stats, steps = walk(trace, k), walk_steps(trace, k)
    assert len(steps.request) == stats.steps
    assert int(steps.offered.sum()) == stats.drafted
    by_request = np.bincount(steps.request, steps.tokens, minlength=stats.requests)
    assert by_request.tolist() == stats.request_tokens.tolist()


def test_steps_are_listed_in_their_order() -> None:
    """By hand, K = 2: at 1 two of two drafts; at 4 none; at 5 one, for the output ends at 7."""
    steps = walk_steps(trace_of([[1, 4, 3, 2, 1, 3, 2], [1], [1, 1]], 5), 2)
    assert steps.request.tolist() == [0, 0, 0, 2]
    assert steps.offered.tolist() == [2, 2, 2, 2]
    assert steps.verified.tolist() == [2, 2, 1, 0]
    assert steps.tokens.tolist() == [3, 1, 2, 1]
    assert steps.last.tolist() == [False, False, True, True]


@pytest.mark.parametrize("k", [-1, MAX_K + 1, 1000])
def test_no_step_is_taken_at_a_k_that_is_none(k: int) -> None:
    with pytest.raises(InputError, match=f"got {k}"):
        walk_steps(trace_of([[1, 1]], 1), k)


def test_k_zero_is_one_token_a_step() -> None:
    stats = walk(trace_of([[1, 3, 2, 1], [1]], 5), 0)
    assert (stats.requests, stats.steps, stats.tokens, stats.drafted) == (2, 3, 3, 0)


def test_the_largest_acceptance_does_not_wrap() -> None:
    trace = trace_of([[1] + [min(255, 300 - i) for i in range(1, 300)]], MAX_K)
    stats = walk(trace, MAX_K)
    assert (stats.steps, stats.tokens) == (2, 299)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.9])
def test_independent_drafts_give_the_closed_form(alpha: float) -> None:
    rng = np.random.default_rng(1)
    length = 400_000
    acc = np.minimum(rng.geometric(1 - alpha, length), 21)
    acc = np.minimum(acc, np.arange(length, 0, -1))
    acc[0] = 1
    found = step_tokens(trace_of([acc.tolist()], 20), 8)
    expected = [leviathan_length(alpha, k) for k in range(9)]
    np.testing.assert_allclose(found, expected, rtol=0.01)


@pytest.mark.parametrize("k", [-1, MAX_K + 1])
def test_k_out_of_range_is_refused(k: int) -> None:
    with pytest.raises(InputError, match=f"got {k}"):
        walk(trace_of([[1, 1]], 3), k)


def test_step_tokens_needs_a_decode_step() -> None:
    with pytest.raises(InputError, match="decode step"):
        step_tokens(trace_of([[1], [1]], 3), 2)
