"""Two proposers generated together: what each does alone stays, and they depend on each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.acceptance import ProposerTrace, TraceModel, walk
from kplan.acceptance.couple import _assigned, _at_quantile, _quantile
from kplan.acceptance.joint import Dependence, JointModel, class_order, proposers_of
from kplan.acceptance.joint_figures import pair_figures
from kplan.errors import InputError
from kplan.workload import load_workload
from tests.acceptance.made import MADE, flat_model, trace_of

FULL = Dependence("eagle3", "ngram", 1.0, 1.0, 16, 8, 2, MADE)
NONE = replace(FULL, class_share=0.0, window_share=0.0)


def models(workload: str = "instructcoder") -> dict[str, TraceModel]:
    known = load_workload(workload)
    return {name: known.model(name) for name in ("ngram", "eagle3")}


def same(a: ProposerTrace, b: ProposerTrace) -> bool:
    assert (a.drafted is None) == (b.drafted is None)
    offers = a.drafted is None or b.drafted is None or bool((a.drafted == b.drafted).all())
    return offers and bool((a.acc == b.acc).all())


def test_the_leader_is_what_it_is_alone_and_so_is_a_follower_that_shares_nothing() -> None:
    lengths = np.resize([1, 2, 5, 40, 300], 60)
    own = models()
    alone = {name: model.generate(11, lengths, 4) for name, model in own.items()}
    full, none = (JointModel(own, (pair,)).generate(11, lengths, 4) for pair in (FULL, NONE))
    assert list(full) == ["ngram", "eagle3"]
    assert same(full["eagle3"], alone["eagle3"])
    assert same(none["eagle3"], alone["eagle3"])
    assert same(none["ngram"], alone["ngram"])
    assert not same(full["ngram"], alone["ngram"])
    assert all(trace.aligned.all() for trace in full.values())


@pytest.mark.parametrize("pair", [FULL, replace(FULL, window=3, candidates=2, depth=20)])
def test_a_follower_does_on_average_what_it_does_alone(pair: Dependence) -> None:
    lengths = np.full(4000, 120)
    own = models()
    together, alone = (
        JointModel(own, (pair,)).generate(3, lengths)["ngram"],
        own["ngram"].generate(4, lengths),
    )
    for k in (1, 5):
        a, b = walk(together, k).request_steps, walk(alone, k).request_steps
        assert abs(a.mean() - b.mean()) < 4 * np.sqrt((a.var() + b.var()) / len(lengths))
        assert a.std() == pytest.approx(b.std(), rel=0.06)  # requests differ as much as alone
    assert together.drafted is not None
    assert alone.drafted is not None
    by_row = [trace.reshape(-1, 120)[:, 1:] for trace in (together.drafted > 0, alone.drafted > 0)]
    a, b = (rows.mean(axis=1) for rows in by_row)
    assert abs(a.mean() - b.mean()) < 4 * np.sqrt((a.var() + b.var()) / len(lengths))
    turns = [(rows[:, 1:] != rows[:, :-1]).mean(axis=1) for rows in by_row]  # matches last as long as alone
    assert abs(turns[0].mean() - turns[1].mean()) < 4 * np.sqrt(
        (turns[0].var() + turns[1].var()) / len(lengths)
    )


def test_together_they_accept_at_the_same_positions_and_in_the_same_requests() -> None:
    lengths = np.full(1500, 150)
    figures = {}
    for name, pair in (
        ("none", NONE),
        ("half", replace(FULL, class_share=0.5, window_share=0.5)),
        ("full", FULL),
    ):
        made = JointModel(models(), (pair,)).generate(5, lengths)
        figures[name] = pair_figures(made)
    for what in ("first drafts", "requests"):
        assert abs(figures["none"][what]) < 4 / np.sqrt(1500)
        assert figures["none"][what] + 0.05 < figures["half"][what] < figures["full"][what] - 0.05
    for what in ("best K=5", "ngram>=3 else eagle3 K=7"):
        assert figures["none"][what] > figures["half"][what] > figures["full"][what]


def test_draws_are_keyed_by_the_number_of_the_request() -> None:
    lengths = np.array([30, 80, 7, 200, 61])
    joint = JointModel(models(), (FULL,))
    whole = joint.generate(2, lengths)["ngram"]
    part = joint.generate(2, lengths[3:], request0=3)["ngram"]
    np.testing.assert_array_equal(part.acc, whole.acc[whole.offsets[3] :])
    assert not same(joint.generate(3, lengths)["ngram"], whole)


@given(st.integers(0, 2**32), st.integers(2, 7), st.integers(1, 6))
def test_whichever_continuation_is_the_leaders_each_of_the_followers_is_assigned_once(
    seed: int, n: int, size: int
) -> None:
    """The law that keeps the follower as it is alone: an assignment is blind to which is the leader."""
    rng = np.random.default_rng(seed)
    # sums that differ leave nothing to the tie-break, which is keyed by the place in the list
    lead, follow = (rng.integers(1, 5, (n, size)) + 20 * rng.permutation(n)[:, None] for _ in range(2))
    lead, follow = lead.astype(np.uint8), follow.astype(np.uint8)
    taken = Counter()
    for first in range(n):
        order = [first, *(c for c in range(n) if c != first)]
        taken[_assigned(lead[order], follow, 250, np.uint64(seed))] += 1
    assert taken == Counter(range(n))


def test_equal_continuations_are_told_apart_by_chance() -> None:
    same_all = np.ones((4, 3), np.uint8)
    taken = Counter(_assigned(same_all, same_all, 2, np.uint64(key * 7919 + 1)) for key in range(4000))
    for count in taken.values():
        assert abs(count - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75)
    assert len(taken) == 4


def test_an_assignment_pairs_those_that_accept_at_the_same_places() -> None:
    lead = np.array([[1, 1, 9, 9], [9, 9, 1, 1]], np.uint8)
    follow = np.array([[9, 9, 1, 1], [1, 1, 9, 9]], np.uint8)
    assert {_assigned(lead, follow, 8, np.uint64(key)) for key in range(20)} == {1}
    assert {_assigned(lead[::-1].copy(), follow, 8, np.uint64(key)) for key in range(20)} == {0}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0, 0.999), st.randoms())
def test_a_quantile_of_the_same_classes_leads_back_to_the_class(
    weights: list[int], u: float, random: object
) -> None:
    order = np.random.default_rng(len(weights)).permutation(len(weights))
    cumulative = np.cumsum(weights) / np.sum(weights)
    index = int(np.searchsorted(cumulative, u, side="right"))
    quantile = _quantile(cumulative, order, index, u)
    assert 0 <= quantile < 1 + 1e-12
    low = sum(weights[c] for c in order[: list(order).index(index)]) / sum(weights)
    assert quantile == pytest.approx(low + u - (cumulative[index - 1] if index else 0.0))
    if abs(quantile - low) > 1e-9:
        assert _at_quantile(cumulative, order, quantile) == index


def test_classes_are_ordered_by_what_they_accept() -> None:
    three = flat_model([0.2, 0.9, 0.5])
    alone = replace(
        three,
        class_by_length=np.tile([0.3, 0.3, 0.4], (len(three.class_by_length), 1)),
        regime_start=np.ones((3, 1)),
        regime_switch=np.ones((3, 1, 1)),
    )
    assert class_order(alone).tolist() == [1, 2, 0]


def test_figures_of_two_short_outputs_counted_by_hand() -> None:
    lookup = trace_of([[1, 3, 2, 1, 1], [1, 1, 1]], 3, [[0, 3, 2, 0, 1], [0, 0, 2]])
    head = trace_of([[1, 2, 1, 2, 1], [1, 2, 1]], 3)
    made = pair_figures({"ngram": lookup, "eagle3": head})
    # best K=1: 1 -> 3 (2 tokens) -> 5 (2); 1 -> 3: 6 tokens of 3 steps. K=3: 1 -> 4 -> 5; 1 -> 3.
    assert made["best K=1"] == pytest.approx(6 / 3)
    assert made["best K=3"] == pytest.approx(6 / 3)
    # n >= 1: 1 -> 4 (lookup, 3) -> 5 (lookup offers 1, fails); 1 -> 3 (head). n >= 3: at 4 the head.
    assert made["ngram>=1 else eagle3 K=3"] == pytest.approx(6 / 3)
    assert made["ngram>=3 else eagle3 K=3"] == pytest.approx(6 / 3)
    x, y = np.array([1, 1, 0, 0, 0, 0]), np.array([1, 0, 1, 0, 1, 0])
    assert made["first drafts"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert np.isnan(made["requests"])  # no request has ten steps
    assert "best K=5" not in made


def test_three_proposers_hang_on_the_one_that_leads() -> None:
    known = load_workload("gsm8k")
    own = {name: known.model(name) for name in ("ngram", "suffix", "eagle3")}
    lengths = np.full(50, 90)
    pairs = (FULL, replace(FULL, follower="suffix"))
    made = JointModel(own, pairs).generate(1, lengths)
    two = JointModel({name: own[name] for name in ("ngram", "eagle3")}, (FULL,)).generate(1, lengths)
    assert same(made["ngram"], two["ngram"])
    assert same(made["eagle3"], own["eagle3"].generate(1, lengths))
    assert JointModel(own, pairs).independent == ()
    assert JointModel(own, (FULL,)).independent == ("suffix",)


@pytest.mark.parametrize("name", ["", "ngram+", "+eagle3", "ngram+ngram"])
def test_a_name_that_joins_nothing_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="joined by"):
        proposers_of(name)
