"""Goodput-greedy against a brute-force argmax, its estimate against the truth, its way back from K = 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.policy import StepView
from kplan_policies.goodput import Goodput

from .helpers import PricedByK, iid_depths, outcome, untimed, view

MAX_K = 7
Steps = list[list[tuple[int, int]]]

verified = st.integers(1, MAX_K).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


def brute_force(history: Steps, step_s: tuple[float, ...], weight: float, prior: float) -> list[float]:
    """Tokens per second by K, from the definition: a weighted mean over the steps, then a sum over depths."""
    n = len(history)
    share = [(1 - weight) ** n, *((1 - weight) ** (n - 1 - i) * weight for i in range(n))]
    accepted = [prior, *(sum(a for _, a in step) for step in history)]
    judged = [1.0, *(sum(min(a + 1, k) for k, a in step) for step in history)]
    chance = np.dot(share, accepted) / np.dot(share, judged)
    return [sum(chance**depth for depth in range(k + 1)) / step_s[k] for k in range(MAX_K + 1)]


@untimed
@given(
    history=st.lists(st.lists(verified, min_size=1, max_size=6), max_size=12),
    step_s=st.lists(st.floats(0.001, 0.1), min_size=MAX_K + 1, max_size=MAX_K + 1).map(tuple),
    weight=st.floats(0.01, 1.0),
    prior=st.floats(0.0, 1.0),
)
def test_k_is_the_brute_force_argmax(
    history: Steps, step_s: tuple[float, ...], weight: float, prior: float
) -> None:
    policy = Goodput(weight=weight, start_acceptance=prior)
    for step in history:
        policy.observe(outcome(range(len(step)), [k for k, _ in step], [a for _, a in step]))
    rate = brute_force(history, step_s, weight, prior)
    k = policy.choose_k(view([0, 1, 2], max_k=MAX_K, cost=PricedByK(step_s)))
    assert rate[k] >= max(rate) * (1 - 1e-9)
    assert all(rate[smaller] < rate[k] * (1 + 1e-9) for smaller in range(k))


@pytest.mark.parametrize("p", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_estimate_is_not_biased_by_the_k_it_is_seen_through(p: float, k: int) -> None:
    policy, rng = Goodput(weight=0.01), np.random.default_rng(1)
    for _ in range(2_000):
        policy.observe(outcome(range(64), np.full(64, k), np.minimum(iid_depths(rng, p, 64), k)))
    # 64 requests x some 200 effective steps: a standard error of 0.005 at most
    assert policy.acceptance == pytest.approx(p, abs=0.02)


def test_the_closed_form_optimum_is_found() -> None:
    """Leviathan et al. (arXiv:2211.17192): K maximises (1 - a^(K+1)) / ((1 - a) (K c + 1))."""
    a, c = 0.8, 0.1
    best = max(range(20), key=lambda k: (1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)))
    cost = PricedByK(tuple(k * c + 1 for k in range(20)))
    assert Goodput(start_acceptance=a).choose_k(view([0], max_k=19, cost=cost)) == best


def run(policy: Goodput, accepts: float, steps: int, step: StepView, rng: np.random.Generator) -> list[int]:
    """The Ks chosen over ``steps`` steps in which each draft is accepted with chance ``accepts``."""
    ks = []
    for _ in range(steps):
        k = policy.choose_k(step)
        ks.append(k)
        depths = np.minimum(iid_depths(rng, accepts, step.batch), k)
        policy.observe(outcome(step.request, np.full(step.batch, k), depths))
    return ks


def test_it_comes_back_from_zero_and_pays_one_step_in_probe_every_for_it() -> None:
    dear = PricedByK(tuple(0.010 + 0.004 * k for k in range(8)))  # worth it above an acceptance of 0.4
    policy, rng, step = Goodput(probe_every=16), np.random.default_rng(0), view(range(8), cost=dear)
    settled = run(policy, 0.05, 800, step, rng)[400:]
    assert settled.count(0) == pytest.approx(400 * 15 / 16, abs=1)
    assert settled.count(1) == 400 - settled.count(0)
    after = run(policy, 0.9, 800, step, rng)
    assert min(after[-200:]) > 1


def test_another_batch_or_context_is_priced_anew() -> None:
    cheap, dear = PricedByK((1.0, 1.0, 1.0)), PricedByK((1.0, 9.0, 9.0))
    policy = Goodput()
    assert policy.choose_k(view([0], max_k=2, cost=cheap)) == 2
    assert policy.choose_k(view([0, 1], max_k=2, context=250, cost=dear)) == 0
    assert policy.choose_k(view([0], max_k=2, context=5_000, cost=dear)) == 0
    assert policy.choose_k(view([0], max_k=2, cost=cheap)) == 2
