"""The engine against queues and speedups that have a formula."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.engine import Load, Replica, Traces
from kplan.engine.state import W_CLOSE_S, W_OPEN_S
from kplan.latency.compiled import step_parts
from kplan.policy import StepView
from tests.engine.scenes import bounds, make_load, price


class Fixed:
    def __init__(self, k: int) -> None:
        self.k = k

    def choose_k(self, step: StepView) -> int:
        return self.k

    def table(self, max_batch: int) -> np.ndarray:
        return np.full(max_batch + 1, self.k)


def run(load: Load, k: int = 0, **changes: object) -> Replica:
    cost = price("eagle" if k else None, max_k=k)
    replica = Replica(load, bounds(load, max_k=k, **changes), cost, Fixed(k))
    replica.advance()
    return replica


@pytest.mark.parametrize("load_share", [0.3, 0.6, 0.8])
def test_one_seat_and_one_token_is_an_m_d_1_queue(load_share: float) -> None:
    """Prompts of one length, one output token, one seat: constant service, Poisson arrivals.

    Pollaczek-Khinchine: mean wait = rho / (2 (1 - rho)) x service.
    """
    prompt = 256
    service_s = sum(
        step_parts(price(None, max_k=0), 0, 0, 0, 0, 1, prompt, prompt, prompt * prompt / 2, 1, 1, 0)
    )
    n = 200_000
    load = make_load(n, seed=1, qps=load_share / service_s, prompt=(prompt, prompt), output=(1, 1))
    req = run(load, max_num_seqs=1).requests
    wait_s = float((req.admitted_s - req.arrival_s).mean())
    expected_s = load_share / (2 * (1 - load_share)) * service_s
    assert wait_s == pytest.approx(expected_s, rel=0.03)


def test_little_s_law_on_an_open_run() -> None:
    """Time-average number in the system = arrival rate x mean residence, counted two independent ways."""
    load = make_load(5000, seed=3, qps=60, output=(20, 200))
    req = run(load, k=3).requests
    horizon = req.finish_s.max()
    changes = np.concatenate([req.arrival_s, req.finish_s])
    signs = np.concatenate([np.ones(5000), -np.ones(5000)])
    order = np.argsort(changes, kind="stable")
    times = np.append(changes[order], horizon)
    inside = np.cumsum(signs[order])
    average = float((inside * np.diff(times)).sum() / horizon)
    assert average == pytest.approx(5000 / horizon * (req.finish_s - req.arrival_s).mean(), rel=1e-9)


@pytest.mark.parametrize(("alpha", "k"), [(0.5, 1), (0.7, 3), (0.9, 7)])
def test_geometric_acceptance_gives_leviathan_s_tokens_per_step(alpha: float, k: int) -> None:
    """Leviathan et al. 2023, eq. 1: (1 - alpha^(k+1)) / (1 - alpha) tokens per step at batch 1."""
    load = make_load(300, seed=5, clients=1, output=(400, 400), depth=1 - alpha)
    replica = run(load, k=k)
    req = replica.requests
    per_step = (req.output_len - 1).sum() / req.steps.sum()
    assert per_step == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha), rel=0.02)


def test_tpot_at_batch_one_is_step_time_over_acceptance() -> None:
    """Every draft right: TPOT = step seconds / (K + 1), with the step priced independently of the engine."""
    k, prompt, n_out = 3, 64, 401
    acc = np.full(n_out, 21, np.uint8)
    load = Load(
        arrival_s=np.zeros(1),
        prompt_len=np.array([prompt]),
        output_len=np.array([n_out]),
        trace_at=np.array([0]),
        traces=Traces(acc, np.full(n_out, 255, np.uint8)),
        concurrency=1,
    )
    req = run(load, k=k).requests
    steps = [
        sum(step_parts(price("eagle", max_k=k), 1, k + 1, c, (k + 1) * c, 0, 0, 0, 0.0, k + 1, 1, k))
        for c in range(prompt + 1, prompt + n_out, k + 1)
    ]
    tpot_s = (req.finish_s[0] - req.first_token_s[0]) / (n_out - 1)
    assert req.steps[0] == 100
    assert tpot_s == pytest.approx(sum(steps) / (n_out - 1), rel=1e-12)


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    load = make_load(400, seed=2, clients=8, output=(50, 80))
    replica = run(load, k=3, window_from=8, window_to=392)
    m = replica.machine
    window_s = m.sums[W_CLOSE_S] - m.sums[W_OPEN_S]
    batches = m.batch_steps[: 9 + 1]
    assert window_s > 0
    assert batches[8] / batches.sum() > 0.99, "every client has a request in flight"


def test_a_starved_cache_preempts_and_still_serves_everybody() -> None:
    load = make_load(60, seed=4, clients=12, prompt=(50, 100), output=(100, 200))
    rich = run(load, k=3)
    poor = run(load, k=3, total_blocks=40)
    assert rich.requests.preempted.sum() == 0
    assert poor.requests.preempted.sum() > 0
    np.testing.assert_array_equal(poor.requests.emitted, load.output_len)
    assert poor.clock_s > rich.clock_s
