"""What a step of each kind of drafter costs on a made GPU of round numbers, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import Ceilings, EngineTraits, LatencyModel, StepCost, StepShape
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
from kplan.latency.tables import Setup
from kplan.profiles import Calibration, Drafter, DrafterKind, Dtype, Model, load_drafter, load_model
from tests.latency.round_numbers import CALIBRATION, DRAFT, EAGLE, GEMM, GPU, MODEL, SMALL, figure, priced
from tests.latency.settings import EAGER, PARALLEL, SELF, TREE, head


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
