"""KV capacity, what does not fit, and how engines launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.errors import InfeasibleError, InputError
from kplan.latency import LatencyModel, StepShape, engine_traits
from kplan.profiles import (
    Decoder,
    Dtype,
    MixtureOfExperts,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.provenance import Figure, Kind, Provenance
from tests.latency.settings import LATENT, LLAMA, ROUTED, SELF, built, head, latency


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


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    bf16, fp8 = (built(kv_dtype=dtype).kv_capacity_tokens() for dtype in (Dtype.BF16, Dtype.FP8))
    assert fp8 == pytest.approx(2 * bf16, abs=1)
    gained = built(weight_dtype=Dtype.FP8).kv_capacity_tokens() - bf16
    quantized = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14_336)  # a byte saved on each of these
    assert gained == pytest.approx(quantized / (128 * 1024), abs=1)


def test_a_latent_cache_is_one_vector_per_token_and_layer() -> None:
    # A reserve of 1 GB more is 1e9 / (27 layers x 576 numbers x 2 bytes) tokens less.
    shares = [built(LATENT).kv_capacity_tokens(share) for share in (0.8, 0.9)]
    assert shares[1] - shares[0] == pytest.approx(0.1 * 85e9 / (27 * 576 * 2), abs=2)


@pytest.mark.parametrize(
    ("decoder", "values", "kv_bytes"),
    [
        (LLAMA, 3 * 14_336 + 4 * 4096, 131_072),
        (ROUTED, 2 * (3 * 14_336 + 4096) + 4 * 4096, 131_072),  # two experts, their outputs kept for the sum
        (LATENT, 6 * (3 * 1408 + 2048) + 3 * 2816 + 4 * 2048, 31_104),  # wider than its dense layer
        (replace(LATENT, heads=128), 2 * 128 * (192 + 128) + 4 * 2048, 31_104),  # expanded keys and values
    ],
)
def test_a_batched_token_takes_the_widest_activations(decoder: Decoder, values: int, kv_bytes: int) -> None:
    # On a GPU large enough; bf16.
    big = replace(load_hardware("h100-sxm"), memory_bytes=Figure(400e9, Provenance(Kind.ASSUMED, "test")))
    few, many = (built(decoder, hardware=big).kv_capacity_tokens(0.9, n) for n in (2048, 16_384))
    assert few - many == pytest.approx(14_336 * 2 * values / kv_bytes, abs=2)


def test_self_speculation_takes_no_memory() -> None:
    assert built(drafter=SELF).kv_capacity_tokens() == built().kv_capacity_tokens()


def test_no_tp_is_named_that_does_not_split_the_experts() -> None:
    # 47 B parameters; experts of 14,338 columns split over two ranks and no more.
    odd = replace(ROUTED, layers=64, moe=MixtureOfExperts(experts=8, active=2, intermediate=14_338))
    with pytest.raises(InfeasibleError, match="no tensor-parallel size up to 8 fits"):
        built(odd).kv_capacity_tokens()
    even = replace(odd, moe=MixtureOfExperts(experts=8, active=2, intermediate=14_336))
    with pytest.raises(InfeasibleError, match="--tp 4 fits"):
        built(even).kv_capacity_tokens()


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


def test_ranks_that_do_not_divide_the_drafter_are_refused() -> None:
    odd = head(decoder=replace(LLAMA, layers=1, heads=6, kv_heads=6))
    with pytest.raises(InputError, match="must divide 6 heads"):
        built(drafter=odd, tp=4)


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


def test_passes_in_captured_graphs_do_not_wait_for_their_launch() -> None:
    """SGLang replays a drafter's passes, vLLM launches them: one token is drafted faster than launched."""
    hardware, model = load_hardware("h100-sxm"), load_model("llama-3.1-8b")
    drafter, calibration = load_drafter("eagle3", model), load_calibration("h100-sxm")
    draft_s = {}
    for name in ("vllm", "sglang"):
        traits = engine_traits(load_engine(name), drafter, 48, 3)
        priced = LatencyModel(hardware, model, drafter, calibration, traits=traits)
        draft_s[name] = float(priced.step_seconds(StepShape.decode(1, 3, 500)).draft_s)
    assert draft_s["vllm"] == pytest.approx(3 * calibration.host.pass_s["eagle3"].value)
    read_s = 3 * drafter.weight_bytes() / hardware.bandwidth_bytes_s.value
    assert read_s < draft_s["sglang"] < 0.7 * draft_s["vllm"]
