"""Chances of a draft, and traces moved to others."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.acceptance.columns import pack
from kplan.acceptance.trace import ProposerTrace
from kplan.live.judge_accept import Chances, chances_of, reshaped

K = 4


def _independent(alpha: float, requests: int = 300, tokens: int = 200, offered: float = 1.0) -> ProposerTrace:
    rng = np.random.default_rng(7)
    rows, drafted = [], []
    for _ in range(requests):
        right = np.minimum(rng.geometric(1 - alpha, tokens) - 1, K)
        has = rng.random(tokens) < offered
        acc = 1 + np.where(has, right, 0)
        acc[0] = 1
        rows.append(np.minimum(acc, np.arange(tokens, 0, -1)).astype(np.uint8))
        drafted.append(np.where(has, K, 0).astype(np.uint8))
    return pack(rows, drafted if offered < 1 else None, np.ones(requests, np.bool_), K)


def test_chances_of_independent_drafts_are_those_they_were_drawn_with() -> None:
    found = chances_of(_independent(0.7), K)
    assert found.hazard == pytest.approx(np.full(K, 0.7), abs=0.01)
    assert found.accepted_at == pytest.approx(0.7 ** np.arange(1, K + 1), abs=0.015)
    assert found.offered == 1.0


def test_a_lookup_is_known_by_how_often_it_drafts() -> None:
    assert chances_of(_independent(0.7, offered=0.3), K).offered == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("alpha", [0.2, 0.55, 0.85])
def test_a_trace_moved_accepts_what_is_wanted(alpha: float) -> None:
    wanted = Chances(np.full(K, alpha), 1.0)
    reached = chances_of(reshaped(_independent(0.7), wanted, 0), K)
    assert reached.accepted_at == pytest.approx(wanted.accepted_at, abs=0.01)


def test_a_lookup_moved_drafts_as_often_as_is_wanted() -> None:
    wanted = Chances(np.full(K, 0.5), 0.6)
    reached = chances_of(reshaped(_independent(0.7, offered=0.3), wanted, 0), K)
    assert reached.offered == pytest.approx(0.6, abs=0.01)
    assert reached.accepted_at == pytest.approx(wanted.accepted_at, abs=0.015)


def test_requests_that_accept_more_than_others_still_do() -> None:
    good, bad = _independent(0.9, requests=100), _independent(0.4, requests=100)
    both = pack(
        [*np.split(good.acc, good.offsets[1:-1]), *np.split(bad.acc, bad.offsets[1:-1])],
        None,
        np.ones(200, np.bool_),
        K,
    )
    moved = reshaped(both, chances_of(both, K).shifted(-0.5), 0)
    half = moved.offsets[100]
    assert moved.acc[:half].mean() > 1.3 * moved.acc[half:].mean()


def test_moved_by_the_first_position_or_by_the_length() -> None:
    own = Chances(np.array([0.7, 0.6, 0.5]), 1.0)
    assert own.with_first(0.4).hazard[0] == pytest.approx(0.4)
    moved = own.with_length(2.0)
    assert 1.0 + moved.accepted_at.sum() == pytest.approx(2.0)
    odds = moved.hazard / (1 - moved.hazard) / (own.hazard / (1 - own.hazard))
    assert odds == pytest.approx(np.full(3, odds[0]))


def test_counts_by_position_give_the_chances() -> None:
    found = Chances.from_counts((0.8, 0.4, 0.0, 0.0), 0.5)
    assert found.hazard == pytest.approx([0.8, 0.5, 0.0, 0.0])
