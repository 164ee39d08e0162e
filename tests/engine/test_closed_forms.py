"""The engine against queues and speedups that have a formula."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from kplan.engine import Load, Replica, Traces, kernel
from kplan.engine.state import W_CLOSE_S, W_EMITTED, W_OPEN_S
from kplan.latency import StepCost
from kplan.latency.compiled import step_parts
from tests.engine.scenes import ByTable, bare_price, bounds, make_load, price

UNIT_S = 0.01


def run(load: Load, k: int = 0, cost: StepCost | None = None, **changes: object) -> Replica:
    cost = cost or price("eagle" if k else None, max_k=k)
    replica = Replica(load, bounds(load, max_k=k, **changes), cost, ByTable(k))
    assert replica.advance() == kernel.DONE
    return replica


def queue(n: int, *, seed: int, steps: NDArray[np.int64], **load: object) -> Load:
    """``n`` requests that each take ``steps`` steps of one token."""
    made = make_load(n, seed=seed, prompt=(1, 1), output=(1, 1))
    starts = np.concatenate([[0], np.cumsum(steps)[:-1]])
    traces = Traces(np.ones(int(steps.sum()), np.uint8), np.zeros(int(steps.sum()), np.uint8))
    return replace(made, output_len=steps, trace_at=starts, traces=traces, **load)  # type: ignore[arg-type]  # a load's fields


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


@pytest.mark.parametrize(("load_share", "ends"), [(0.5, 0.2), (0.7, 0.02)])
def test_one_seat_and_geometric_lengths_are_an_m_g_1_queue(load_share: float, ends: float) -> None:
    """Steps of one length, geometric output lengths (a token is the last with chance ``ends``), one seat.

    Pollaczek-Khinchine: mean wait = rate x E[S^2] / (2 (1 - rho)); nobody waits with chance 1 - rho. With
    ``ends`` going to 0 that is M/M/1: rho / (1 - rho) x mean service.
    """
    n, rng = 400_000, np.random.default_rng(7)
    mean_s, square_s2 = UNIT_S / ends, UNIT_S**2 * (2 - ends) / ends**2
    rate = load_share / mean_s
    arrival_s = np.cumsum(rng.exponential(1 / rate, n))
    load = queue(n, seed=0, steps=rng.geometric(ends, n), arrival_s=arrival_s)
    req = run(load, cost=bare_price(np.full(9, UNIT_S)), max_num_seqs=1).requests
    wait_s = req.admitted_s - req.arrival_s
    assert wait_s.mean() == pytest.approx(rate * square_s2 / (2 * (1 - load_share)), rel=0.02)
    assert (wait_s <= 0).mean() == pytest.approx(1 - load_share, rel=0.01)
    assert wait_s.mean() == pytest.approx(load_share / (1 - load_share) * mean_s, rel=0.02 + ends / 2)


@pytest.mark.parametrize("service", ["constant", "geometric"])
@pytest.mark.parametrize("clients", [1, 4, 12])
def test_clients_that_think_are_machines_and_the_seat_is_their_repairman(service: str, clients: int) -> None:
    """M/G/1//C: C clients, exponential thinking, one seat.

    Takacs (Introduction to the Theory of Queues, 1962): the seat is idle with chance
    1 / (1 + C l E[S] sum_r binom(C - 1, r) prod_{i<=r} (1 - f(i l)) / f(i l)), where l is the rate at which
    one client stops thinking and f is the Laplace transform of the service time. With exponential service
    that is the textbook's M/M/1//C.
    """
    n, mean_steps, think_s, rng = 100_000, 8, 6 * 8 * UNIT_S, np.random.default_rng(3)
    ends = 1 / mean_steps
    constant = service == "constant"
    steps = np.full(n, mean_steps) if constant else rng.geometric(ends, n)

    def laplace(s: float) -> float:
        one = math.exp(-s * UNIT_S)
        return one**mean_steps if constant else ends * one / (1 - (1 - ends) * one)

    odds = [(1 - laplace(i / think_s)) / laplace(i / think_s) for i in range(1, clients)]
    total = sum(math.comb(clients - 1, r) * math.prod(odds[:r]) for r in range(clients))
    idle = 1 / (1 + clients / think_s * mean_steps * UNIT_S * total)

    load = queue(n, seed=0, steps=steps, concurrency=clients, think_s=rng.exponential(think_s, n))
    req = run(load, cost=bare_price(np.full(9, UNIT_S)), max_num_seqs=1).requests
    per_second = n / req.finish_s.max()
    assert per_second == pytest.approx((1 - idle) / (mean_steps * UNIT_S), rel=0.01)


@pytest.mark.parametrize(
    ("clients", "k", "units_per_token"), [(1, 0, 1.0), (1, 3, 1 / 2.5), (8, 0, 1.0), (8, 3, 1.6), (8, 1, 1.2)]
)
def test_a_machine_of_eight_tokens_at_once(clients: int, k: int, units_per_token: float) -> None:
    """A step takes one unit of time per 8 tokens, one at least; the first draft is right in 2 of 3 steps.

    Alone, 4 tokens are verified in one unit and 2.5 emitted: 2.5 times faster. 8 requests verify 32 tokens in
    4 units: 1.6 units per token and request at K = 3, 2 units for 5/3 tokens or 1.2 at K = 1, 1 without.
    """
    n, length = 16 * clients, 2000
    cost = bare_price(np.maximum(1.0, np.arange(100) / 8) * UNIT_S)
    # chances that at least 1, 2, 3 drafts are right: 2/3, 1/2, 1/3
    acc = np.random.default_rng(5).choice([1, 2, 3, 4], n * length, p=[2 / 6, 1 / 6, 1 / 6, 2 / 6])
    made = make_load(n, clients=clients, prompt=(1, 1), output=(length, length))
    load = replace(made, traces=Traces(acc.astype(np.uint8), np.full(n * length, 255, np.uint8)))
    replica = run(load, k, cost, window_from=clients, window_to=n)
    sums = replica.machine.sums
    seconds = sums[W_CLOSE_S] - sums[W_OPEN_S]
    assert seconds / UNIT_S * clients / sums[W_EMITTED] == pytest.approx(units_per_token, rel=0.01)


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
