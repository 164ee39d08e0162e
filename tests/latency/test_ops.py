"""Single operations, step costs and capacities on a made GPU of round numbers, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.errors import InfeasibleError, InputError
from kplan.latency import Ceilings, EngineTraits, LatencyModel, StepCost, StepShape, engine_traits, ops
from kplan.latency.attention import UNBOUNDED
from kplan.latency.compiled import (
    DRAFT_FIRST,
    DRAFT_HEAD,
    DRAFT_NEXT,
    HEAD,
    LOOKUP_DRAFTER,
    MODEL_DRAFTER,
    NO_DRAFTER,
    TARGET,
)
from kplan.latency.drafting import step_cost
from kplan.latency.shape import Count
from kplan.latency.tables import Setup
from kplan.latency.work import target_work
from kplan.profiles import (
    AllReduceFit,
    AttentionFit,
    Calibration,
    Decoder,
    Drafter,
    DrafterKind,
    Dtype,
    ElementwiseFit,
    GemmFit,
    HostFit,
    LatentAttention,
    Matmul,
    MixtureOfExperts,
    Model,
    SamplerFit,
    SlidingWindow,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.provenance import Figure, Kind, Provenance
from tests.latency.settings import PARALLEL, SELF, TREE, head

KNOWN = Provenance(Kind.ASSUMED, "test")


def figure(value: float) -> Figure:
    return Figure(value, KNOWN)


GPU = replace(
    load_hardware("h100-sxm"),
    bandwidth_bytes_s=figure(1000.0),
    peak_flops=figure(10_000.0),
    peak_flops_fp8=figure(40_000.0),
    memory_bytes=figure(10e9),
)
GEMM = GemmFit(t0_s=figure(3.0), bandwidth_eff=figure(0.5), flops_eff=figure(0.25), p=figure(2.0))
FP8 = GemmFit(figure(1.0), figure(0.8), figure(0.5), figure(1.0), convert_eff=figure(0.1))
CALIBRATION: Calibration = replace(
    load_calibration("h100-sxm"),
    gemm=GEMM,
    gemm_fp8=FP8,
    gemm_alternate=None,
    host_alternate=None,
    attention=AttentionFit(
        t0_s=figure(7.0),
        tile_s=figure(0.3),
        bandwidth_eff=figure(0.8),
        p=figure(1.5),
        prefill_bandwidth_eff=figure(0.4),
        flops_eff=figure(0.5),
    ),
    attention_fp8=None,
    elementwise=ElementwiseFit(t0_s=figure(2.0), bandwidth_eff=figure(0.5)),
    all_reduce={2: AllReduceFit(figure(1.0), figure(10.0), figure(6.0), figure(40.0))},
    sampler=SamplerFit(figure(0.4), figure(0.6), figure(10.0), figure(20.0)),
    host=HostFit(
        step_s=figure(5.0),
        request_s=figure(0.9),
        exposed_s=figure(0.2),
        verify_request_s=figure(0.35),
        pass_s={"eagle": figure(11.0)},
        layer_s=figure(13.0),
        lookup_request_s=figure(0.11),
        lookup_token_s=figure(0.013),
    ),
)
SMALL = Decoder(layers=3, hidden=8, heads=4, kv_heads=2, head_dim=2, intermediate=12, vocab=20)
MODEL: Model = replace(load_model("llama-3.1-8b"), name="small", decoder=SMALL)
EAGER = EngineTraits(async_scheduling=False)


def rates(dtype: Dtype) -> ops.GemmRates:
    return ops.gemm_rates(CALIBRATION, GPU, dtype)


def counts(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


# --- products


def test_a_bf16_product_moves_weights_inputs_and_outputs_once() -> None:
    """3 copies of 10 x 20, 2 rows: 1,200 bytes of weights, 120 in, 240 out at 500 B/s; 2,400 flops."""
    found = ops.gemm_s(rates(Dtype.BF16), counts(0, 2), Matmul(n=20, k=10, copies=3))
    memory, compute = (1200 + 120 + 240) / 500, 2 * 2 * 600 / 2500
    assert found == pytest.approx([0.0, 3 + np.hypot(memory, compute)])


def test_an_fp8_product_converts_its_inputs_first() -> None:
    """A byte a weight and input, 800 B/s, 20,000 flops, p = 1; 3 bytes a converted input at 100 B/s."""
    found = ops.gemm_s(rates(Dtype.FP8), counts(2), Matmul(n=20, k=10, copies=3))
    assert found == pytest.approx(1 + 60 * 3 / 100 + (600 + 60 + 240) / 800 + 2400 / 20_000)
    plain = ops.gemm_s(rates(Dtype.FP8), counts(2), Matmul(n=20, k=10, copies=3, quantized=False))
    assert plain == pytest.approx(ops.gemm_s(rates(Dtype.BF16), counts(2), Matmul(n=20, k=10, copies=3)))


def test_a_grouped_product_reads_the_experts_that_are_touched() -> None:
    """2 of 4 experts a token: 3 tokens touch 4 (1 - 1/8) = 3.5, and bring 6 rows."""
    moe = MixtureOfExperts(experts=4, active=2, intermediate=5)
    found = ops.routed_gemm_s(rates(Dtype.BF16), counts(0, 3), Matmul(n=20, k=10), moe)
    memory, compute = (2 * 200 * 3.5 + 6 * 2 * 30) / 500, 2 * 6 * 200 / 2500
    assert found == pytest.approx([0.0, 3 + np.hypot(memory, compute)])
    fp8 = ops.routed_gemm_s(rates(Dtype.FP8), counts(3), Matmul(n=20, k=10), moe)
    assert fp8 == pytest.approx(1 + 60 * 3 / 100 + (200 * 3.5 + 6 * (10 + 40)) / 800 + 2400 / 20_000)


def test_formats_are_priced_by_what_was_measured_of_them() -> None:
    no_peak = replace(GPU, peak_flops_fp8=None)
    unmeasured = replace(CALIBRATION, gemm_fp8=None)
    assert ops.gemm_fit(CALIBRATION, GPU, Dtype.FP8) is FP8
    assert ops.gemm_fit(CALIBRATION, GPU, Dtype.INT4) is GEMM
    assert ops.gemm_fit(CALIBRATION, no_peak, Dtype.FP8) is GEMM
    assert ops.gemm_fit(unmeasured, GPU, Dtype.FP8) is GEMM
    stored = ops.gemm_rates(CALIBRATION, no_peak, Dtype.FP8).quantized
    assert (stored.weight_bytes, stored.input_bytes, stored.convert_s, stored.flops_s) == (1, 2, 0, 2500)
    assumed = ops.gemm_rates(unmeasured, GPU, Dtype.FP8).quantized
    assert (assumed.input_bytes, assumed.convert_s, assumed.flops_s) == (1, 0, 10_000)


# --- elementwise work, all-reduce, attention


def test_elementwise_traffic_of_dense_routed_and_latent_layers() -> None:
    """8 hidden, 3 intermediate, queries and keys read and written; bf16."""
    assert ops.elementwise_bytes_per_token(SMALL, 1) == 2 * (64 + 36 + 2 * 6 * 2)
    assert ops.elementwise_bytes_per_token(SMALL, 2) == 2 * (64 + 18 + 2 * 3 * 2)
    assert ops.elementwise_bytes_per_token(SMALL, 4) == 2 * (64 + 9 + 2 * 2 * 2)  # a KV head on two ranks
    moe = MixtureOfExperts(experts=4, active=3, intermediate=5, shared_intermediate=7)
    routed = replace(SMALL, moe=moe)
    assert ops.elementwise_bytes_per_token(routed, 1) == ops.elementwise_bytes_per_token(SMALL, 1)
    gated = 3 * 5 + 7
    assert ops.elementwise_bytes_per_token(routed, 1, routed=True) == 2 * (64 + 3 * gated + 24 + 4 * 8)
    mla = LatentAttention(q_rank=6, kv_rank=10, rope_dim=2, nope_dim=3, v_dim=4)
    latent = replace(SMALL, latent=mla)
    assert ops.elementwise_bytes_per_token(latent, 1) == 2 * (64 + 36 + 2 * (5 * 2 + 6 + 10))
    found = ops.elementwise_s(CALIBRATION.elementwise, GPU, SMALL, 1, counts(0, 1, 5), routed=False)
    assert found == pytest.approx([0.0, 2 + 248 / 500, 2 + 5 * 248 / 500])


def test_an_all_reduce_takes_one_shot_or_two() -> None:
    """1 s, then bytes / 10 or 6 s and bytes / 40: equal at 80 bytes."""
    found = ops.all_reduce_s(CALIBRATION.all_reduce[2], counts(0, 40, 80, 120))
    assert found == pytest.approx([0.0, 5.0, 9.0, 10.0])


def test_attention_counts_of_heads_and_of_a_latent_vector() -> None:
    whole = ops.attention_counts(SMALL, 1, Dtype.FP8)
    assert (whole.kv_heads, whole.kv_bytes, whole.query_bytes, whole.pair_flops) == (2, 8, 32, 32)
    assert (whole.prefill_kv_bytes, whole.prefill_query_bytes, whole.prefill_pair_flops) == (8, 32, 32)
    part = ops.attention_counts(SMALL, 4, Dtype.BF16)
    assert (part.kv_heads, part.kv_bytes, part.query_bytes, part.pair_flops) == (1, 8, 8, 8)
    mla = LatentAttention(q_rank=6, kv_rank=10, rope_dim=2, nope_dim=3, v_dim=4)
    latent = ops.attention_counts(replace(SMALL, latent=mla), 2, Dtype.BF16)
    assert (latent.kv_heads, latent.kv_bytes) == (1, 24)
    assert (latent.query_bytes, latent.pair_flops) == (2 * (12 + 10) * 2, 2 * 2 * (12 + 10))
    expanded = (latent.prefill_kv_bytes, latent.prefill_query_bytes, latent.prefill_pair_flops)
    assert expanded == (2 * (5 + 4) * 2, 2 * (5 + 4) * 2, 2 * 2 * (5 + 4))


def test_attention_is_priced_per_count_over_all_layers() -> None:
    cost = ops.attention_cost(CALIBRATION, GPU, SMALL, 1, Dtype.BF16)
    assert cost.launch_s == pytest.approx(21)
    assert cost.request_s == pytest.approx(3 * 2 * 0.3)
    assert cost.kv_token_s == pytest.approx(3 * 16 / 800)
    assert cost.query_s == pytest.approx(3 * 32 / 800)
    assert cost.pair_s == pytest.approx(3 * 32 / 5000)
    assert cost.prefill_query_s == pytest.approx(3 * 32 / 400)
    assert cost.prefill_kv_token_s == pytest.approx(3 * 16 / 400)
    assert cost.prefill_pair_s == pytest.approx(3 * 32 / 5000)
    assert (cost.p, cost.local, cost.window) == (1.5, 0.0, UNBOUNDED)
    near = replace(SMALL, window=SlidingWindow(tokens=50, layers=2))
    windowed = ops.attention_cost(CALIBRATION, GPU, near, 1, Dtype.BF16)
    assert (windowed.local, windowed.window) == (pytest.approx(2 / 3), 50)


def test_an_fp8_cache_has_its_own_fit_where_it_was_measured() -> None:
    own = replace(CALIBRATION.attention, t0_s=figure(1.0))
    measured = replace(CALIBRATION, attention_fp8=own)
    assert ops.attention_fit(measured, Dtype.FP8) is own
    assert ops.attention_fit(measured, Dtype.BF16) is CALIBRATION.attention
    assert ops.attention_fit(CALIBRATION, Dtype.FP8) is CALIBRATION.attention


def test_tokens_are_padded_to_the_next_graph() -> None:
    tokens = np.array([0, 1, 2, 3, 4, 5, 8, 9, 100])
    assert list(ops.padded(tokens, (2, 4, 8))) == [0, 2, 2, 4, 4, 8, 8, 9, 100]
    assert list(ops.padded(tokens, ())) == list(tokens)


# --- step costs


def cost_of(
    drafter: Drafter | None = None,
    *,
    traits: EngineTraits = EAGER,
    tp: int = 1,
    most: tuple[int, int, int] = (6, 1, 0),
    calibration: Calibration = CALIBRATION,
    model: Model = MODEL,
) -> StepCost:
    return step_cost(Setup(GPU, model, drafter, calibration, tp, traits), *most)


def gemm(m: float, n: int, k: int) -> float:
    return 3 + float(np.hypot(2 * (n * k + m * (n + k)) / 500, 2 * m * n * k / 2500))


def body(m: float) -> float:
    """A layer of SMALL without attention: QKV of 4 + 2 x 2 heads of 2, output, gate and up, down."""
    matrices = gemm(m, 16, 8) + gemm(m, 8, 8) + gemm(m, 24, 8) + gemm(m, 8, 12)
    return matrices + 2 + m * 248 / 500


def test_a_step_without_a_drafter() -> None:
    cost = cost_of()
    assert cost.tables.shape == (5, 7)
    assert cost.tables[TARGET] == pytest.approx([0, *(3 * body(m) for m in range(1, 7))])
    assert cost.tables[HEAD] == pytest.approx([0, *(gemm(m, 20, 8) for m in range(1, 7))])
    assert not cost.tables[[DRAFT_FIRST, DRAFT_NEXT, DRAFT_HEAD]].any()
    assert (cost.graph_tokens, cost.graph_floor_s, cost.eager_floor_s) == (0, 0.0, 39.0)
    assert (cost.sample_step_s, cost.verify_sample_step_s) == (0.4, 0.6)
    assert (cost.sample_row_s, cost.verify_sample_row_s) == pytest.approx((20 / 500 * 10, 20 / 500 * 20))
    assert (cost.host_step_s, cost.host_request_s, cost.exposed_s) == (5.0, 0.9, 0.2)
    assert (cost.lookup_request_s, cost.lookup_token_s) == (0.11, 0.013)
    assert (cost.drafter, cost.overlap, cost.verify_request_s) == (NO_DRAFTER, 0.0, 0.0)
    drafting = (cost.draft_pass_s, cost.draft_eager_pass_s, cost.draft_passes, cost.draft_masks)
    assert drafting == (0.0, 0.0, 0, 0)
    assert (cost.draft_catches_up, cost.draft_width, cost.draft_reach) == (False, 1, UNBOUNDED)
    assert (cost.lookups, cost.drafter_at, cost.switch_s) == (0, 0, 0.0)


def test_launches_of_captured_and_piecewise_graphs() -> None:
    cost = cost_of(traits=EngineTraits(capture_sizes=(2, 4)))
    assert cost.tables[TARGET] == pytest.approx([0, *(3 * body(m) for m in (2, 2, 4, 4, 5, 6))])
    assert (cost.graph_tokens, cost.graph_floor_s, cost.eager_floor_s, cost.overlap) == (4, 0.0, 39.0, 1.0)
    pieces = cost_of(traits=EngineTraits(capture_sizes=(2, 4), piecewise=True))
    assert (pieces.graph_floor_s, pieces.eager_floor_s) == (19.5, 39.0)


def test_two_ranks_share_the_matrices_and_reduce_twice_a_layer() -> None:
    """Messages are 8 bf16 values a token; of the LM head, half an all-reduce of 20 a row."""
    cost = cost_of(tp=2)
    for m in (1, 6):
        matrices = gemm(m, 8, 8) + gemm(m, 8, 4) + gemm(m, 12, 8) + gemm(m, 8, 6)
        elementwise = 2 + m * 2 * (64 + 18 + 12) / 500
        sent = m * 16
        reduced = 1 + min(sent / 10, 6 + sent / 40)
        assert cost.tables[TARGET, m] == pytest.approx(3 * (matrices + elementwise + 2 * reduced))
        gathered = 1 + min(m * 20 / 10, 6 + m * 20 / 40)
        assert cost.tables[HEAD, m] == pytest.approx(gemm(m, 10, 8) + gathered)


@pytest.mark.parametrize(
    ("drafter", "most", "counted"),
    [
        (None, (100, 8, 3), 100),
        (None, (20, 8, 3), 40),  # a token decided, K and one more of every request
        (None, (0, 0, 0), 2),
        (head(), (100, 8, 3), 100),
        (PARALLEL, (100, 8, 3), 124),  # and a mask a draft
        (PARALLEL, (1, 8, 3), 40),
    ],
)
def test_tables_reach_as_far_as_a_step(
    drafter: Drafter | None, most: tuple[int, int, int], counted: int
) -> None:
    assert cost_of(drafter, most=most).tables.shape == (5, counted + 1)


DRAFT = replace(SMALL, layers=1, vocab=30)
EAGLE = head(decoder=DRAFT, fused_hidden=2, fuses_every_pass=True)


def argmax(m: float) -> float:
    """The LM head of 30 words, and a reading of its bf16 logits."""
    return gemm(m, 30, 8) + m * 30 / 500 * 2


def test_a_head_fuses_hidden_states_and_reads_its_logits() -> None:
    cost = cost_of(EAGLE)
    fused = [0, *(body(m) + gemm(m, 8, 16) for m in range(1, 7))]
    assert cost.tables[DRAFT_FIRST] == pytest.approx(fused)
    assert cost.tables[DRAFT_NEXT] == pytest.approx(fused)
    assert cost.tables[DRAFT_HEAD] == pytest.approx([0, *(argmax(m) for m in range(1, 7))])
    assert (cost.drafter, cost.verify_request_s) == (MODEL_DRAFTER, 0.35)
    assert (cost.draft_pass_s, cost.draft_eager_pass_s, cost.draft_catches_up) == (11.0, 11.0, True)
    assert (cost.draft_passes, cost.draft_width, cost.draft_masks) == (0, 1, 0)
    assert cost.draft_attention.launch_s == 7.0
    once = cost_of(replace(EAGLE, fuses_every_pass=False))
    assert once.tables[DRAFT_FIRST] == pytest.approx(fused)
    assert once.tables[DRAFT_NEXT] == pytest.approx([0, *(body(m) for m in range(1, 7))])


def test_forms_of_drafting() -> None:
    tree = cost_of(replace(TREE, decoder=DRAFT))
    assert (tree.draft_passes, tree.draft_width, tree.draft_masks) == (3, 4, 0)
    parallel = cost_of(replace(PARALLEL, decoder=DRAFT))
    assert (parallel.draft_passes, parallel.draft_width, parallel.draft_masks) == (1, 1, 1)
    captured = cost_of(EAGLE, traits=replace(EAGER, captured_drafts=True))
    assert (captured.draft_pass_s, captured.draft_eager_pass_s) == (0.0, 11.0)
    lookup = cost_of(load_drafter("ngram", load_model("llama-3.1-8b")))
    assert (lookup.drafter, lookup.draft_catches_up, lookup.verify_request_s) == (LOOKUP_DRAFTER, False, 0.0)
    host = replace(CALIBRATION.host, draft_step_s=figure(17.0))
    step = cost_of(EAGLE, calibration=replace(CALIBRATION, host=host))
    assert step.tables[DRAFT_FIRST] == pytest.approx(
        cost_of(EAGLE).tables[DRAFT_FIRST] + 17 * (np.arange(7) > 0)
    )
    assert step.tables[DRAFT_NEXT] == pytest.approx(cost_of(EAGLE).tables[DRAFT_NEXT])


def test_the_target_drafts_for_itself_on_a_part_of_its_cache() -> None:
    traits = EngineTraits(capture_sizes=(2, 4), piecewise=True)
    cost = cost_of(replace(SELF, kv_budget=9), traits=traits)
    assert np.array_equal(cost.tables[DRAFT_NEXT], cost.tables[TARGET])
    assert cost.tables[DRAFT_HEAD, 3] == pytest.approx(gemm(3, 20, 8) + 3 * 20 / 500 * 2)
    assert (cost.draft_attention, cost.draft_reach) == (cost.attention, 9)
    assert (cost.draft_pass_s, cost.draft_eager_pass_s, cost.draft_catches_up) == (19.5, 39.0, False)
    assert cost_of(replace(SELF, kv_budget=None)).draft_reach == UNBOUNDED


@pytest.mark.parametrize(
    ("proposer", "kind", "expected_s"),
    [
        ("eagle", DrafterKind.HEAD, 11.0),
        ("eagle-tree", DrafterKind.HEAD, 11.0),
        ("mtp", DrafterKind.HEAD, 11.0 + 2 * 13),  # a launch for each layer beyond its first
        ("draft-model", DrafterKind.MODEL, 3 * 13),
    ],
)
def test_host_time_of_a_pass(proposer: str, kind: DrafterKind, expected_s: float) -> None:
    drafter = replace(EAGLE, proposer=proposer, kind=kind, decoder=SMALL)
    assert cost_of(drafter).draft_pass_s == expected_s


# --- the model's own


def priced(**changed: object) -> LatencyModel:
    return LatencyModel(GPU, MODEL, None, replace(CALIBRATION, **changed), traits=EAGER)  # type: ignore[arg-type]  # passed through


def test_grids_are_priced_on_tables_as_long_as_their_longest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Largest counts apart: tokens of decodes and prompts, requests of both or that draft, K by rows."""
    sizes = []
    compiled = LatencyModel.compile

    def compile_(self: LatencyModel, *most: int) -> StepCost:
        sizes.append(most)
        return compiled(self, *most)

    monkeypatch.setattr(LatencyModel, "compile", compile_)
    model = priced()
    for shape in (
        StepShape(
            np.array([1, 3]), np.array([8, 4]), 9, 9, np.array([2, 0]), np.array([0, 5]), sampled_rows=11
        ),
        StepShape(1, 8, 9, 9, 1, 5, sampled_rows=9, draft_requests=4),
        StepShape(0, 0, 0, 0, sampled_rows=3),
        StepShape(0, 0, 0, 0, sampled_rows=3),
    ):
        model.step_seconds(shape)
    assert sizes == [(13, 5, 3), (13, 4, 3), (0, 1, 4)]


def test_ceilings_and_ridge_are_those_of_the_layers_format() -> None:
    """10,000 flops at 0.25 over 1,000 B/s at 0.5 are 5 flops a byte."""
    ceilings = priced().ceilings()
    assert ceilings == Ceilings(10_000, 1000, 0.25, 0.5)
    assert ceilings.ridge_flops_per_byte == pytest.approx(5.0)
    fp8 = LatencyModel(GPU, replace(MODEL, weight_dtype=Dtype.FP8), None, CALIBRATION, traits=EAGER)
    assert fp8.ceilings() == Ceilings(40_000, 1000, 0.5, 0.8)


def test_the_band_is_of_both_sources_with_their_hosts() -> None:
    slow = replace(GEMM, t0_s=figure(4.0))
    host = replace(CALIBRATION.host, step_s=figure(1.0))
    model = priced(gemm_alternate=slow, host_alternate=host)
    shape = StepShape.decode(1, 0, 10)
    own = float(model.step_seconds(shape).total_s)
    low, high = model.band(shape)
    # 3 layers of 4 products and the head take a second more each, the host 4 less
    assert (float(low), float(high)) == (pytest.approx(own), pytest.approx(own + 13 - 4))
    assert [float(end) for end in priced().band(shape)] == [own, own]
    quick = priced(gemm_alternate=replace(GEMM, t0_s=figure(2.0)), host_alternate=host)
    assert [float(end) for end in quick.band(shape)] == pytest.approx([own - 13 - 4, own])


@pytest.mark.parametrize(("tp", "known"), [(4, "1, 2"), (2, "1")])
def test_ranks_without_an_all_reduce_are_refused(tp: int, known: str) -> None:
    reduce = {2: CALIBRATION.all_reduce[2]} if tp == 4 else {}
    calibration = replace(CALIBRATION, all_reduce=reduce)
    with pytest.raises(InputError, match=f"got {tp}, the calibration covers {known}; use one"):
        LatencyModel(GPU, MODEL, None, calibration, tp)


# --- memory


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
