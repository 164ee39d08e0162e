"""Policies over several proposers: against every choice there is, by hand, and on known acceptance."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.policy import StepView
from kplan_policies.combined import BestExpected, CombinedOracle, MatchElse

from .helpers import I64, LINEAR, PricedByK, iid_depths, outcome, untimed, view

LOOKUP, MODEL = 0, 1


def two(
    lookup: I64, model: I64, *, max_k: int = 7, cost: PricedByK = LINEAR, future: bool = False
) -> StepView:
    """A view of a lookup and a model drafter; ``lookup`` is offered, or useful with ``future``."""
    seen = view(np.arange(len(lookup)), max_k=max_k, cost=cost)
    both = np.stack((lookup, model))
    return replace(
        seen,
        proposers=("ngram", "eagle3"),
        lookups=(True, False),
        offered=both,
        future_by_proposer=both if future else None,
    )


@untimed
@given(
    useful=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4),
    step_s=st.lists(st.floats(0.001, 0.1), min_size=4, max_size=4).map(sorted).map(tuple),
)
def test_no_choice_beats_the_combined_oracle(
    useful: list[tuple[int, int]], step_s: tuple[float, ...]
) -> None:
    """Every choice of a proposer and a useful K for each request; verifying a token costs nothing here."""
    lookup, model = np.array(useful).T
    cost = PricedByK(step_s)
    proposer, k = CombinedOracle().choose_k(two(lookup, model, max_k=3, cost=cost, future=True))

    def rate(choice: list[tuple[int, int]]) -> float:
        depth = max((drafts for who, drafts in choice if who == MODEL), default=0)
        return float((len(choice) + sum(drafts for _, drafts in choice)) / step_s[depth])

    options = [
        [(LOOKUP, drafts) for drafts in range(have + 1)] + [(MODEL, drafts) for drafts in range(gets + 1)]
        for have, gets in useful
    ]
    best = max(rate(list(choice)) for choice in product(*options))
    chosen = list(zip(proposer.tolist(), k.tolist(), strict=True))
    assert all(drafts <= useful[i][who] for i, (who, drafts) in enumerate(chosen))
    assert rate(chosen) == pytest.approx(best, rel=1e-12)


def test_match_else_by_hand() -> None:
    step = two(np.array([0, 2, 3, 7]), np.array([7, 7, 7, 7]))
    proposer, k = MatchElse(n=3, k=2).choose_k(step)
    assert proposer.tolist() == [MODEL, MODEL, LOOKUP, LOOKUP]
    assert k.tolist() == [2, 2, 3, 7]


def test_of_two_lookups_the_longer_match_is_taken_and_the_first_on_a_tie() -> None:
    offered = np.array([[7, 7, 7], [2, 5, 4], [3, 5, 0]])
    step = replace(
        two(offered[1], offered[0]),
        proposers=("eagle3", "ngram", "suffix"),
        lookups=(False, True, True),
        offered=offered,
    )
    proposer, k = MatchElse(n=3, k=1).choose_k(step)
    assert proposer.tolist() == [2, 1, 1]
    assert k.tolist() == [3, 5, 4]


def test_best_expected_counts_what_was_examined() -> None:
    """Weight 0.5, start 0.5: depth 1 of the lookup saw 3 of 4 right, depth 2 one of two; the model none.

    (0.5 x 0.5 + 0.5 x 3) / (0.5 + 0.5 x 4) = 1.75 / 2.5 and (0.25 + 0.5) / (0.5 + 1) = 0.5; untouched 0.5.
    """
    policy = BestExpected(weight=0.5, start_acceptance=0.5)
    policy.choose_k(two(np.array([2, 2, 1, 1]), np.full(4, 2), max_k=2))
    told = outcome([0, 1, 2, 3], [2, 2, 1, 1], [2, 1, 1, 0])
    policy.observe(replace(told, proposer=np.zeros(4, np.int64)))
    expected = policy.expected()
    first, second = 1.75 / 2.5, 0.5
    np.testing.assert_allclose(expected[LOOKUP], [0, first, first + first * second])
    np.testing.assert_allclose(expected[MODEL], [0, 0.5, 0.75])


@pytest.mark.parametrize(("good", "bad"), [(LOOKUP, MODEL), (MODEL, LOOKUP)])
def test_best_expected_finds_the_proposer_that_is_right(good: int, bad: int) -> None:
    """One is right nine times in ten, the other once in ten; a pass costs 2% of a step."""
    cost = PricedByK(tuple(0.010 + 0.0002 * k for k in range(8)))
    rng = np.random.default_rng(3)
    policy, batch = BestExpected(probe_every=32), 8
    used = np.zeros(2, np.int64)
    for number in range(400):
        proposer, k = policy.choose_k(two(np.full(batch, 7), np.full(batch, 7), cost=cost))
        who = np.broadcast_to(proposer, batch)
        asked = np.broadcast_to(k, batch)
        depth = np.where(who == good, iid_depths(rng, 0.9, batch), iid_depths(rng, 0.1, batch))
        told = outcome(np.arange(batch), asked, np.minimum(depth, asked))
        policy.observe(replace(told, proposer=who))
        if number >= 200:
            np.add.at(used, who[asked > 0], 1)
    assert used[good] > 0.9 * 200 * batch
    assert 0 < used[bad] < 0.06 * 200 * batch, "it is tried again, and no more than that"


def test_best_expected_cuts_a_long_match_and_the_drafter_s_passes_apart() -> None:
    """At 0.7 a match of 7 is worth 0.7 + .. + 0.7^7 = 2.14, which costs 0.07 ms; a pass costs 1 ms of 10.

    Expected tokens by depth: 4.14, 4.84, 5.33, 5.67 over 10.09, 11.10, 12.11, 13.12 ms: 2 passes are best.
    """
    cost = PricedByK(tuple(0.010 + 0.001 * k for k in range(8)), token_s=1e-5)
    step = two(np.array([7, 0]), np.array([7, 7]), cost=cost)
    proposer, k = BestExpected(start_acceptance=0.7).choose_k(step)
    assert proposer.tolist() == [LOOKUP, MODEL]
    assert k.tolist() == [7, 2]


def test_best_expected_tries_a_proposer_again_only_where_it_offers_a_token() -> None:
    """A match of one token is worth less than the model's drafts, so the lookup is not used by itself."""
    cost = PricedByK(tuple(0.010 + 0.0002 * k for k in range(8)))
    policy, model = BestExpected(probe_every=8), np.array([7, 7])

    def chosen(matched: list[int]) -> tuple[list[int], list[int]]:
        proposer, k = policy.choose_k(two(np.array(matched), model, cost=cost))
        told = outcome([0, 1], k, np.minimum(k, 3))
        policy.observe(replace(told, proposer=proposer))
        return proposer.tolist(), k.tolist()

    used = [chosen([0, 1])[0] for _ in range(8)]
    assert used == [[MODEL, MODEL]] * 8
    assert chosen([0, 0])[0] == [MODEL, MODEL]
    proposer, k = chosen([0, 1])
    assert proposer == [MODEL, LOOKUP]
    assert k[0] > 1
    assert k[1] == 1
    assert chosen([0, 1])[0] == [MODEL, MODEL]


def test_a_lookup_without_matches_does_not_keep_the_model_drafter_from_being_tried_again() -> None:
    """Drafts of the model cost more than they give, one lookup is used, the other never matches."""
    cost = PricedByK((0.010, *(0.1 for _ in range(7))))
    offered = np.array([[0, 0], [5, 5], [7, 7]])
    step = replace(
        two(offered[1], offered[2], cost=cost),
        proposers=("suffix", "ngram", "eagle3"),
        lookups=(True, True, False),
        offered=offered,
    )
    policy, tried = BestExpected(probe_every=8), []
    for _ in range(12):
        proposer, k = policy.choose_k(step)
        policy.observe(replace(outcome([0, 1], k, k), proposer=proposer))
        tried.append(set(proposer.tolist()))
    assert tried == [{1}] * 8 + [{2}] + [{1}] * 3


def test_best_expected_drafts_nothing_for_who_proposes_nothing() -> None:
    """A prompt that is not whole yet: no proposer has a draft for it."""
    _, k = BestExpected().choose_k(two(np.array([0, 0]), np.array([0, 7])))
    assert k[0] == 0
    assert k[1] > 0


def test_best_expected_drafts_nothing_where_drafts_cost_more_than_they_give() -> None:
    cost = PricedByK(tuple(0.010 + 0.010 * k for k in range(8)), token_s=0.01)
    policy = BestExpected(start_acceptance=0.2)
    _, k = policy.choose_k(two(np.full(16, 7), np.full(16, 7), cost=cost))
    assert not np.any(k)


def test_the_combined_oracle_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"needs step\.future_by_proposer"):
        CombinedOracle().choose_k(two(np.array([1]), np.array([2])))
