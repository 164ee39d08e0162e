"""What is measured of a run, and the rate that a policy sustains."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kplan.config.scenario import make_scenario
from kplan.engine import Load
from kplan.engine.state import BIN_BATCH_S, BIN_EMITTED, BIN_S, W_EMITTED
from kplan.metrics import Measured
from kplan.registry import parse_policy
from kplan.simulate import (
    Setup,
    Sustained,
    draw_requests,
    prepare,
    run_fleet,
    run_policy,
    settling,
    sustained,
    sustained_qps,
)
from kplan.simulate.parallel import cores
from kplan.simulate.settle import window_of

FIXED = parse_policy("fixed:2")


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(make_scenario({"qps": 40.0, "workload": "gsm8k", "replicas": 2, "requests": 3000}))


@pytest.fixture(scope="module")
def run(setup: Setup) -> Measured:
    return run_policy(setup, FIXED, draw_requests(setup, 3000, 0), replicas=2)


def test_requests_counted_over_steps_and_over_records_are_the_same(run: Measured) -> None:
    """Little's law over the window: batch x seconds of the steps, and residence of the requests."""
    assert run.in_steps > 5
    assert run.little_gap == pytest.approx(0.0, abs=1e-9)


def test_little_s_law_with_the_arrival_rate() -> None:
    """Running requests = arrival rate x mean residence, which is TTFT + 199 TPOT at 200 tokens each."""
    setup = prepare(
        make_scenario({"qps": 20.0, "output_tokens": 200, "requests": 6000, "async_scheduling": False})
    )
    run = run_policy(setup, FIXED, draw_requests(setup, 6000, 0))
    residence_s = run.ttft_s.mean() + 199 * run.mean_tpot_s
    arrived_qps = len(run.ttft_s) / run.window_s[0]
    assert run.in_records == pytest.approx(arrived_qps * residence_s, rel=0.01)


def test_prompts_run_alone_leave_running_requests_out_of_steps() -> None:
    setup = prepare(make_scenario({"qps": 20.0, "workload": "gsm8k", "engine": "sglang", "requests": 1500}))
    run = run_policy(setup, FIXED, draw_requests(setup, 1500, 0))
    assert run.little_gap > 0.001


def test_the_slices_add_up_to_the_window(run: Measured) -> None:
    assert run.bins[:, BIN_EMITTED].sum() == run.sums[W_EMITTED]
    assert run.bins[:, BIN_BATCH_S].sum() / run.window_s.mean() == pytest.approx(run.in_steps, rel=0.01)
    assert run.bins[:, BIN_S].sum() <= run.window_s.sum() * (1 + 1e-12)


def test_the_window_does_not_depend_on_how_busy_the_seed_is(setup: Setup) -> None:
    """Arrivals 5% denser than meant: the warm-up in seconds stays that of the rate that was meant."""
    drawn = draw_requests(setup, 3000, 0)
    meant = 40.0 / 2
    for dense in (1.0, 1.05):
        at = drawn.unit_arrival_s / meant / dense
        load = Load(at, drawn.prompt_len, drawn.output_len, drawn.trace_at, drawn.traces)
        first = window_of(setup, load, np.arange(3000), 1, rate=meant).first
        assert at[first - 1] < settling(setup, meant).settle_s <= at[first]


def test_a_stretched_warm_up_starts_the_window_later(setup: Setup) -> None:
    drawn = draw_requests(setup, 3000, 0)
    plain = run_policy(setup, FIXED, drawn)
    later = run_policy(setup, FIXED, replace(drawn, stretch=1.5))
    assert len(later.ttft_s) < len(plain.ttft_s)
    np.testing.assert_array_equal(later.ttft_s, plain.ttft_s[-len(later.ttft_s) :])


def test_the_sustained_rate_is_the_mean_over_seeds_with_student_s_interval(setup: Setup) -> None:
    samples = [draw_requests(setup, 4096, seed) for seed in range(3)]
    each = [sustained_qps(setup, FIXED, one) for one in samples]
    found = sustained(setup, FIXED, samples)
    half = 4.30265 * np.std(each, ddof=1) / np.sqrt(3)  # t(0.975, 2)
    assert found.qps == pytest.approx(np.mean(each))
    assert found.ci95 == pytest.approx((found.qps - half, found.qps + half), rel=1e-5)
    assert sustained(setup, FIXED, samples[:1]) == Sustained(each[0], None)
    assert found.of(4).ci95 == pytest.approx((4 * (found.qps - half), 4 * (found.qps + half)), rel=1e-5)


@pytest.mark.parametrize("replicas", [1, 4, 50])
def test_a_fleet_serves_what_comes_however_many_replicas_idle(replicas: int, tmp_path: Path) -> None:
    """20 requests of 30 tokens, 1 s apart and served in less: 600 tokens in 19 s and one service time."""
    path = tmp_path / "log.csv"
    path.write_text("t_s,input_tokens,output_tokens\n" + "".join(f"{t},100,30\n" for t in range(20)))
    setup = prepare(make_scenario({"replay": path}))
    run = run_policy(setup, FIXED, draw_requests(setup, 20, 0), replicas=replicas)
    assert (run.requests, run.output_tokens) == (20, 600)
    assert run.output_tok_s == pytest.approx(600 / 19, rel=0.02)
    assert run.done[:, 2].sum() == pytest.approx(20 / 19, rel=0.02)


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_replicas_without_a_session_count_for_nothing(router: str, tmp_path: Path) -> None:
    """All turns of the one session go to one replica."""
    path = tmp_path / "log.csv"
    head = "t_s,input_tokens,output_tokens,session_id\n"
    path.write_text(head + "".join(f"{t},{100 + 40 * t},30,s\n" for t in range(20)))
    setup = prepare(make_scenario({"replay": path, "router": router}))
    drawn = draw_requests(setup, 20, 0)
    one, four = (run_policy(setup, FIXED, drawn, replicas=n) for n in (1, 4))
    assert four.output_tok_s == one.output_tok_s
    np.testing.assert_array_equal(four.ttft_s, one.ttft_s)


def test_cores_are_counted_where_the_system_keeps_affinities_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == 6


def test_a_run_measured_whole_holds_every_step_of_every_request(setup: Setup) -> None:
    fleet, scale = run_fleet(setup, FIXED, draw_requests(setup, 3000, 0), replicas=2, whole=True)
    assert scale == 1.0
    counted = sum(int(one.machine.k_steps.sum()) for one in fleet.replicas)
    assert counted == int(fleet.requests["steps"].sum())
    emitted = sum(one.machine.sums[W_EMITTED] for one in fleet.replicas)
    assert emitted == fleet.requests["output_len"].sum()
