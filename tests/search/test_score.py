"""Scores: paired ratios, constraints, the careful choice and the front, on figures made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kplan.search.cases import Point
from kplan.search.score import Ratio, Tried, careful, front, log_ratios, lowest, ratio, worse

POINT = Point(0.01, 0.1, 1000.0, -0.5, 1.0, 100, 8.0, 2.0)


def tried(policy: str, *tpot_s: float, k: float = 2.0, **changes: float) -> Tried:
    """A policy of one case with these TPOTs by replication."""
    one = replace(POINT, mean_k=k, **changes)
    return Tried(policy, tuple((replace(one, tpot_s=each),) for each in tpot_s))


def test_ratios_are_paired_by_replication_and_every_case_weighs_alike() -> None:
    base = Tried("off", ((POINT, replace(POINT, tpot_s=0.04)), (POINT, replace(POINT, tpot_s=0.08))))
    mine = Tried(
        "fixed:1",
        (
            (replace(POINT, tpot_s=0.02), replace(POINT, tpot_s=0.02)),  # twice, and half: level
            (replace(POINT, tpot_s=0.02), replace(POINT, tpot_s=0.16)),  # twice and twice
        ),
    )
    assert log_ratios(mine, base, "tpot") == pytest.approx([0.0, math.log(2)])
    found = ratio(mine, base, "tpot")
    assert found.mean == pytest.approx(math.sqrt(2))
    # ratios 1 and 2: deviation 1/sqrt(2), half width t(0.975, 1) * 0.5 = 12.706 * 0.5
    assert found.ci95 == pytest.approx((0.0, math.sqrt(2) + 6.3531), rel=1e-4)


def test_seeds_that_only_one_of_them_has_are_left_out() -> None:
    assert len(log_ratios(tried("off", 1.0, 1.0), tried("off", 1.0, 1.0, 1.0), "tpot")) == 2
    assert ratio(tried("off", 3.0), tried("off", 2.0), "tpot").ci95 is None
    assert ratio(tried("off", 3.0), tried("off", 2.0), "tpot").width == math.inf


def test_the_interval_of_the_best_of_many_holds_on_replications_it_was_not_picked_on() -> None:
    """Fifty policies that differ by chance alone, five seeds: 95% of the intervals hold 1 on fresh seeds."""
    chance = np.random.default_rng(7)
    own = fresh = 0
    for _ in range(400):
        tpots = np.exp(0.02 * chance.standard_normal((51, 10)))
        seen = [tried(f"fixed:{i}", *row) for i, row in enumerate(tpots[:, :5])]
        best = lowest(seen[1:], seen[0], "tpot")
        assert best is not None
        i = seen.index(best)
        unseen = [tried("off", *tpots[j, 5:]) for j in (i, 0)]
        own += _holds_1(ratio(best, seen[0], "tpot"))
        fresh += _holds_1(ratio(*unseen, "tpot"))
    assert 0.92 < fresh / 400 < 0.98
    assert own / 400 < 0.85


def _holds_1(found: Ratio) -> bool:
    assert found.ci95 is not None
    return found.ci95[0] <= 1 <= found.ci95[1]


def test_throughput_and_cost_are_better_when_more_is_sustained() -> None:
    slow, fast = tried("off", 1.0), tried("off", 1.0, tok_s=2000.0)
    assert ratio(fast, slow, "throughput").mean == pytest.approx(0.5)
    assert ratio(fast, slow, "cost").mean == pytest.approx(0.5)
    assert ratio(tried("off", 1.0, ttft_s=0.3), slow, "ttft").mean == pytest.approx(3.0)


def test_the_worst_case_decides_whether_a_policy_serves() -> None:
    good, late = POINT, replace(POINT, met=0.85)
    assert Tried("off", ((good, good),)).feasible
    assert Tried("off", ((good, late),)).missed == pytest.approx(0.05)
    assert not Tried("off", ((good, late),)).feasible
    assert Tried("off", ((late, good), (replace(POINT, met=0.97), good))).feasible  # 0.91 over both seeds
    assert not Tried("off", ((good, replace(POINT, overload=0.01)),)).feasible


def test_a_saturated_policy_is_never_the_best_however_fast() -> None:
    base = tried("off", 1.0, 1.0)
    fast = tried("fixed:7", 0.1, 0.1, overload=0.1)
    assert lowest([fast, base], base, "tpot") is base
    assert lowest([fast], base, "tpot") is None
    assert careful([fast], base, "tpot") is None
    assert worse(fast, base, "tpot")
    assert not worse(base, fast, "tpot")


def test_stopping_needs_an_interval_that_is_clear_of_one() -> None:
    best = tried("fixed:1", 1.0, 2.0)
    assert worse(tried("fixed:2", 1.02, 2.04), best, "tpot")  # 2% in both seeds, whatever the seeds' spread
    assert not worse(tried("fixed:2", 0.98, 1.96), best, "tpot")
    assert not worse(tried("fixed:2", 1.5, 2.0), best, "tpot")  # 50% in one, nothing in the other
    assert not worse(tried("fixed:2", 5.0), best, "tpot")


def test_within_a_percent_or_the_noise_the_simpler_policy_wins_then_the_smaller_k() -> None:
    base = tried("off", 2.0, 2.0)
    table = tried("table:1-8=3,9-=1", 1.0, 1.0, k=2.5)
    other = tried("table:1-16=2,17-=1", 1.005, 1.005, k=1.5)
    near, far = tried("fixed:3", 1.0099, 1.0099), tried("fixed:2", 1.02, 1.02)
    assert careful([base, table, near, far], base, "tpot") is near
    assert careful([base, table, far], base, "tpot") is table
    assert careful([base, table, other, far], base, "tpot") is other
    noisy = tried("fixed:1", 0.9, 1.3)
    assert careful([base, table, near, noisy], base, "tpot") is noisy
    assert careful([base, far], base, "tpot") is far


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    base = tried("off", 1.0)
    a, b = tried("fixed:1", 1.0, tok_s=3000.0), tried("fixed:2", 0.5, tok_s=2000.0)
    beaten, twin = tried("fixed:3", 1.1, tok_s=2900.0), tried("fixed:4", 0.5, tok_s=2000.0)
    saturated = tried("fixed:5", 0.1, tok_s=9000.0, overload=0.2)
    assert front([base, a, beaten, b, twin, saturated], base, ("tpot", "throughput")) == [b, a]
    assert front([saturated], base, ("tpot", "throughput")) == []


def test_a_policy_against_itself_is_level_exactly() -> None:
    one = tried("off", 0.3, 0.7, 0.2)
    assert np.array_equal(log_ratios(one, one, "tpot"), np.zeros(3))
