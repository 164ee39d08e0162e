"""Every kind of drafter against its passes, each priced as a step of the model that makes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import EngineTraits, LatencyModel, StepShape
from kplan.profiles import Drafter, DrafterKind, load_calibration, load_drafter, load_model
from kplan.provenance import Figure, Kind, Provenance
from tests.latency.settings import LATENT, LLAMA, MTP, PARALLEL, ROUTED, SELF, TREE, WINDOWED, built, head

BATCH, CONTEXT = 64, 6000
BANDWIDTH, ELEMENTWISE_EFF = 3.35e12, 0.930471
HOST = load_calibration("h100-sxm").host
EAGLE_S, EAGLE3_S = (HOST.pass_s[name].value for name in ("eagle", "eagle3"))
LAYER_S = HOST.layer_s.value
KNOWN = Provenance(Kind.ASSUMED, "test")


def quiet() -> object:
    """The calibration without host time: the GPU's share of every pass shows."""
    calibration = load_calibration("h100-sxm")
    zero = Figure(0.0, KNOWN)
    host = replace(calibration.host, pass_s=dict.fromkeys(calibration.host.pass_s, zero), layer_s=zero)
    return replace(calibration, host=host)


QUIET = quiet()


def model_of(drafter: Drafter | None, decoder: object = LLAMA) -> LatencyModel:
    return built(decoder, drafter, calibration=QUIET)  # type: ignore[arg-type]  # passed through


def draft_s(drafter: Drafter, shape: StepShape, decoder: object = LLAMA) -> float:
    return float(model_of(drafter, decoder).step_seconds(shape).draft_s)


def pass_s(
    drafter: Drafter, requests: int, tokens: int, kv: int, pairs: int, rows: int, fuses: bool
) -> float:
    """A pass of a drafter that is a model of its own: a target step, the projection and the argmax."""
    assert drafter.decoder is not None
    shape = StepShape(requests, tokens, kv, pairs, sampled_rows=rows)
    step = float(model_of(None, drafter.decoder).step_seconds(shape).verify_s)
    argmax = rows * drafter.decoder.vocab * 2 / (BANDWIDTH * ELEMENTWISE_EFF)
    return step + argmax + (fusion_s(drafter, tokens) if fuses else 0.0)


def fusion_s(drafter: Drafter, m: int) -> float:
    fit = load_calibration("h100-sxm").gemm
    assert drafter.decoder is not None
    n = drafter.decoder.hidden
    k = drafter.fused_hidden * n
    memory = 2 * (n * k + m * (n + k)) / (BANDWIDTH * fit.bandwidth_eff.value)
    compute = 2 * m * n * k / (989.4e12 * fit.flops_eff.value)
    return fit.t0_s.value + float(np.linalg.norm([memory, compute], ord=fit.p.value))


KV = BATCH * CONTEXT


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize(
    "drafter", [head(), MTP, head(kind=DrafterKind.MODEL, fused_hidden=0, decoder=ROUTED)]
)
def test_a_chain_makes_k_passes_the_first_over_all_tokens(drafter: Drafter, k: int) -> None:
    queries, fuses = BATCH * (k + 1), drafter.fused_hidden > 0
    first = pass_s(drafter, BATCH, queries, KV, queries * CONTEXT, BATCH if k else 0, fuses)
    later = pass_s(drafter, BATCH, BATCH, KV, KV, BATCH, fuses)
    expected = first + max(k - 1, 0) * later
    assert draft_s(drafter, StepShape.decode(BATCH, k, CONTEXT)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("k", [1, 6, 12])
def test_a_tree_makes_its_depth_of_passes_over_its_branches(k: int) -> None:
    # Depth 3 and 4 branches, whatever part of its nodes the target verifies.
    queries = BATCH * (k + 1)
    first = pass_s(TREE, BATCH, queries, KV, queries * CONTEXT, BATCH, True)
    later = pass_s(TREE, BATCH, 4 * BATCH, KV, 4 * KV, 4 * BATCH, True)
    shape = StepShape.decode(BATCH, k, CONTEXT)
    assert draft_s(TREE, shape) == pytest.approx(first + 2 * later, rel=1e-6)
    chain = model_of(head()).step_seconds(shape)
    assert float(model_of(TREE).step_seconds(shape).verify_s) == float(chain.verify_s)


@pytest.mark.parametrize("k", [1, 4, 7])
def test_a_parallel_drafter_makes_one_pass_over_k_masks_per_request(k: int) -> None:
    queries = BATCH * (k + 1)
    tokens, pairs = queries + BATCH * k, queries * CONTEXT + k * KV
    expected = pass_s(PARALLEL, BATCH, tokens, KV, pairs, BATCH * k, False)
    assert draft_s(PARALLEL, StepShape.decode(BATCH, k, CONTEXT)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("drafter", [TREE, PARALLEL, MTP])
def test_a_drafter_with_a_cache_catches_up_at_k0(drafter: Drafter) -> None:
    once = pass_s(drafter, BATCH, BATCH, KV, KV, 0, drafter.fused_hidden > 0)
    assert draft_s(drafter, StepShape.decode(BATCH, 0, CONTEXT)) == pytest.approx(once, rel=1e-6)


@pytest.mark.parametrize("decoder", [LLAMA, LATENT, ROUTED])
@pytest.mark.parametrize("context", [100, 6000, 60_000])
def test_self_speculation_is_target_steps_on_a_part_of_the_cache(decoder: object, context: int) -> None:
    kv = BATCH * min(context, 512)
    target = model_of(None, decoder)
    step = float(target.step_seconds(StepShape(BATCH, BATCH, kv, kv, sampled_rows=BATCH)).verify_s)
    argmax = BATCH * target.model.decoder.vocab * 2 / (BANDWIDTH * ELEMENTWISE_EFF)
    for k in (0, 1, 4):
        shape = StepShape.decode(BATCH, k, context)
        assert draft_s(SELF, shape, decoder) == pytest.approx(k * (step + argmax), rel=1e-9)


def test_self_speculation_adds_nothing_to_a_step_that_does_not_draft() -> None:
    shape = StepShape(8, 8, 8000, 8000, 1, 500, 500, 125_000, 9, 9, 0)
    off, own = built().step_seconds(shape), built(drafter=SELF).step_seconds(shape)
    assert float(own.total_s) == float(off.total_s)


def test_self_speculation_runs_in_the_graphs_of_the_target() -> None:
    # 28 small layers: eager launches take longer than their work, captured ones do not wait for them.
    small = load_model("qwen3-0.6b").decoder
    traits = EngineTraits(capture_sizes=(1, 2, 4, 8))
    captured, eager = (
        float(built(small, SELF, traits=traits).step_seconds(StepShape.decode(n, 1, 10)).draft_s)
        for n in (8, 9)
    )
    assert eager == pytest.approx(28 * LAYER_S, rel=1e-9)
    argmax = 8 * 151_936 * 2 / (BANDWIDTH * ELEMENTWISE_EFF)
    step = float(model_of(None, small).step_seconds(StepShape.decode(8, 0, 10)).verify_s)
    assert captured == pytest.approx(step + argmax, rel=1e-9)
    assert captured < eager


@pytest.mark.parametrize("drafter", [head(), MTP, head(kind=DrafterKind.MODEL, fused_hidden=0)])
def test_a_prompt_chunk_passes_the_drafter_too(drafter: Drafter) -> None:
    # A chunk of 2,048 tokens with nothing before it, nothing drafted: the drafter's own prefill.
    assert drafter.decoder is not None
    shape = StepShape(0, 0, 0, 0, 1, 2048, 2048, 2048**2 / 2, 1, 1, 0)
    prefill = float(model_of(None, drafter.decoder).step_seconds(replace(shape, sampled_rows=0)).verify_s)
    projection = fusion_s(drafter, 2048) if drafter.fused_hidden else 0.0
    assert draft_s(drafter, shape) == pytest.approx(prefill + projection, rel=1e-9)
    assert draft_s(SELF, shape) == 0.0


def test_a_windowed_drafter_stops_growing_with_context() -> None:
    decoder = replace(WINDOWED, layers=4, window=replace(WINDOWED.window, layers=4))  # type: ignore[type-var]  # it has one
    drafter = head(kind=DrafterKind.MODEL, fused_hidden=0, decoder=decoder)
    near, far = (draft_s(drafter, StepShape.decode(16, 3, context)) for context in (2000, 200_000))
    assert near == far


# --- host time


@pytest.mark.parametrize(
    ("proposer", "kind", "layers", "expected_s"),
    [
        ("eagle3", DrafterKind.HEAD, 1, EAGLE3_S),
        ("eagle3-tree", DrafterKind.HEAD, 1, EAGLE3_S),  # the head is EAGLE-3's
        ("mtp", DrafterKind.HEAD, 1, EAGLE_S),  # EAGLE's
        ("pard", DrafterKind.PARALLEL, 16, EAGLE_S + 15 * LAYER_S),
        ("draft-model", DrafterKind.MODEL, 16, 16 * LAYER_S),
    ],
)
def test_a_pass_is_no_shorter_than_its_launch(
    proposer: str, kind: DrafterKind, layers: int, expected_s: float
) -> None:
    tiny = replace(
        LLAMA, layers=layers, hidden=64, heads=1, kv_heads=1, head_dim=64, intermediate=64, vocab=64
    )
    drafter = head(proposer=proposer, kind=kind, decoder=tiny)
    shape = StepShape.decode(1, 1, 10)
    assert float(built(drafter=drafter).step_seconds(shape).draft_s) == pytest.approx(expected_s, rel=1e-9)


def test_a_drafter_that_cannot_be_priced_is_refused() -> None:
    with pytest.raises(InputError, match="needs a decoder"):
        built(drafter=head(decoder=None)).step_seconds(StepShape.decode(1, 1, 10))
    calibration = load_calibration("h100-sxm")
    silent = replace(calibration, host=replace(calibration.host, pass_s={"eagle3": Figure(1e-3, KNOWN)}))
    with pytest.raises(InputError, match="host times for eagle3"):
        built(drafter=MTP, calibration=silent).step_seconds(StepShape.decode(1, 1, 10))


# --- what it means


def best_k(drafter: Drafter, context: int, alpha: float = 0.7) -> int:
    """K with the most tokens per second at batch 128, every draft accepted with probability ``alpha``."""
    k = np.arange(9)
    traits = EngineTraits(capture_sizes=(1, 2, 4, *range(8, 513, 8)))
    model = built(drafter=drafter, tp=8, traits=traits)
    assert model.kv_capacity_tokens() > 128 * context
    tokens = (1 - alpha ** (k + 1)) / (1 - alpha)
    return int(np.argmax(tokens / model.step_seconds(StepShape.decode(128, k, context)).total_s))


def test_a_long_context_makes_a_large_batch_memory_bound_again() -> None:
    # MagicDec (arXiv:2408.11049): at a large batch speculation pays above a critical context length, and the
    # more the longer the context is; its 8-GPU runs of Llama 3.1 8B at batch 128 and 32k speed up 1.47 times.
    contexts = (250, 2000, 8000, 16_000, 32_000)
    own = [best_k(SELF, context) for context in contexts]
    eagle = [best_k(load_drafter("eagle", load_model("llama-3.1-8b")), context) for context in contexts]
    assert own[:2] == [0, 0]
    assert own[2] >= 1
    assert own[-1] >= 3
    assert eagle[-1] > eagle[0]
    for found in (own, eagle):
        assert found == sorted(found)
