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
from kplan.acceptance.generate import GOLDEN, mix, pick, unit
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


SPLITMIX = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)
"""First outputs of SplitMix64 with the seed 0."""


def test_the_hash_is_splitmix64() -> None:
    for number, expected in enumerate(SPLITMIX, start=1):
        assert int(mix(np.uint64(number * int(GOLDEN) % 2**64))) == expected
        assert unit(np.uint64(0), number) == (expected >> 11) / 2**53


def test_a_draw_falls_on_the_first_chance_above_it() -> None:
    cumulative = np.array([0.25, 0.25, 0.75, 1.0])
    assert [pick(cumulative, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999, 1.0)] == [
        0,
        0,
        2,
        2,
        3,
        3,
        3,
    ]


def bits(key: int, number: int) -> int:
    """Output ``number`` of SplitMix64 with the seed ``key``."""
    value = (key + number * 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def fallen(chances: np.ndarray, u: float) -> int:
    """Index that a uniform draw falls on, of chances that sum to 1."""
    total = 0.0
    for index, chance in enumerate(chances[:-1]):
        total += chance
        if u < total:
            return index
    return len(chances) - 1


def kind_of(depth: int, tokens: int, offer: int, before: int, at: int, length: int) -> int:
    """Cell of a draft; the step before emitted ``tokens`` and was offered ``before``."""
    if depth <= tokens - 2:
        return cells.CONFIRMED + depth - 1
    if at + depth > length - cells.TAIL_TOKENS:
        return cells.TAIL
    if depth == tokens - 1:
        return (cells.UNSEEN if tokens == before + 1 else cells.FAILED) + depth - 1
    if depth > 1:
        return cells.NEW + depth - 1
    age = min(at.bit_length() - 1, cells.AGES - 1)
    return cells.FIRST + age * cells.OFFERS + [0, 0, 1, 2, 3, 3, *[4] * 14, 5][offer]


def plain_request(model: TraceModel, seed: int, number: int, length: int) -> tuple[list[int], list[int]]:
    """Acceptance and offers of one request, position by position, with whole numbers of Python."""
    key = bits(int(model.key(seed)), number + 1)
    _, regimes = model.regime_start.shape
    bin_ = sum(length >= edge for edge in model.length_edges)
    group = fallen(model.class_by_length[bin_], (bits(key, 0) >> 11) / 2**53)
    acc, offers = [1], [0]
    regime, tokens, offer = 0, 1, 0 if model.lookup else model.recorded_k
    for at in range(1, length):
        both = bits(key, 2 * at)
        high, low = (both >> 32) / 2**32, (both % 2**32) / 2**32
        chances = model.regime_start[group] if at == 1 else model.regime_switch[group, regime]
        regime = fallen(chances, high)
        hazard = model.hazard[group * regimes + regime]
        before = offer
        if model.lookup and tokens == 1:
            age = min(at.bit_length() - 1, cells.AGES - 1) if length - at > cells.TAIL_TOKENS else cells.AGES
            found = hazard[age + (cells.AGES + 1 if before else 0)]
            offer = fallen(model.lookup.new_offer[1 if before else 0], low / found) if low < found else 0
        elif model.lookup and before < cells.DEPTHS:
            offer += int(low < model.lookup.grow[int(tokens == before + 1)])
        accept, survival, right = (bits(key, 2 * at + 1) >> 11) / 2**53, 1.0, 0
        while right < offer:
            survival *= hazard[kind_of(right + 1, tokens, offer, before, at, length)]
            if accept >= survival:
                break
            right += 1
        tokens = right + 1
        acc.append(min(tokens, length - at, model.known_k + 1))
        offers.append(min(offer, model.known_k))
    return acc, offers


def any_model(seed: int, lookup: bool) -> TraceModel:
    """Three classes of two regimes, every chance drawn."""
    draw = np.random.default_rng(seed)
    offers = draw.dirichlet(np.ones(cells.DEPTHS), 2)
    return replace(
        flat_model([0.5] * 6, classes=3, known_k=4 if seed % 2 else 20),
        length_edges=np.array([10.0, 30.0]),
        class_by_length=draw.dirichlet(np.ones(3), 3),
        regime_start=draw.dirichlet(np.ones(2), 3),
        regime_switch=draw.dirichlet(np.ones(2), (3, 2)),
        hazard=draw.uniform(0.3, 0.95, (6, cells.CELLS)),
        lookup=Lookup(np.column_stack([np.zeros(2), offers]), draw.uniform(0.2, 0.8, 2)) if lookup else None,
        proposer=f"any{seed}",
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lookup", [False, True])
def test_a_request_is_generated_as_the_rule_is_told(seed: int, lookup: bool) -> None:
    """Lengths on either side of the bins, one so long that a lookup's offer grows to 20 and it is old."""
    model, lengths = any_model(seed, lookup), [1, 2, 9, 10, 29, 30, 31, 5, 12, 40, 6, 300]
    trace = model.generate(7, np.array(lengths), request0=3)
    assert trace.recorded_k == model.known_k
    assert trace.aligned.tolist() == [True] * len(lengths)
    for row, length in enumerate(lengths):
        acc, offers = plain_request(model, 7, 3 + row, length)
        part = slice(int(trace.offsets[row]), int(trace.offsets[row + 1]))
        assert trace.acc[part].tolist() == acc
        if lookup:
            assert trace.drafted is not None
            assert trace.drafted[part].tolist() == offers


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
