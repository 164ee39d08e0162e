"""The rules with one K per request, in cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.policy import Policy
from kplan_policies.band import Band
from kplan_policies.budget import Budget
from kplan_policies.confidence import Confidence
from kplan_policies.request_ema import RequestEma

from .helpers import PricedByK, outcome, view


def ks(policy: Policy, *requests: int, max_k: int = 7) -> list[int]:
    return np.asarray(policy.choose_k(view(requests, max_k=max_k))).tolist()


def test_request_ema_follows_what_was_accepted_of_each() -> None:
    policy = RequestEma(weight=0.5, margin=1.0, start=2.0)
    assert ks(policy, 0, 1) == [3, 3]  # 2 + 1
    policy.observe(outcome([0, 1], [3, 3], [3, 0]))
    assert ks(policy, 0, 1) == [4, 2]  # 2.5 + 1 rounds up to 4, 1 + 1
    policy.observe(outcome([0, 1], [4, 0], [0, 0]))  # nothing was drafted for 1
    assert ks(policy, 1, 0, 9) == [2, 2, 3]  # 1.25 + 1; 9 is new
    policy.observe(outcome([9], [3], [200]))
    assert ks(policy, 9) == [7]
    assert ks(policy, 9, max_k=0) == [0]


def test_request_ema_drafts_at_least_one() -> None:
    policy = RequestEma(weight=1.0, margin=0.0)
    policy.observe(outcome([0], [3], [0]))
    assert ks(policy, 0) == [1]


def test_band_moves_k_outside_it_and_holds_k_inside() -> None:
    policy = Band(target=0.8, half_width=0.05, weight=0.5, start=3)
    assert ks(policy, 0) == [3]
    policy.observe(outcome([0], [3], [3]))  # 0.9 of the drafts
    assert ks(policy, 0) == [4]
    policy.observe(outcome([0], [4], [2]))  # 0.7
    assert ks(policy, 0) == [3]
    policy.observe(outcome([0], [10], [9]))  # 0.8
    assert ks(policy, 0, 1) == [3, 3]
    for _ in range(9):
        policy.observe(outcome([0], [3], [0]))
    assert ks(policy, 0) == [1]


def test_confidence_stops_at_the_first_position_below_the_threshold() -> None:
    assert ks(Confidence(threshold=0.69, start_acceptance=0.7), 0) == [7]
    assert ks(Confidence(threshold=0.71, start_acceptance=0.7), 0) == [1]
    # 0.7 and 0.49 reach 0.4, 0.343 does not
    assert ks(Confidence(threshold=0.4, start_acceptance=0.7, product=True), 0) == [2]


def test_confidence_is_the_requests_own_share_drawn_to_that_of_all() -> None:
    policy = Confidence(threshold=0.3, strength=1.0, start_acceptance=0.7)
    policy.observe(outcome([0], [3], [1]))
    # all: (1 + 0.7) / 2 = 0.85, (0 + 0.7) / 2 = 0.35, then 0.7; request 0: (1 + 0.85) / 2, (0 + 0.35) / 2
    assert ks(policy, 0, 1) == [1, 7]
    strict = Confidence(threshold=0.36, strength=1.0, start_acceptance=0.7)
    strict.observe(outcome([0], [3], [1]))
    assert ks(strict, 0, 1) == [1, 1]


def test_confidence_never_drafts_deeper_than_it_counts() -> None:
    assert ks(Confidence(), 0, max_k=31) == [16]


@pytest.mark.parametrize(
    ("token_s", "expected"),
    # (2 + sum of S) / (1 + token_s x (2 + B)) at B = 0..4, S = .5, .5, .25, .25
    [(0.1, [2, 2]), (0.3, [1, 1])],  # 1.67 1.92 2.14 2.17 2.19; 1.25 1.32 1.36 1.30 1.25
)
def test_budget_takes_the_size_that_pays_most(token_s: float, expected: list[int]) -> None:
    cost = PricedByK((1.0, 1.0, 1.0), token_s)
    policy = Budget(start_acceptance=0.5, sizes=4)
    assert policy.choose_k(view([0, 1], max_k=2, cost=cost)).tolist() == expected


def test_budget_goes_to_the_request_whose_drafts_survive() -> None:
    policy = Budget(start_acceptance=0.5, sizes=4, strength=1.0, weight=0.1)
    policy.observe(outcome([0, 1], [2, 2], [2, 0]))
    # all: (.45 + .1) / (.9 + .15) = .524; request 0: 2.524 / 3 = .841, request 1: .524 / 2 = .262
    # S = .841, .708, .262, .069: rates 1.25, 1.50, 1.61, 1.52, ... at 0.3 s a token
    cost = PricedByK((1.0, 1.0, 1.0), 0.3)
    assert policy.choose_k(view([0, 1], max_k=2, cost=cost)).tolist() == [2, 0]
    assert policy.choose_k(view([5, 0], max_k=2, cost=cost)).tolist() == [1, 2]


def test_budget_pays_for_the_depth_of_the_deepest_request() -> None:
    policy = Budget(start_acceptance=0.9, sizes=4)
    cheap, dear = PricedByK((1.0, 1.0, 1.0), 0.01), PricedByK((1.0, 1.0, 3.0), 0.01)
    assert policy.choose_k(view([0, 1], max_k=2, cost=cheap)).tolist() == [2, 2]
    assert policy.choose_k(view([0, 1], max_k=2, cost=dear)).tolist() == [1, 1]


def test_budget_tries_again_after_it_had_none() -> None:
    policy = Budget(start_acceptance=0.1, probe_every=3)
    dear = view([0, 1], max_k=2, cost=PricedByK((1.0, 3.0, 5.0)))
    assert [policy.choose_k(dear).tolist() for _ in range(6)] == [[0, 0], [0, 0], [1, 1]] * 2
