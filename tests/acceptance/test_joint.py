"""Two proposers generated together: what each does alone stays, and they depend on each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.acceptance import Lookup, ProposerTrace, TraceModel, cells, walk
from kplan.acceptance.couple import _assigned, _at_quantile, _quantile
from kplan.acceptance.generate import GOLDEN, State, advance, first_state, mix
from kplan.acceptance.joint import Dependence, JointModel, class_order, proposers_of
from kplan.acceptance.joint_figures import pair_figures
from kplan.errors import InputError
from kplan.rng import stream
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


def test_a_quantile_is_counted_from_the_best_class() -> None:
    """Chances of .2, .3 and .5, the last class the best: .6 is .1 into it, .25 is .05 into the next."""
    cumulative, order = np.array([0.2, 0.5, 1.0]), np.array([2, 1, 0])
    assert _quantile(cumulative, order, 2, 0.6) == pytest.approx(0.1)
    assert _quantile(cumulative, order, 1, 0.25) == pytest.approx(0.55)
    assert _quantile(cumulative, order, 0, 0.15) == pytest.approx(0.95)
    assert [_at_quantile(cumulative, order, q) for q in (0.0, 0.49, 0.51, 0.79, 0.81, 1.0)] == [
        2,
        2,
        1,
        1,
        0,
        0,
    ]


def rows_of(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.uint8)


@pytest.mark.parametrize(
    ("lead", "follow", "depth", "taken"),
    [
        # by how much they accept: the leader's is the second of three, and so is the follower's first
        (rows_of([3], [1], [9]), rows_of([4], [8], [2]), 8, 0),
        (rows_of([9], [1], [3]), rows_of([4], [8], [2]), 8, 1),
        (rows_of([1], [9], [3]), rows_of([4], [8], [2]), 8, 2),
        # by total 5 with 6 and 2 with 3; but 1 4 and 5 0 beside 2 1 and 0 6 are worth more the other way
        (rows_of([2, 5], [6, 1]), rows_of([3, 2], [1, 7]), 9, 1),
        (rows_of([6, 1], [2, 5]), rows_of([3, 2], [1, 7]), 9, 0),
        # beyond a depth of 1 they are alike but for the place
        (rows_of([2, 1, 9], [1, 9, 1], [1, 1, 1]), rows_of([1, 2, 1], [1, 1, 1], [9, 1, 5]), 1, 2),
    ],
)
def test_an_assignment_by_hand(lead: np.ndarray, follow: np.ndarray, depth: int, taken: int) -> None:
    assert {_assigned(lead, follow, depth, np.uint64(key)) for key in (1, 77, 12345)} == {taken}


def best_assignment(lead: np.ndarray, follow: np.ndarray, depth: int) -> int:
    """The most that any pairing is worth: the sum of products of the drafts accepted."""
    one, two = np.minimum(lead, depth + 1) - 1.0, np.minimum(follow, depth + 1) - 1.0
    return max(sum(one[a] @ two[b] for a, b in enumerate(order)) for order in permutations(range(len(one))))


@pytest.mark.parametrize("seed", range(6))
def test_no_exchange_of_two_partners_betters_an_assignment(seed: int) -> None:
    """Each of the leader's put first in turn tells all partners; exchanges reach the best of three."""
    draw = np.random.default_rng(seed)
    lead, follow = (draw.integers(1, 9, (3, 4)).astype(np.uint8) for _ in range(2))
    lead[:, 0], follow[:, 0] = [1, 30, 60], [60, 1, 30]  # sums that differ, whatever the ties
    partner = [
        _assigned(lead[[first, *(c for c in range(3) if c != first)]], follow, 99, np.uint64(5))
        for first in range(3)
    ]
    assert sorted(partner) == [0, 1, 2]
    worth = sum(float((lead[a] - 1.0) @ (follow[b] - 1.0)) for a, b in enumerate(partner))
    assert worth == pytest.approx(best_assignment(lead, follow, 99))


def bits(key: int, number: int) -> int:
    """Output ``number`` of SplitMix64 with the seed ``key``."""
    return int(mix(np.uint64((key + number * int(GOLDEN)) % 2**64)))


def plain_pair(
    lead: TraceModel, follow: TraceModel, pair: Dependence, seed: int, number: int, length: int
) -> list[int]:
    """The follower's acceptance, window by window, as the text of its module tells it."""
    name = f"{pair.follower}+{pair.leader}"
    between = int(stream(seed, "dependence", name).integers(0, 2**64, dtype=np.uint64))
    keys = [bits(int(one.key(seed)), number + 1) for one in (lead, follow)]
    own = bits(between, number + 1)
    tables = [lead.tables(), follow.tables()]
    draws = [(bits(key, 0) >> 11) / 2**53 for key in (*keys, own)]
    chances = [one.class_cumulative(np.array([length]))[0] for one in (lead, follow)]
    groups = [int(np.searchsorted(each, u, side="right")) for each, u in zip(chances, draws, strict=False)]
    if draws[2] < pair.class_share:
        quantile = _quantile(chances[0], class_order(lead), groups[0], draws[0])
        groups[1] = _at_quantile(chances[1], class_order(follow), quantile)
    ties = int(mix(np.uint64(own)))
    edges = [1, *range(2 + int((bits(ties, 0) >> 11) / 2**53 * pair.window), length, pair.window), length]
    states, told = [first_state(each) for each in tables], [1]
    for first, end in pairwise(sorted({min(edge, length) for edge in edges})):
        matched = (bits(own, first) >> 11) / 2**53 < pair.window_share
        drawn: list[list[tuple[np.ndarray, State]]] = []
        for key, table, group, state in zip(keys, tables, groups, states, strict=True):
            other = [key, *(bits(key + c, 0) for c in range(1, pair.candidates))]
            drawn.append([])
            for one in other:
                acc = np.zeros(end - first, np.uint8)
                after = advance(table, group, state, np.uint64(one), first, end, length, acc, acc.copy())
                drawn[-1].append((acc, after))
        ours, theirs = (np.stack([acc for acc, _ in each]) for each in drawn)
        taken = (
            _assigned(ours, theirs, pair.depth, np.uint64(mix(np.uint64((ties + first) % 2**64))))
            if matched
            else 0
        )
        told += theirs[taken].tolist()
        states = [drawn[0][0][1], drawn[1][taken][1]]
    return told


@pytest.mark.parametrize(
    "changes", [{}, {"class_share": 0.4, "window_share": 0.5, "window": 5, "candidates": 3}]
)
@pytest.mark.parametrize("follower", ["ngram", "eagle3"])
def test_a_follower_is_generated_as_the_text_tells(follower: str, changes: dict[str, float]) -> None:
    own = models()
    leader = "eagle3" if follower == "ngram" else "ngram"
    pair = replace(FULL, leader=leader, follower=follower, **{"candidates": 4, **changes})  # type: ignore[arg-type]
    lengths = np.array([1, 2, 3, 30, 47, 64])
    made = JointModel(own, (pair,)).generate(6, lengths, 2)[follower]
    for row, length in enumerate(lengths.tolist()):
        expected = plain_pair(own[leader], own[follower], pair, 6, 2 + row, length)
        assert made.acc[made.offsets[row] : made.offsets[row + 1]].tolist() == expected
    assert made.recorded_k == own[follower].known_k
    assert made.aligned.all()


def test_classes_of_a_lookup_are_ordered_by_how_often_they_draft_too() -> None:
    """Shares of .5 and .3 right where a match is found in .2 and .5 of the cases: .1 and .15 at depth 1."""
    two = replace(flat_model([0.5, 0.3], classes=2), lookup=Lookup(np.eye(21)[[1, 1]], np.zeros(2)))
    two.hazard[:, cells.NEW :] = 0.0
    assert class_order(two).tolist() == [0, 1]
    two.hazard[:, : cells.FIRST] = [[0.2], [0.5]]
    assert class_order(two).tolist() == [1, 0]


def test_regimes_count_for_as_long_as_they_last() -> None:
    """In force for a quarter and three quarters: .25 x .9 + .75 x .2 = .375, and the other way round .725."""
    four = flat_model([0.9, 0.2, 0.2, 0.9], classes=2)
    four.regime_switch[:] = [[0.7, 0.3], [0.1, 0.9]]
    assert class_order(four).tolist() == [1, 0]
    four.regime_switch[0] = [[0.9, 0.1], [0.3, 0.7]]
    four.hazard[2:] -= 0.15
    assert class_order(four).tolist() == [0, 1]


def test_the_order_of_classes_counts_every_depth() -> None:
    """The second accepts less at depth 1 and all behind it."""
    two = flat_model([0.6, 0.5], classes=2)
    assert class_order(two).tolist() == [0, 1]
    two.hazard[1, cells.NEW + 1 : cells.TAIL] = 1.0
    assert class_order(two).tolist() == [1, 0]
    # and a head's first draft counts where its offer is the one that it makes
    two.hazard[1, cells.NEW + 1 : cells.TAIL] = 0.5
    first = two.hazard[:, cells.FIRST : cells.CONFIRMED].reshape(2, cells.AGES, cells.OFFERS)
    first[1, :, cells.offer_bin(20)] = 0.8
    assert class_order(two).tolist() == [1, 0]


def test_what_a_dependence_rests_on_is_told() -> None:
    own = {name: flat_model([0.5]) for name in ("ngram", "eagle3", "suffix")}
    told = JointModel(own, (FULL,)).provenances
    assert list(told) == ["dependence of ngram+eagle3", "dependence of ngram+eagle3+suffix"]
    assert told["dependence of ngram+eagle3"] is FULL.provenance
    assert told["dependence of ngram+eagle3+suffix"].note.startswith("suffix taken as independent")
    assert JointModel({"ngram": own["ngram"]}).provenances == {}
    assert JointModel(own).independent == ("ngram", "eagle3", "suffix")
    assert proposers_of("ngram+eagle3") == ("ngram", "eagle3")


def test_requests_that_need_few_steps_of_either_correlate() -> None:
    """Twelve steps and six by turns, of both or of one and the other; of nine steps none counts."""
    full, none, short = [1, *[2, 1] * 12, 1], [1] * 26, [1] * 10
    one = trace_of([full, none, full, none, short], 3)
    assert pair_figures({"a": one, "b": one})["requests"] == pytest.approx(1.0)
    other = trace_of([none, full, none, full, [1, *[2, 1] * 4, 1]], 3)
    assert pair_figures({"a": one, "b": other})["requests"] == pytest.approx(-1.0)
