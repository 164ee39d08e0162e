"""The rules that learn from measured speed alone: the probe and the bandits."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.policy import Policy, StepOutcome
from kplan_policies.bandit import Thompson, Ucb
from kplan_policies.probe import Probe

from .helpers import view

SETTLE = 2


def play(policy: Policy, pays: dict[int, float], steps: int, batch: int = 1) -> list[int]:
    """K of each step, when a step at K takes so long that each request gets ``pays[K]`` tokens a second."""
    ks = []
    for _ in range(steps):
        k = int(policy.choose_k(view(range(batch))))
        ks.append(k)
        ids = np.arange(batch)
        done = StepOutcome(batch, (k + 1) / pays[k], ids, np.full(batch, k), np.full(batch, k))
        policy.observe(done)  # type: ignore[attr-defined]  # they all observe
    return ks


def test_probe_tries_each_k_holds_the_best_and_begins_anew() -> None:
    ks = play(Probe(largest=2, window=1, hold=4), {0: 1.0, 1: 3.0, 2: 2.0}, 16)
    assert ks == [0, 0, 0, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0]


def test_probe_finds_what_has_become_best() -> None:
    policy = Probe(largest=2, window=1, hold=4)
    play(policy, {0: 1.0, 1: 3.0, 2: 2.0}, 13)
    assert play(policy, {0: 3.0, 1: 1.0, 2: 2.0}, 13)[-4:] == [0] * 4


def pulls(ks: list[int], dwell: int = 1) -> list[int]:
    """The arm of each pull, which lasts ``dwell`` steps and those that settle."""
    each = SETTLE + dwell
    assert all(len(set(ks[at : at + each])) == 1 for at in range(0, len(ks), each))
    return ks[::each]


PAYS = {0: 1.0, 1: 2.0, 2: 1.0}


def test_ucb_pulls_the_arm_with_the_highest_bound() -> None:
    policy = Ucb(largest=2, dwell=1, explore=1.0, memory=1.0, switch_cost=0.0)
    # after one pull of each: 1 + sqrt(ln 4) beats 0.5 + sqrt(ln 4); after two of arm 1: 1 + sqrt(ln 5 / 2)
    # = 1.90 beats 0.5 + sqrt(ln 5) = 1.77; after three: 1 + sqrt(ln 6 / 3) = 1.77 loses to 1.84
    assert pulls(play(policy, PAYS, 18)) == [0, 1, 2, 1, 1, 0]


def test_ucb_without_exploring_stays_with_the_best_mean() -> None:
    policy = Ucb(largest=2, dwell=1, explore=0.0)
    assert pulls(play(policy, PAYS, 60))[3:] == [1] * 17


@pytest.mark.parametrize("cls", [Ucb, Thompson])
def test_a_switch_that_gains_less_than_it_costs_is_not_made(cls: type[Ucb | Thompson]) -> None:
    still = {"explore": 0.0} if cls is Ucb else {"spread": 0.0}
    for switch_cost, stays in ((0.4, 1), (0.6, 2)):  # arm 2 pays half of what arm 1 pays
        policy = cls(largest=2, dwell=1, switch_cost=switch_cost, **still)  # type: ignore[arg-type]
        assert pulls(play(policy, PAYS, 30))[3:] == [stays] * 7


@pytest.mark.parametrize("cls", [Ucb, Thompson])
def test_bins_of_batch_sizes_learn_apart(cls: type[Ucb | Thompson]) -> None:
    still = {"explore": 0.0} if cls is Ucb else {"spread": 0.0}
    policy = cls(largest=1, dwell=1, **still)  # type: ignore[arg-type]
    assert pulls(play(policy, {0: 1.0, 1: 2.0}, 12, batch=4)) == [0, 1, 1, 1]
    assert pulls(play(policy, {0: 2.0, 1: 1.0}, 12, batch=8)) == [0, 1, 0, 0]
    assert pulls(play(policy, {0: 1.0, 1: 2.0}, 9, batch=7)) == [1, 1, 1]  # 4-7 is one bin


@pytest.mark.parametrize("cls", [Ucb, Thompson])
def test_what_has_become_best_is_found_again(cls: type[Ucb | Thompson]) -> None:
    policy = cls(largest=2, dwell=1, memory=0.95)
    play(policy, {0: 1.0, 1: 2.0, 2: 1.0}, 600)
    assert play(policy, {0: 2.0, 1: 1.0, 2: 1.0}, 3000)[-600:].count(0) > 400


def test_thompson_draws_the_worse_arm_as_often_as_the_normal_says() -> None:
    # After one pull each the means are 0.5 and 1 of the best and both deviations 1, so the worse arm is drawn
    # with chance Phi(-0.5 / sqrt(2)) = 0.362; over 1,000 seeds that is known to 0.015.
    third = []
    for seed in range(1000):
        policy = Thompson(largest=1, dwell=1, spread=1.0, switch_cost=0.0, memory=1.0, seed=seed)
        third.append(pulls(play(policy, {0: 1.0, 1: 2.0}, 9))[2])
    assert third.count(0) / 1000 == pytest.approx(0.362, abs=0.05)


def test_thompson_repeats_by_its_seed() -> None:
    runs = [
        play(Thompson(dwell=1, spread=0.5, seed=seed), dict.fromkeys(range(6), 1.0), 300)
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]
