"""Speed of pricing a whole grid; the answer is asserted too. Run with `make bench`.

Target: 512 batch sizes x 16 K x 64 contexts in 50 ms on two cores, once compiled.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kplan.latency import EngineTraits, StepShape, step_parts
from tests.latency.settings import latency

GRAPHS = EngineTraits(capture_sizes=(1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)))


@pytest.mark.parametrize("proposer", [None, "eagle", "ngram"])
def test_grid(benchmark: BenchmarkFixture, proposer: str | None) -> None:
    model = latency(proposer, traits=GRAPHS)
    batch, k, context = np.arange(1, 513), np.arange(16), np.linspace(64, 32_768, 64).astype(np.int64)
    shape = StepShape.decode(batch[:, None, None], k[None, :, None], context[None, None, :])
    total = benchmark.pedantic(model.step_seconds, args=(shape,), rounds=10, warmup_rounds=1).total_s
    assert total.shape == (512, 16, 64)
    cost = model.compile(8192, 512, 15)
    for i, j, c in ((0, 0, 0), (99, 3, 20), (511, 15, 63)):
        b, tokens, kv = int(batch[i]), int(batch[i] * (k[j] + 1)), int(batch[i] * context[c])
        qk = int(tokens * context[c])
        cell = step_parts(cost, b, tokens, kv, qk, 0, 0, 0, 0.0, tokens, b, int(k[j]))
        assert float(total[i, j, c]) == pytest.approx(sum(cell), rel=1e-12)
