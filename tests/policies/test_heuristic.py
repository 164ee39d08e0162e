"""The +2/-1 rule against a plain reference that keeps one K per request in a dictionary."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kplan_policies.heuristic import Heuristic

from .helpers import outcome, untimed, view


@untimed
@given(
    start=st.integers(1, 9),
    up=st.integers(1, 4),
    down=st.integers(1, 4),
    max_k=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_every_k_is_the_references(start: int, up: int, down: int, max_k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = Heuristic(start=start, up=up, down=down)
    reference: dict[int, int] = {}
    running = list(range(5))
    for _ in range(60):
        if rng.random() < 0.3:  # a request leaves for good, or for a while as a preempted one does
            running = sorted(rng.choice(12, rng.integers(1, 8), replace=False).tolist())
        ks = policy.choose_k(view(running, max_k=max_k))
        expected = [min(reference.get(r, start), max_k) for r in running]
        assert ks.tolist() == expected
        proposed = np.where(rng.random(len(running)) < 0.2, 0, ks)  # an n-gram drafter may find nothing
        accepted = np.array([rng.integers(0, n + 1) for n in proposed])
        policy.observe(outcome(running, proposed, accepted))
        for r, k, n, a in zip(running, expected, proposed, accepted, strict=True):
            if n > 0:
                reference[r] = min(k + up, max_k) if a == n else max(k - down, 1)


def test_a_request_of_long_ago_leaves_nothing_to_the_one_that_takes_its_row() -> None:
    policy, old = Heuristic(), 77
    policy.choose_k(view([old], max_k=20))
    policy.observe(outcome([old], [5], [5]))
    assert policy.choose_k(view([old], max_k=20)).tolist() == [7]
    for later in range(old + 1, old + 200_000, 997):
        assert policy.choose_k(view([later], max_k=20)).tolist() == [5]
        policy.observe(outcome([later], [5], [0]))


def test_memory_does_not_grow_with_the_requests_served() -> None:
    policy = Heuristic()
    before = len(pickle.dumps(policy))
    for first in range(0, 1_000_000, 50_000):
        batch = np.arange(first, first + 256)
        policy.choose_k(view(batch))
        policy.observe(outcome(batch, np.full(256, 5), np.full(256, 2)))
    assert len(pickle.dumps(policy)) == before
