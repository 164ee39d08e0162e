"""The expectation step against every path of hidden states, written out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kplan.acceptance.hidden import expect

BOUNDS = np.array([0, 2, 2, 3, 5, 6])
CELL = np.array([0, 1, 2, 1, 1, 0], np.int16)
YES = np.array([1, 0, 1, 1, 0, 0], np.uint8)
STARTS = np.array([0, 3, 3, 5])  # three requests, of 3, 0 and 2 positions


def test_counts_are_those_of_all_paths_weighed_by_their_chance() -> None:
    """Two classes of two regimes: at most 2 x 2^3 paths a request."""
    draw = np.random.default_rng(3)
    hazard = draw.uniform(0.1, 0.9, (4, 3))
    start = np.array([[0.3, 0.7], [0.6, 0.4]])
    switch = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.35, 0.65]]])
    prior = np.array([[0.25, 0.75], [0.1, 0.9], [0.5, 0.5]])
    accepted, seen = np.zeros((4, 3)), np.zeros((4, 3))
    belongs, begins, moves, total = np.zeros((3, 2)), np.zeros((2, 2)), np.zeros((2, 2, 2)), 0.0
    for r in range(3):
        positions = range(STARTS[r], STARTS[r + 1])
        chances = {}
        for c in range(2):
            for path in product(range(2), repeat=len(positions)):
                chance = prior[r, c]
                for at, regime in enumerate(path):
                    chance *= start[c, regime] if at == 0 else switch[c, path[at - 1], regime]
                    for e in range(BOUNDS[positions[at]], BOUNDS[positions[at] + 1]):
                        right = hazard[2 * c + regime, CELL[e]]
                        chance *= right if YES[e] else 1 - right
                chances[c, path] = chance
        whole = sum(chances.values())
        total += np.log(whole)
        for (c, path), chance in chances.items():
            share = chance / whole
            belongs[r, c] += share
            for at, regime in enumerate(path):
                if at == 0:
                    begins[c, regime] += share
                else:
                    moves[c, path[at - 1], regime] += share
                for e in range(BOUNDS[positions[at]], BOUNDS[positions[at] + 1]):
                    seen[2 * c + regime, CELL[e]] += share
                    accepted[2 * c + regime, CELL[e]] += share * YES[e]
    found = expect(BOUNDS, CELL, YES, STARTS, hazard, start, switch, np.log(prior))
    for value, wanted in zip(found[:5], (accepted, seen, belongs, begins, moves), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-14)
    assert found[5] == pytest.approx(total)


def test_a_long_request_does_not_vanish() -> None:
    """2,000 events of chance 1/2: a likelihood of 2^-2000, which no float holds."""
    n = 2000
    ones = np.ones((1, 1))
    found = expect(
        np.arange(n + 1), np.zeros(n, np.int16), np.ones(n, np.uint8), np.array([0, n]),
        np.full((1, 1), 0.5), ones, ones[None], np.zeros((1, 1)),
    )  # fmt: skip
    assert found[5] == pytest.approx(-n * np.log(2))
    assert (found[0].item(), found[4].item()) == (pytest.approx(n), pytest.approx(n - 1))
