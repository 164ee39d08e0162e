"""KV capacity, what does not fit, the work of a step, and how engines launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.errors import InfeasibleError, InputError
from kplan.latency import EngineTraits, LatencyModel, StepShape, engine_traits
from kplan.latency.shape import Count
from kplan.latency.work import target_work
from kplan.profiles import (
    Decoder,
    Dtype,
    MixtureOfExperts,
    SlidingWindow,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.provenance import Figure, Kind, Provenance
from tests.latency.round_numbers import CALIBRATION, EAGLE, GPU, MODEL, SMALL, figure, priced
from tests.latency.settings import EAGER, LATENT, LLAMA, ROUTED, SELF, built, head, latency


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


def test_capacity_is_what_weights_activations_and_reserve_leave() -> None:
    """Of 9 GB: 1.5 reserved; 1,000 tokens take the MLP's 3 x 12 values, the stream 4 x 8, in bf16."""
    weights = MODEL.weight_bytes()
    free = 9e9 - 1.5e9 - weights - 1000 * 2 * (36 + 32)
    assert priced().kv_capacity_tokens(0.9, 1000) == free // 48
    drafter = replace(EAGLE, own_embedding=False, own_head=False)
    drafting = LatencyModel(GPU, MODEL, drafter, CALIBRATION, traits=EAGER)
    assert drafting.kv_capacity_tokens(0.9, 1000) == (free - drafter.weight_bytes()) // (48 + 16)


def test_the_share_of_memory_may_be_all_of_it() -> None:
    assert priced().kv_capacity_tokens(1.0, 1000) - priced().kv_capacity_tokens(0.9, 1000) == pytest.approx(
        1e9 / 48, abs=1
    )


@pytest.mark.parametrize(("left", "fits"), [(48, True), (47, False)])
def test_one_token_is_a_cache(left: int, fits: bool) -> None:
    needed = 1.5e9 + MODEL.weight_bytes() + 1000 * 2 * (36 + 32)
    gpu = replace(GPU, memory_bytes=figure(needed + left))
    model = LatencyModel(gpu, MODEL, None, CALIBRATION, traits=EAGER)
    if fits:
        assert model.kv_capacity_tokens(1.0, 1000) == 1
    else:
        told = (
            r"^small needs 1\.5 GB per GPU at TP 1 before any KV cache \(0\.0 GB of weights, the rest "
            r"drafter, activations and reserve\), h100-sxm offers 1\.5 GB at memory share 1; --tp 2 fits$"
        )
        with pytest.raises(InfeasibleError, match=told):
            model.kv_capacity_tokens(1.0, 1000)


# --- work, shapes, traits


def test_work_of_a_windowed_routed_step_on_two_ranks() -> None:
    """2 decodes of 3 queries each at 100 tokens, a prompt of 5 after 20, 7 rows; 2 of 3 layers routed."""
    moe = MixtureOfExperts(experts=4, active=2, intermediate=6, shared_intermediate=10, dense_layers=1)
    decoder = replace(SMALL, moe=moe, window=SlidingWindow(tokens=30, layers=2))
    model = replace(MODEL, decoder=decoder)
    shape = StepShape(2, 6, 200, 600, 1, 5, 25, 112.5, 7)
    work = target_work(model, 2, shape)
    attention = (4 // 2 + 2 * 1) * 2 * 8 + 8 * 4
    dense, shared, expert, router = 3 * 8 * 6, 3 * 8 * 5, 3 * 8 * 3, 8 * 4
    tokens = 11
    flops = 2 * 7 * 10 * 8
    flops += 2 * tokens * (3 * attention + dense + 2 * (router + shared + 2 * expert))
    near_pairs = min(600, 6 * 30) + min(112.5, 5 * 30)
    flops += 4 * 2 * 2 * (1 * (600 + 112.5) + 2 * near_pairs)
    assert float(work.flops) == pytest.approx(flops)
    touched = 4 * (1 - 0.5**tokens)
    moved = 2 * (10 * 8 + 3 * attention + dense + 2 * (router + shared + touched * expert))
    near_kv = min(200, 2 * 29 + 6) + min(25, 29 + 5)
    moved += 2 * 1 * 2 * 2 * (1 * 225 + 2 * near_kv)
    assert float(work.bytes) == pytest.approx(moved)
    assert float(work.flops_per_byte) == pytest.approx(flops / moved)


@pytest.mark.parametrize(("verified", "queries"), [(None, 4), (1.5, 2.5), (0, 1)])
def test_a_steady_decode_verifies_what_it_proposes_or_fewer(verified: Count | None, queries: float) -> None:
    shape = StepShape.decode(2, 3, 100, verified)
    assert (shape.decode_requests, shape.decode_tokens, shape.decode_kv_tokens) == (2, 2 * queries, 200)
    assert (shape.decode_qk_tokens, shape.sampled_rows) == (2 * queries * 100, 2 * queries)
    assert (shape.draft_requests, shape.draft_k) == (2, 3)
    prompts = (shape.prefill_requests, shape.prefill_tokens, shape.prefill_kv_tokens, shape.prefill_qk_tokens)
    assert prompts == (0, 0, 0, 0)


def test_vllm_captures_tokens_up_to_twice_what_runs() -> None:
    vllm, drafter = load_engine("vllm"), head()
    small = (1, 2, 4)
    assert engine_traits(vllm, None, 10, 7).capture_sizes == (*small, 8, 16)
    assert engine_traits(vllm, drafter, 2, 3).capture_sizes == (*small, 8, 16)
    plain = engine_traits(vllm, drafter, 1000, 3)
    assert (plain.piecewise, plain.async_scheduling, plain.captured_drafts) == (False, True, False)
    assert plain.capture_sizes == (*small, *range(8, 257, 8), *range(272, 513, 16))
    table = engine_traits(vllm, drafter, 3, 2, dynamic_table=True)  # up to 18
    assert table.capture_sizes == (1, 2, 3, 4, 6, 8, 12, 16)
    assert table.piecewise


def test_sglang_captures_requests_with_and_without_their_drafts() -> None:
    sglang, drafter = load_engine("sglang"), head()
    traits = engine_traits(sglang, drafter, 3, 4, dynamic_table=True)
    assert traits.capture_sizes == (1, 2, 3, 5, 10, 15)
    assert (traits.piecewise, traits.captured_drafts) == (False, True)
    assert engine_traits(sglang, None, 3, 4).capture_sizes == (1, 2, 3)


def test_an_engine_overlaps_unless_it_or_its_method_does_not() -> None:
    sync = replace(load_engine("vllm"), async_scheduling=False)
    assert not engine_traits(sync, None, 8, 0).async_scheduling
    assert not engine_traits(
        load_engine("vllm"), load_drafter("ngram", load_model("llama-3.1-8b")), 8, 3
    ).async_scheduling
    assert EngineTraits() == EngineTraits((), piecewise=False, async_scheduling=True, captured_drafts=False)
