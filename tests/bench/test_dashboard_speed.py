"""Speed of the dashboard's answers; each is asserted too. Run with `make bench`.

Target: the median over the knobs below 1 s on two cores. Every round moves the knob to a value that was not
asked before, so nothing but what the move leaves alone is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kplan.dashboard.quick import Look, Quick
from kplan.dashboard.state import State

ROUNDS = 5
MOVES: dict[str, tuple[float | str, ...]] = {
    "qps": (16.0, 32.0, 48.0, 56.0, 66.0),
    "clients": (16, 32, 64, 96, 128),
    "prompt": (256, 384, 512, 768, 1024),
    "output": (128, 192, 256, 384, 512),
    "acceptance": (-10, -5, 5, 10, 15),
    "slo_tpot": (60.0, 50.0, 45.0, 40.0, 35.0),
    "slo_ttft": (3000.0, 2500.0, 2000.0, 1500.0, 1000.0),
    "model": ("qwen3-8b", "llama-3.2-1b", "qwen3-0.6b", "gpt-oss-20b", "llama-2-7b-32k"),
    "hardware": ("h200", "a100", "b200", "h100-nvl", "h100-pcie"),
}
"""Knob -> values it is moved to, one a round."""


@pytest.fixture(scope="module")
def quick() -> Quick:
    quick = Quick()
    quick.look(State())
    return quick


@pytest.mark.parametrize("knob", MOVES)
def test_a_moved_knob(benchmark: BenchmarkFixture, quick: Quick, knob: str) -> None:
    states: Iterator[State] = iter([State.of({knob: value}) for value in MOVES[knob]])
    looks: list[tuple[State, Look]] = []

    def move(state: State) -> None:
        looks.append((state, quick.look(state)))

    benchmark.pedantic(move, setup=lambda: ((next(states),), {}), rounds=ROUNDS)
    assert len(looks) == ROUNDS
    for state, look in looks:
        asked, answer = look.plan.question, look.plan.answer
        assert (asked.qps, asked.concurrency) == (
            (None, state.clients) if state.clients else (state.qps, None)
        )
        assert (asked.model, asked.hardware, asked.output_tokens) == (
            state.model,
            state.hardware,
            state.output,
        )
        served = next(one for one in look.plan.policies if one.name == answer.policy)
        assert not served.saturated
        # every output token of the load is served, within the noise of a few requests
        if state.clients is None:
            assert answer.feasible
            assert served.max_qps is not None
            assert served.max_qps > 0.99 * state.qps
