"""The rules with one K for the batch that weigh acceptance against cost, in cases worked out by hand."""

from __future__ import annotations

import pytest

from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan_policies.hazard_cost import HazardCost
from kplan_policies.position_ema import PositionEma
from kplan_policies.throughput_aware import ThroughputAware

from .helpers import PricedByK, outcome, view

TEN = ([3] * 10, [0] * 2 + [1] * 4 + [2] * 4)
"""Proposed and accepted of ten requests: 8 of 10 pass position 1, 4 of 8 pass 2, 0 of 4 pass 3."""


def test_hazard_cost_drafts_on_while_the_next_draft_is_worth_it() -> None:
    cost = PricedByK((1.0, 1.2, 1.4, 1.6, 1.8, 2.0))
    step = view([0], max_k=5, cost=cost)
    policy = HazardCost(start_acceptance=0.5, strength=1.0, weight=0.5)
    assert policy.choose_k(step) == 2  # 0.5 and 0.25 of a second beat 0.2, 0.125 does not
    policy.observe(outcome([0], [2], [0]))
    assert policy.choose_k(step) == 1  # 0.5 / 2 = 0.25, then x 0.5
    policy.observe(outcome([0], [2], [2]))
    # halved, then counted: (1 + 0.5) / (1.5 + 1) = 0.6; x (1 + 0.5) / 2 = 0.45; x 0.5 = 0.225; 0.1125
    assert policy.choose_k(step) == 3
    policy.observe(outcome([0], [0], [0]))  # nothing examined: nothing fades
    assert policy.choose_k(step) == 3


def test_hazard_cost_looks_again_once_in_probe_every_steps() -> None:
    policy = HazardCost(probe_every=3)
    dear = view([0], max_k=2, cost=PricedByK((1.0, 3.0, 5.0)))
    assert [policy.choose_k(dear) for _ in range(6)] == [0, 0, 1, 0, 0, 1]


def keen(**changes: object) -> PositionEma:
    """One window a step and no memory, drafts at a tenth of a target step."""
    values = {
        "window": 1, "weight": 1.0, "cooldown": 0, "hysteresis": 0, "draft_cost": 0.1, "verify_overhead": 0.0,
    }  # fmt: skip
    return PositionEma(**(values | changes))  # type: ignore[arg-type]


def test_position_ema_starts_at_max_k_and_takes_the_best_ratio() -> None:
    policy = keen()
    assert policy.choose_k(view([0])) == 7
    policy.observe(outcome(range(10), *TEN))
    # 1.8 / 1.1 = 1.64, 2.2 / 1.2 = 1.83, 2.2 / 1.3 = 1.69
    assert policy.choose_k(view([0])) == 2


def test_position_ema_stays_for_a_small_move_and_rests_after_a_large_one() -> None:
    near = keen(hysteresis=1)
    near.choose_k(view([0], max_k=3))
    near.observe(outcome(range(10), *TEN))
    assert near.choose_k(view([0], max_k=3)) == 3  # 2 is but one away
    resting = keen(cooldown=2)
    resting.choose_k(view([0]))
    resting.observe(outcome(range(10), *TEN))
    seen = []
    for _ in range(3):
        resting.observe(outcome([0], [2], [0]))  # nothing is accepted any more
        seen.append(resting.choose_k(view([0])))
    assert seen == [2, 2, 1]


def test_position_ema_looks_once_a_window() -> None:
    policy = keen(window=3)
    policy.choose_k(view([0]))
    seen = []
    for _ in range(3):
        policy.observe(outcome(range(10), *TEN))
        policy.observe(outcome(range(10), [0] * 10, [0] * 10))  # no draft, no step of the window
        seen.append(policy.choose_k(view([0])))
    assert seen == [7, 7, 2]


def test_position_ema_is_capped_by_the_batch_table() -> None:
    policy = parse_policy("position-ema:cap=[[1,2,5],[3,4,1],[5,null,0]]").build()
    assert [policy.choose_k(view(range(batch))) for batch in (1, 2, 3, 4, 5, 90)] == [5, 5, 1, 1, 0, 0]
    with pytest.raises(InputError, match="cap must be ranges"):
        parse_policy("position-ema:cap=[[1,2]]")
    with pytest.raises(InputError, match="must start at batch size 1"):
        parse_policy("position-ema:cap=[[2,4,1]]")


def test_throughput_aware_weighs_expected_tokens_by_the_profiled_cost() -> None:
    policy = ThroughputAware(candidates=(1, 3), start_acceptance=0.5, weight=0.5, interval=1)
    step = view([0, 1], max_k=3, cost=PricedByK((1.0, 1.1, 1.2, 1.3)))
    assert policy.choose_k(step) == 3  # 1.5 / 1.1 = 1.36, 1.875 / 1.3 = 1.44
    policy.observe(outcome([0, 1], [3, 3], [0, 1]))
    # a_1 stays 0.5, a_2 falls to 0.25, a_3 was not examined: 1.6875 / 1.3 = 1.298
    assert policy.choose_k(step) == 1


def test_throughput_aware_keeps_its_profile_of_a_slot_and_makes_one_for_another() -> None:
    policy = ThroughputAware(candidates=(1, 3), start_acceptance=0.5, interval=1)
    cheap, dear = PricedByK((1.0, 1.1, 1.2, 1.3)), PricedByK((1.0, 1.1, 4.0, 5.0))
    assert policy.choose_k(view(range(4), max_k=3, cost=cheap)) == 3
    policy.observe(outcome([9], [1], [1]))
    assert policy.choose_k(view(range(7), max_k=3, cost=dear)) == 3  # 4-7 is one slot
    assert policy.choose_k(view(range(8), max_k=3, cost=dear)) == 1


@pytest.mark.parametrize("candidates", ["[]", "[0,1]", "3", "[255]"])
def test_throughput_aware_refuses_bad_candidates_in_one_line(candidates: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(f"throughput-aware:candidates={candidates}")
    assert "\n" not in str(caught.value)
