"""Speed of the engine; every benchmark asserts its answer too. Run with `make bench`.

Targets (2 cores, one used): fast path >= 50 M output tokens per CPU-second at a mean batch >= 32; a Python
policy >= 20,000 steps/s at batch 64. Timings are printed by pytest-benchmark, never asserted.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kplan.engine import Replica, kernel
from kplan.engine.state import STEPS, W_BATCH, W_STEPS
from kplan.policy import StepView
from tests.engine.scenes import bounds, make_load, price


class Table:
    def choose_k(self, step: StepView) -> int:
        return 3 if step.batch <= 64 else 1

    def table(self, max_batch: int) -> np.ndarray:
        return np.where(np.arange(max_batch + 1) <= 64, 3, 1)


@pytest.mark.parametrize("clients", [8, 64, 256])
def test_fast_path(benchmark: BenchmarkFixture, clients: int) -> None:
    load = make_load(20_000, clients=clients, prompt=(20, 600), output=(100, 300))
    limits = bounds(
        load, max_num_seqs=256, total_blocks=25_000, window_from=clients, window_to=20_000 - clients
    )
    cost = price(seats=256)
    replica = benchmark.pedantic(_run, args=(load, limits, cost, True), rounds=3, warmup_rounds=1)
    np.testing.assert_array_equal(replica.requests.emitted, load.output_len)
    sums = replica.machine.sums
    benchmark.extra_info["mean_batch"] = sums[W_BATCH] / sums[W_STEPS]
    benchmark.extra_info["tokens_per_s"] = int(load.output_len.sum()) / benchmark.stats["mean"]
    assert sums[W_BATCH] / sums[W_STEPS] == pytest.approx(clients, rel=0.02)


def test_python_policy(benchmark: BenchmarkFixture) -> None:
    load = make_load(2_000, clients=64, prompt=(20, 600), output=(100, 300))
    limits = bounds(load, total_blocks=25_000)
    replica = benchmark.pedantic(_run, args=(load, limits, price(), False), rounds=3, warmup_rounds=1)
    np.testing.assert_array_equal(replica.requests.emitted, load.output_len)
    benchmark.extra_info["steps_per_s"] = int(replica.machine.counters[STEPS]) / benchmark.stats["mean"]


def _run(load: object, limits: object, cost: object, compiled: bool) -> Replica:
    replica = Replica(load, limits, cost, Table(), compiled=compiled)  # type: ignore[arg-type]  # passed through by the fixture
    assert replica.advance() == kernel.DONE
    return replica
