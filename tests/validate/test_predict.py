"""Predictors against closed forms and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import StepShape
from kplan.simulate import prepare
from kplan.validate.predict import load_predictor
from kplan.validate.predict.bench import Settings, bench, engine_of, settings_of
from kplan.validate.predict.closed_loop import predict as closed_loop
from kplan.validate.predict.speedup import predict as speedup
from kplan.validate.table import Metric, PublishedTable
from tests.validate.made import table

LLAMA = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "proposer": "eagle3", "workload": "gsm8k"}


def test_one_client_pays_the_steps_of_its_own_contexts() -> None:
    rows = [{"measured": 7.0, "at": {"batch": 1, "k": 0, "isl": 500, "osl": 101}}]
    (said,) = closed_loop(table(rows, settings={"scenario": LLAMA}))
    own, other = bench(Settings(scenario=LLAMA), concurrency=1)
    contexts = 500 + np.arange(1, 101)  # 100 steps after the first token, each over what exists so far
    for setup, ms in ((own, said.value), (other, said.high)):
        steps = setup.latency_off.step_seconds(StepShape.decode(1, 0, contexts)).total_s
        assert ms == pytest.approx(1e3 * steps.mean(), rel=1e-3)
    assert said.low == said.value < said.high


def test_a_release_without_async_scheduling_shows_its_host_time() -> None:
    rows = [{"measured": 7.0, "at": {"batch": 1, "k": 0}}]
    (new,) = closed_loop(table(rows, settings={"scenario": LLAMA}))
    (old,) = closed_loop(
        table(rows, settings={"scenario": LLAMA, "engine_traits": {"async_scheduling": False}})
    )
    (setup, _) = bench(Settings(scenario=LLAMA), concurrency=1)
    host = setup.latency.calibration.host
    hidden = host.step_s.value + host.request_s.value - host.exposed_s.value
    assert old.value - new.value == pytest.approx(1e3 * hidden, rel=1e-2)


def curve(
    batches: tuple[int, ...],
    measured: tuple[float, ...],
    model: str = "llama-3.1-8b",
    method: dict[str, Any] | None = None,
    **load: int,
) -> PublishedTable:
    """Speedups of one method on one dataset whose acceptance is inferred."""
    return table(
        [
            {"measured": value, "at": {"dataset": "maths", "method": "heads", "batch": batch}}
            for batch, value in zip(batches, measured, strict=True)
        ],
        Metric.SPEEDUP,
        settings={
            "scenario": {"model": model, "hardware": "h100-sxm"},
            "datasets": {"maths": {"scenario": {"workload": "gsm8k", **load}, "inferred": True}},
            "methods": {"heads": method or {"proposer": "eagle3", "k": 3}},
        },
    )


def test_an_inferred_acceptance_gives_back_the_row_it_came_from_and_orders_the_others() -> None:
    little, much = (speedup(curve((64, 1), (1.0, first))) for first in (1.5, 1.8))
    for first, (rest, source) in ((1.5, little), (1.8, much)):
        assert source.used_in_fit
        assert not rest.used_in_fit
        assert source.value == pytest.approx(first, rel=2e-3)
        # every source of GEMM times infers for itself
        assert source.high == pytest.approx(source.low, rel=4e-3)
        assert rest.low < rest.high
    assert little[0].value < much[0].value


def test_a_speedup_out_of_reach_gets_the_nearest() -> None:
    (setup, _) = bench(Settings(scenario=LLAMA | {"max_k": 3}), concurrency=1)
    off = float(setup.latency_off.step_seconds(StepShape.decode(1, 0, 500)).total_s)
    on = float(setup.latency.step_seconds(StepShape.decode(1, 3, 500)).total_s)
    load = {"prompt_tokens": 100, "output_tokens": 801}  # 200 steps of four tokens, at 500 in the mean
    (best,) = speedup(curve((1,), (6.0,), **load))
    assert best.value == pytest.approx(4 * off / on, rel=0.01)
    (worst,) = speedup(curve((1,), (0.1,), **load))  # one token a step
    assert worst.value == pytest.approx(off / on, rel=0.01)


def test_a_borrowed_shape_serves_a_drafter_without_traces() -> None:
    method = {"proposer": "draft-model", "k": 3, "borrow": "eagle3"}
    source, rest = speedup(curve((1, 16), (1.6, 1.5), "qwen3-8b", method))
    assert source.value == pytest.approx(1.6, rel=2e-3)
    assert 1.0 < rest.value < 1.7


def test_a_setting_that_does_not_exist_is_one_line() -> None:
    rows = [{"measured": 7.0, "at": {"batch": 1}}]
    with pytest.raises(InputError, match=r"settings\.colour"):
        settings_of(table(rows, settings={"colour": "red"}), Settings)
    with pytest.raises(InputError, match="engine trait: got 'speed', known: async_scheduling"):
        engine_of("vllm", {"speed": 2})
    with pytest.raises(InputError, match=r"settings\.scenario: key: got 'colour'"):
        closed_loop(table(rows, settings={"scenario": {"colour": "red"}}))
    with pytest.raises(InputError, match="did you mean closed-loop"):
        load_predictor("closed-lop")


def test_prepare_takes_the_calibration_and_release_it_is_given() -> None:
    own, other = bench(Settings(scenario=LLAMA, engine_traits={"block_size": 32}), concurrency=1)
    assert own.engine.block_size == other.engine.block_size == 32
    assert other.latency.calibration.gemm == own.latency.calibration.gemm_alternate
    plain = prepare(own.scenario)
    assert plain.engine.block_size == 16
    assert plain.latency.calibration == own.latency.calibration
