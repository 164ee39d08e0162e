"""The generator: keyed draws, closed forms of hand-made models, and what the walk must keep."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.acceptance import Lookup, ProposerTrace, TraceModel, cells, step_tokens, walk, walk_shape
from kplan.acceptance.adapt import shift_depths
from kplan.errors import InputError
from kplan.workload import load_workload
from tests.acceptance.made import flat_model, leviathan_length


def lookup_model(match: float, hazard: float) -> TraceModel:
    offers = np.zeros((2, cells.DEPTHS + 1))
    offers[:, 5], offers[:, 20] = 0.25, 0.75
    model = flat_model([hazard])
    model.hazard[:, : cells.FIRST] = match
    return replace(model, lookup=Lookup(offers, np.array([0.0, 0.0])))


def rows(trace: ProposerTrace) -> list[list[int]]:
    return [trace.acc[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]


MODELS = [flat_model([0.4, 0.9], stay=0.9), lookup_model(0.3, 0.8)]


@settings(deadline=None)
@given(
    st.sampled_from(MODELS),
    st.integers(0, 2**40),
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_a_request_is_the_same_whoever_comes_with_it(
    model: TraceModel, seed: int, lengths: list[int], index: int
) -> None:
    index %= len(lengths)
    whole = model.generate(seed, np.array(lengths))
    alone = model.generate(seed, np.array(lengths[index : index + 1]), request0=index)
    assert rows(alone)[0] == rows(whole)[index]
    others = [1 + 2 * length for length in lengths]
    others[index] = lengths[index]
    assert rows(model.generate(seed, np.array(others)))[index] == rows(whole)[index]


@settings(deadline=None)
@given(st.sampled_from(MODELS), st.integers(0, 2**40), st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_generated_traces_are_traces(model: TraceModel, seed: int, lengths: list[int]) -> None:
    trace = model.generate(seed, np.array(lengths))
    left = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    acc = trace.acc.astype(np.int64)
    assert trace.output_len.tolist() == lengths
    assert np.all(acc[trace.offsets[:-1]] == 1)
    assert np.all((acc >= 1) & (acc <= trace.recorded_k + 1) & (acc <= left))
    if trace.drafted is not None:
        assert np.all(acc <= trace.drafted.astype(np.int64) + 1)
        assert np.all(trace.drafted[trace.offsets[:-1]] == 0)


def test_another_seed_or_proposer_gives_other_draws() -> None:
    model = flat_model([0.6])
    lengths = np.full(50, 40)
    first = model.generate(1, lengths).acc
    assert not np.array_equal(first, model.generate(2, lengths).acc)
    assert not np.array_equal(first, replace(model, proposer="other").generate(1, lengths).acc)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.9])
def test_a_flat_hazard_gives_leviathans_length(alpha: float) -> None:
    trace = flat_model([alpha]).generate(3, np.full(400, 1000))
    found = step_tokens(trace, 8)
    np.testing.assert_allclose(found, [leviathan_length(alpha, k) for k in range(9)], rtol=0.01)
    assert abs(walk_shape(trace, 3).lag1) < 0.01


def test_classes_give_the_spread_between_requests() -> None:
    """Two equal classes at K = 1: tokens per step 1 + alpha, so the SD of long requests is half the gap."""
    trace = flat_model([0.3, 0.7], classes=2).generate(4, np.full(400, 3000))
    shape = walk_shape(trace, 1)
    assert shape.request_sd == pytest.approx(0.2, rel=0.05)
    # About the overall mean, the share of the variance that lies between requests: .04 / (.04 + .21)
    assert shape.lag1 == pytest.approx(0.04 / 0.25, abs=0.01)
    assert abs(shape.lag1_within) < 0.01


def test_regimes_give_persistence_within_a_request() -> None:
    """At K = 1 a step moves 1 or 2 positions, so lag 1 lies between stay and stay squared times the share."""
    stay = 0.98
    trace = flat_model([0.2, 0.8], stay=stay).generate(5, np.full(50, 20_000))
    shape = walk_shape(trace, 1)
    memory = 2 * stay - 1
    share = 0.09 / 0.25
    assert memory**2 * share * 0.85 < shape.lag1_within < memory * share * 1.05
    quick = walk_shape(flat_model([0.2, 0.8], stay=0.5).generate(5, np.full(50, 20_000)), 1)
    assert abs(quick.lag1_within) < 0.01


def test_a_lookup_drafts_where_it_matches() -> None:
    match, hazard = 0.2, 0.0
    trace = lookup_model(match, hazard).generate(6, np.full(200, 1000))
    assert trace.drafted is not None
    decode = np.ones(len(trace.acc), np.bool_)
    decode[trace.offsets[:-1]] = False
    found = trace.drafted[decode]
    assert np.mean(found > 0) == pytest.approx(match, rel=0.02)
    assert np.mean(found[found > 0] == 5) == pytest.approx(0.25, rel=0.05)
    assert np.all(trace.acc == 1)


def test_what_is_not_known_is_censored() -> None:
    trace = flat_model([0.95], known_k=4).generate(0, np.full(20, 300))
    assert trace.recorded_k == 4
    assert trace.acc.max() == 5


def test_confirmed_drafts_overlap() -> None:
    """With certain confirmation a step never knows less than the one before it did."""
    model = flat_model([0.5])
    model.hazard[:, cells.CONFIRMED : cells.FAILED] = 1.0
    for row in rows(model.generate(1, np.full(20, 200))):
        assert all(after >= before - 1 for before, after in pairwise(row[1:]))


def test_shifting_up_accepts_more_at_every_k() -> None:
    model = flat_model([0.5])
    lengths = np.full(50, 400)
    plain, more = (m.generate(0, lengths) for m in (model, shift_depths(model, np.full(20, 0.3))))
    assert all(walk(more, k).acceptance_length > walk(plain, k).acceptance_length for k in range(1, 8))


@pytest.mark.parametrize("lengths", [[], [3, 0], [-1]])
def test_bad_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(InputError, match="output length"):
        flat_model([0.5]).generate(0, np.array(lengths, np.int64))


@pytest.mark.parametrize("proposer", ["eagle3", "ngram", "suffix"])
def test_five_million_positions_a_second(proposer: str) -> None:
    model = load_workload("sharegpt").model(proposer)
    lengths = np.full(4000, 500)
    model.generate(0, lengths[:2])
    start = time.perf_counter()
    trace = model.generate(0, lengths)
    assert len(trace.acc) / (time.perf_counter() - start) > 5e6
    assert trace.output_len.sum() == len(trace.acc)
