"""KV capacity, what does not fit, and how engines launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.errors import InfeasibleError, InputError
from kplan.latency import LatencyModel, engine_traits
from kplan.profiles import load_calibration, load_drafter, load_engine, load_hardware, load_model
from tests.latency.settings import latency


def test_weights_that_do_not_fit_name_a_tp_that_does() -> None:
    with pytest.raises(InfeasibleError) as error:
        latency(None, "llama-3-70b", tp=1).kv_capacity_tokens()
    message = str(error.value)
    assert "\n" not in message
    assert "141" in message
    named = int(message.split("--tp ")[1].split()[0])
    assert latency(None, "llama-3-70b", tp=named).kv_capacity_tokens() > 0


def test_capacity_is_bounded_by_memory_and_close_to_what_weights_leave() -> None:
    model = latency()
    room = model.hardware.memory_bytes.value * 0.9 - model.model.weight_bytes()
    most = room / model.model.kv_bytes_per_token()
    assert 0.9 * most < model.kv_capacity_tokens(0.9) < most


@pytest.mark.parametrize("proposer", ["eagle", "eagle3", "draft-model"])
def test_a_drafter_takes_weights_and_cache_from_the_target(proposer: str) -> None:
    off, drafting = latency().kv_capacity_tokens(), latency(proposer).kv_capacity_tokens()
    drafter = latency(proposer).drafter
    assert drafter is not None
    target_kv = latency().model.kv_bytes_per_token()
    per_token = target_kv + drafter.kv_bytes_per_token()
    assert drafting == pytest.approx((off * target_kv - drafter.weight_bytes()) / per_token, abs=2)
    assert latency("ngram").kv_capacity_tokens() == off


def test_more_batched_tokens_leave_fewer_for_the_cache() -> None:
    assert latency().kv_capacity_tokens(0.9, 16_384) < latency().kv_capacity_tokens(0.9, 2048)


@pytest.mark.parametrize("share", [0.0, 1.2, -1.0])
def test_a_share_of_memory_outside_0_to_1_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="gpu_memory_utilization"):
        latency().kv_capacity_tokens(share)


@pytest.mark.parametrize("tp", [0, 3, 16])
def test_ranks_that_do_not_divide_or_are_not_calibrated_are_refused(tp: int) -> None:
    with pytest.raises(InputError, match="tensor parallel"):
        latency(None, tp=tp)


def test_a_calibration_of_another_gpu_is_refused() -> None:
    other = replace(load_calibration("h100-sxm"), hardware="l40s")
    with pytest.raises(InputError, match="l40s"):
        LatencyModel(load_hardware("h100-sxm"), load_model("qwen3-8b"), None, other)


def test_async_scheduling_is_off_for_ngram_on_vllm() -> None:
    engine, model = load_engine("vllm"), load_model("llama-3.1-8b")
    for proposer, overlaps in (("ngram", False), ("eagle", True), ("draft-model", True)):
        traits = engine_traits(engine, load_drafter(proposer, model), 256, 3)
        assert traits.async_scheduling is overlaps
    assert engine_traits(engine, None, 256, 0).async_scheduling


def test_vllm_captures_up_to_twice_the_running_tokens_and_512() -> None:
    # min(max_num_seqs x (1 + K) x 2, 512)
    engine, drafter = load_engine("vllm"), load_drafter("eagle", load_model("llama-3.1-8b"))
    assert engine_traits(engine, drafter, 16, 3).capture_sizes[-1] == 128
    assert engine_traits(engine, drafter, 256, 3).capture_sizes[-1] == 512
    assert engine_traits(engine, None, 16, 3).capture_sizes[-1] == 32
    table = engine_traits(engine, drafter, 256, 2, dynamic_table=True)
    assert table.piecewise
    assert {3 * 4, 3 * 40, 2 * 56}.issubset(table.capture_sizes)  # n x (1 + K) for each K


def test_sglang_captures_requests() -> None:
    engine, drafter = load_engine("sglang"), load_drafter("eagle", load_model("llama-3.1-8b"))
    sizes = engine_traits(engine, drafter, 48, 3).capture_sizes
    assert {5 * 4, 48 * 4}.issubset(sizes)
    assert max(sizes) == 48 * 4
