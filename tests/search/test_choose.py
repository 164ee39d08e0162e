"""The choice among policies that serve the load: fastest, and on a tie the simplest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kplan.registry import parse_policy
from kplan.search.choose import choose, simplicity


def stand_in(text: str, tpots: list[float], saturated: bool = False) -> Any:
    runs = [SimpleNamespace(mean_tpot_s=tpot) for tpot in tpots]
    mean = float("nan") if saturated else sum(tpots) / len(tpots)
    return SimpleNamespace(spec=parse_policy(text), runs=runs, saturated=saturated, tpot_s=mean)


def chosen(*candidates: Any) -> str | None:
    best = choose(candidates)
    return best.spec.text if best else None


def test_the_fastest_wins_when_it_is_clear() -> None:
    assert (
        chosen(
            stand_in("off", [10.0, 10.1, 9.9]),
            stand_in("fixed:3", [6.0, 6.1, 5.9]),
            stand_in("fixed:5", [7.0, 7.1, 6.9]),
        )
        == "fixed:3"
    )


def test_within_one_percent_the_smaller_k_wins() -> None:
    slow, fast = [6.05, 6.15, 5.95], [6.0, 6.1, 5.9]
    assert chosen(stand_in("fixed:2", slow), stand_in("fixed:3", fast)) == "fixed:2"
    assert chosen(stand_in("fixed:3", slow), stand_in("table:1-8=3,9-=1", fast)) == "fixed:3"
    assert chosen(stand_in("off", slow), stand_in("fixed:1", fast)) == "off"


def test_inside_the_paired_noise_the_simpler_policy_wins() -> None:
    """3% apart on average, but the pairs disagree about which is faster."""
    noisy = stand_in("fixed:1", [5.0, 7.0, 6.5])
    assert chosen(noisy, stand_in("fixed:4", [5.6, 6.2, 6.1])) == "fixed:1"


def test_a_small_difference_that_every_pair_shows_is_a_difference() -> None:
    """3% apart in every pair while the pairs themselves spread by 40%: common random numbers at work."""
    base = [5.0, 6.0, 7.0]
    assert chosen(stand_in("fixed:1", [1.03 * x for x in base]), stand_in("fixed:4", base)) == "fixed:4"


def test_no_candidate_is_no_choice() -> None:
    assert chosen() is None
    assert chosen(stand_in("fixed:1", [float("nan")])) is None


def test_simplicity_orders_off_fixed_tables_adaptive() -> None:
    texts = ["goodput", "table:1-8=3,9-=1", "fixed:10", "off", "fixed:2", "table:1-8=3,9-16=2,17-=1"]
    ordered = sorted(texts, key=lambda text: simplicity(parse_policy(text)))
    assert ordered == [
        "off",
        "fixed:2",
        "fixed:10",
        "table:1-8=3,9-=1",
        "table:1-8=3,9-16=2,17-=1",
        "goodput",
    ]
