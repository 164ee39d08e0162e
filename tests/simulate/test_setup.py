"""Averages of a load and the time it needs to settle, against values worked out apart."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.config.scenario import make_scenario
from kplan.engine.state import W_STEPS
from kplan.errors import InputError
from kplan.latency import StepShape
from kplan.metrics import goodput_qps
from kplan.registry import parse_policy
from kplan.simulate import (
    POOL,
    default_requests,
    draw_requests,
    mean_lengths,
    prepare,
    run_policy,
    settling,
    sustained_qps,
)
from kplan.simulate.server import observe_lag


def test_mean_context_weights_by_tokens() -> None:
    """One request of 100 + 10, one of 0 + 1000: (10 x 105 + 1000 x 500) / 1010; the 95% need 1000."""
    lengths = mean_lengths(np.array([100, 0], np.int32), np.array([10, 1000], np.int32))
    assert lengths.context == pytest.approx((10 * 105 + 1000 * 500) / 1010)
    assert (lengths.output, lengths.longest_output) == (505, 1000)


def test_a_load_settles_at_the_batch_of_little_s_law() -> None:
    setup = prepare(make_scenario({"qps": 20.0, "prompt_tokens": 200, "output_tokens": 300}))
    step_s = settling(setup, 20.0).drain_s / 300
    batch = 20.0 * 300 * step_s
    priced = float(setup.latency_off.step_seconds(StepShape.decode(batch, 0, 350)).total_s)
    assert priced == pytest.approx(step_s, rel=0.03)


def test_a_heavier_load_needs_longer() -> None:
    setup = prepare(make_scenario({"qps": 1.0}))
    times = [settling(setup, rate).settle_s for rate in (1.0, 5.0, 10.0, 15.0)]
    assert times == sorted(times)
    assert times[-1] > 2 * times[0]


def test_the_window_starts_once_the_batch_has_stopped_growing() -> None:
    """Off at 87% of what a replica sustains: the emitted rate of the window is the offered one."""
    setup = prepare(make_scenario({"qps": 100.0, "workload": "gsm8k"}))
    drawn = draw_requests(setup, default_requests(setup), 0)
    run = run_policy(setup, parse_policy("off"), drawn)
    offered = 100.0 * drawn.output_len.mean()
    assert run.output_tok_s == pytest.approx(offered, rel=0.03)
    assert not run.saturated


@pytest.mark.parametrize(
    "load",
    [
        {"concurrency": 256, "requests": 400},
        {"concurrency": 40, "requests": 40},
        {"concurrency": 1, "requests": 1},
        {"qps": 5.0, "requests": 1},
        {"qps": 5.0, "requests": 3},
        {"qps": 90_000.0, "requests": 900},
    ],
)
def test_few_requests_or_a_burst_are_measured_whole(load: dict[str, float]) -> None:
    setup = prepare(make_scenario(load | {"workload": "gsm8k"}))
    n = int(load["requests"])
    run = run_policy(setup, parse_policy("fixed:2"), draw_requests(setup, n, 0))
    assert len(run.tpot_s) == len(run.ttft_s) > 0
    assert run.sums[W_STEPS] > 0
    assert np.isfinite(run.tpot_s).all()
    assert run.output_tok_s > 0


@pytest.mark.parametrize("replicas", [3, 16])
def test_each_replica_sees_its_fair_share_of_the_pool(replicas: int) -> None:
    """Dealt in turn, a pool repeated in one order would give each replica the same few requests for ever."""
    setup = prepare(make_scenario({"qps": 10.0}))
    drawn = draw_requests(setup, 8 * POOL, 0)
    for i in range(replicas):
        distinct = len(np.unique(drawn.trace_at[i::replicas]))
        dealt = len(drawn.trace_at[i::replicas])
        expected = POOL * (1 - (1 - 1 / POOL) ** dealt)
        assert distinct > 0.8 * expected


def test_many_replicas_are_simulated_by_a_few_and_scaled() -> None:
    setup = prepare(make_scenario({"qps": 10.0, "workload": "gsm8k"}))
    spec = parse_policy("fixed:2")
    few = run_policy(setup, spec, draw_requests(setup, 8 * 400, 0), qps=80.0, replicas=8)
    many = run_policy(setup, spec, draw_requests(setup, 32 * 400, 0), qps=320.0, replicas=32)
    assert many.output_tok_s == pytest.approx(4 * few.output_tok_s, rel=0.05)
    assert goodput_qps(many, None, None) == pytest.approx(320, rel=0.05)
    assert many.mean_tpot_s == pytest.approx(few.mean_tpot_s, rel=0.03)


def test_goodput_never_exceeds_what_is_served() -> None:
    """A burst above the sustained rate: requests are admitted faster than they finish."""
    setup = prepare(make_scenario({"qps": 100.0}))
    drawn = draw_requests(setup, 1000, 0)
    spec = parse_policy("off")
    run = run_policy(setup, spec, drawn)
    assert goodput_qps(run, None, None) < 1.1 * sustained_qps(setup, spec, drawn)


def _tpot_s(**scenario: object) -> float:
    setup = prepare(make_scenario({"policy": "off", **scenario}))
    requests = draw_requests(setup, default_requests(setup), 0)
    return run_policy(setup, parse_policy("off"), requests).mean_tpot_s


def test_every_client_of_a_closed_loop_sees_the_prefills_of_all_others() -> None:
    """Eight requests of one length drift apart: a decode step is stalled by the seven other prompts in turn.

    Had they stayed in step, the eight prompts would fit one step of 8,192 tokens and stall nobody.
    """
    prompt, output, clients = 1000, 128, 8
    load = {"prompt_tokens": prompt, "output_tokens": output, "concurrency": clients}
    latency = prepare(make_scenario({**load, "policy": "off"})).latency_off
    context = prompt + output / 2
    alone = float(latency.step_seconds(StepShape.decode(clients, 0, context)).total_s)
    others = clients - 1
    kv = others * context
    shape = StepShape(others, others, kv, kv, 1, prompt, prompt, prompt**2 / 2, clients)
    stalled = float(latency.step_seconds(shape).total_s)
    expected = alone + others * (stalled - alone) / (output - 1)
    assert _tpot_s(**load) == pytest.approx(expected, rel=0.02)
    assert expected > 1.1 * alone


def test_an_engine_that_runs_prefills_alone_keeps_its_clients_together() -> None:
    load = {"prompt_tokens": 1000, "output_tokens": 128, "concurrency": 8, "engine": "sglang"}
    latency = prepare(make_scenario({**load, "policy": "off"})).latency_off
    step = float(latency.step_seconds(StepShape.decode(8, 0, 1064)).total_s)
    assert _tpot_s(**load) == pytest.approx(step, rel=0.02)


def test_synchronous_scheduling_shows_the_host() -> None:
    load = {"prompt_tokens": 100, "output_tokens": 200, "concurrency": 1}
    host = prepare(make_scenario({**load, "policy": "off"})).latency.calibration.host
    shown = host.step_s.value + host.request_s.value - host.exposed_s.value
    both = [_tpot_s(**load, async_scheduling=on) for on in (True, False)]
    assert both[1] - both[0] == pytest.approx(shown, rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "lag"),
    [
        ({"engine": "sglang"}, 1),
        ({"engine": "sglang", "async_scheduling": False}, 0),  # --disable-overlap-schedule
        ({"engine": "sglang", "proposer": "ngram"}, 0),
        ({"engine": "vllm"}, 1),
        ({"engine": "vllm", "async_scheduling": False}, 0),
        ({"engine": "vllm", "proposer": "ngram"}, 0),
    ],
)
def test_a_step_is_observed_late_only_where_the_next_is_launched_before_it(
    asked: dict[str, object], lag: int
) -> None:
    assert observe_lag(prepare(make_scenario({"qps": 1.0, **asked})), parse_policy("fixed:3")) == lag


def test_async_scheduling_is_refused_where_the_method_rules_it_out() -> None:
    with pytest.raises(InputError, match="vllm schedules synchronously with ngram"):
        prepare(make_scenario({"qps": 1.0, "proposer": "ngram", "async_scheduling": True}))


def test_eager_steps_of_one_request_wait_for_the_launch_of_every_layer() -> None:
    load = {"prompt_tokens": 100, "output_tokens": 200, "concurrency": 1, "model": "qwen3-0.6b"}
    captured, eager = (_tpot_s(**load, enforce_eager=switch) for switch in (False, True))
    latency = prepare(make_scenario({**load, "policy": "off"})).latency
    launches = latency.model.decoder.layers * latency.calibration.host.layer_s.value
    assert captured < launches < eager < launches + 1e-3
