"""The largest rate within the SLOs: on functions that are known, and on a queue with a formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from kplan.config.scenario import make_scenario
from kplan.latency import StepShape
from kplan.registry import parse_policy
from kplan.search.single import simulate_one
from kplan.search.within import largest, max_qps_within
from kplan.simulate import draw_requests, prepare, run_policy


@pytest.mark.parametrize("limit", [0.3, 7.0, 63.9, 98.0])
def test_a_sharp_limit_is_found_to_one_percent_from_below(limit: float) -> None:
    found = largest(lambda qps: qps <= limit, 0.0, 100.0, 0.1)
    assert 0.99 * limit - 0.01 <= found <= limit


def test_what_is_known_to_meet_is_never_given_up() -> None:
    assert largest(lambda _: False, 64.0, 80.0, 0.08) == 64.0


def test_nothing_meets() -> None:
    tried: list[float] = []
    assert largest(lambda qps: bool(tried.append(qps)), 0.0, 80.0, 0.08) == 0.0
    assert min(tried) < 0.08


def test_a_share_that_rises_again_is_answered_below_the_first_miss() -> None:
    """Met below 50 and, by chance, from 60 to 70: 50 is probed first and bounds all above it."""
    found = largest(lambda qps: qps < 50 or 60 < qps < 70, 0.0, 100.0, 0.1)
    assert 49 < found < 50


def wait_within(rho: float, services: float) -> float:
    """P(wait <= services x service) of M/D/1 (Erlang 1909)."""
    terms = [
        (rho * (j - services)) ** j / math.factorial(j) * math.exp(-rho * (j - services))
        for j in range(math.floor(services) + 1)
    ]
    return (1 - rho) * math.fsum(terms)


def test_the_verdict_at_the_load_s_own_rate_stands() -> None:
    """Met at 16 QPS: the answer is at least that. Missed there: it is below."""
    load = {"qps": 16.0, "replications": 2, "policy": "fixed:2"}
    loose = simulate_one(make_scenario({**load, "slo_tpot_ms": 16.0}))
    tight = simulate_one(make_scenario({**load, "slo_tpot_ms": 8.0}))
    assert loose.meets_slo
    assert not tight.meets_slo
    assert loose.result.max_qps_slo is not None
    assert tight.result.max_qps_slo is not None
    assert loose.result.max_qps is not None
    assert 0 < tight.result.max_qps_slo < 16.0 <= loose.result.max_qps_slo < loose.result.max_qps
    assert loose.off.max_qps_slo is None


def test_an_slo_below_one_request_alone_is_missed_at_any_rate() -> None:
    load = {"qps": 4.0, "replications": 1, "policy": "off", "slo_tpot_ms": 1.0}
    assert simulate_one(make_scenario(load)).result.max_qps_slo == 0.0


def test_without_an_slo_nothing_is_searched() -> None:
    load = {"qps": 4.0, "replications": 1, "policy": "off", "requests": 200}
    assert simulate_one(make_scenario(load)).result.max_qps_slo is None


@pytest.mark.parametrize("services", [1.5, 3.5])
def test_one_seat_and_one_token_is_an_m_d_1_queue_with_a_wait_that_is_known(services: float) -> None:
    """TTFT = wait + one service; the SLO allows a wait of ``services`` services, which 90% must not pass."""
    prompt = 1000
    load = {"qps": 1.0, "prompt_tokens": prompt, "output_tokens": 1, "max_num_seqs": 1, "requests": 40_000}
    setup = prepare(make_scenario(load))
    shape = StepShape(0, 0, 0, 0, 1, prompt, prompt, prompt**2 / 2, 1)
    service_s = float(setup.latency_off.step_seconds(shape).total_s)
    setup = prepare(make_scenario({**load, "slo_ttft_ms": (1 + services) * service_s * 1e3}))
    drawn = [draw_requests(setup, 40_000, seed) for seed in range(2)]
    off = parse_policy("off")
    found = max_qps_within(setup, off, drawn, 1, 0.0, 1 / service_s)
    rho = brentq(lambda rho: wait_within(rho, services) - 0.9, 0.01, 0.99)
    assert found * service_s == pytest.approx(rho, rel=0.02)
    runs = [run_policy(setup, off, one, qps=rho / service_s) for one in drawn]
    within = [np.mean(run.ttft_s <= (1 + services) * service_s) for run in runs]
    assert np.mean(within) == pytest.approx(0.9, abs=0.01)
