"""The compiled step against the roofline written out a second time, in plain Python, from the profiles."""

from __future__ import annotations

import math
from dataclasses import astuple, fields

import numpy as np
import pytest

from kplan.latency import EngineTraits, LatencyModel, StepShape, step_parts
from kplan.profiles import Decoder, Drafter, DrafterKind
from tests.latency.settings import LATENT, MTP, PARALLEL, SELF, TREE, WINDOWED, built, latency
from tests.latency.settings import head as eagle_head

SIZES = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256)


def gemm(model: LatencyModel, m: float, n: float, k: float) -> float:
    if m <= 0:
        return 0.0
    fit = model.calibration.gemm
    memory = 2 * (m * k + n * k + m * n) / (model.hardware.bandwidth_bytes_s.value * fit.bandwidth_eff.value)
    compute = 2 * m * n * k / (model.hardware.peak_flops.value * fit.flops_eff.value)
    p = fit.p.value
    return fit.t0_s.value + math.exp(math.log(memory**p + compute**p) / p)


def layers(model: LatencyModel, d: Decoder, tokens: float) -> float:
    tp, bandwidth = model.tp, model.hardware.bandwidth_bytes_s.value
    if tokens <= 0:
        return 0.0
    kv = max(1, d.kv_heads // tp)
    heads = d.heads // tp
    matrices = (
        gemm(model, tokens, (heads + 2 * kv) * d.head_dim, d.attention_inputs * d.hidden)
        + gemm(model, tokens, d.hidden, heads * d.head_dim)
        + gemm(model, tokens, 2 * d.intermediate / tp, d.hidden)
        + gemm(model, tokens, d.hidden, d.intermediate / tp)
    )
    moved = 2 * (8 * d.hidden + 3 * d.intermediate / tp + 2 * (heads + kv) * d.head_dim)
    elementwise = model.calibration.elementwise
    rest = elementwise.t0_s.value + tokens * moved / (bandwidth * elementwise.bandwidth_eff.value)
    if tp > 1:
        rest += 2 * all_reduce(model, tokens * d.hidden * 2)
    return d.layers * (matrices + rest)


def all_reduce(model: LatencyModel, sent: float) -> float:
    fit = model.calibration.all_reduce[model.tp]
    one_shot = sent / fit.one_shot_bytes_per_s.value
    return fit.t0_s.value + min(one_shot, fit.two_shot_s.value + sent / fit.bytes_per_s.value)


def head(model: LatencyModel, d: Decoder, rows: float) -> float:
    if rows <= 0:
        return 0.0
    seconds = gemm(model, rows, d.vocab / model.tp, d.hidden)
    if model.tp > 1:
        seconds += all_reduce(model, rows * d.vocab)
    return seconds


def attention(model: LatencyModel, d: Decoder, shape: tuple[float, ...]) -> float:
    requests, queries, kv, pairs, prompts, prompt_kv, prompt_pairs = shape
    fit, bandwidth = model.calibration.attention, model.hardware.bandwidth_bytes_s.value
    peak = model.hardware.peak_flops.value * fit.flops_eff.value
    kv_heads, heads = max(1, d.kv_heads // model.tp), d.heads // model.tp
    query_bytes, kv_bytes = 2 * heads * d.head_dim * 2, 2 * kv_heads * d.head_dim * 2
    decode = 0.0
    if requests > 0:
        tiles = requests * kv_heads * fit.tile_s.value
        traffic = (kv * kv_bytes + queries * query_bytes) / (bandwidth * fit.bandwidth_eff.value)
        p = fit.p.value
        decode = max((tiles**p + traffic**p) ** (1 / p), 4 * heads * d.head_dim * pairs / peak)
    prefill = (prompts * query_bytes + prompt_kv * kv_bytes) / (bandwidth * fit.prefill_bandwidth_eff.value)
    prefill += 4 * heads * d.head_dim * prompt_pairs / peak
    return d.layers * (fit.t0_s.value + decode + prefill)


def padded(tokens: float) -> float:
    return next((size for size in SIZES if size >= tokens), tokens)


def expected(model: LatencyModel, shape: StepShape) -> tuple[float, float, float, float]:
    (requests, queries, kv, pairs, prompts_n, prompts, prompt_kv, prompt_pairs, rows, drafts, k) = map(
        float, astuple(shape)
    )
    calibration, d = model.calibration, model.model.decoder
    host, sampler = calibration.host, calibration.sampler
    tokens = queries + prompts
    seen = (requests, queries, kv, pairs, prompts, prompt_kv, prompt_pairs)
    verify = layers(model, d, padded(tokens)) + head(model, d, rows) + attention(model, d, seen)
    if tokens > SIZES[-1]:
        verify = max(verify, host.layer_s.value * d.layers)
    logits = d.vocab / (model.hardware.bandwidth_bytes_s.value * calibration.elementwise.bandwidth_eff.value)
    verifies = queries > requests
    fixed, per_logit = (
        (sampler.verify_step_s, sampler.verify_bytes_per_logit)
        if verifies
        else (sampler.step_s, sampler.bytes_per_logit)
    )
    sampling = fixed.value + rows * logits * per_logit.value
    draft = extra = 0.0
    drafter = model.drafter
    if drafter is not None and drafter.kind is DrafterKind.LOOKUP:
        if k > 0:
            draft = drafts * host.lookup_request_s.value + (kv + prompt_kv) * host.lookup_token_s.value
    elif drafter is not None:
        e = drafter.decoder
        assert e is not None
        own_logits = logits / d.vocab * e.vocab
        launch = (
            host.layer_s.value * e.layers
            if drafter.kind is DrafterKind.MODEL
            else host.pass_s[drafter.proposer].value
        )
        fused = drafter.fused_hidden * e.hidden
        argmax = head(model, e, drafts) + drafts * own_logits * 2 if k > 0 and drafts > 0 else 0.0
        first = layers(model, e, padded(tokens)) + argmax + attention(model, e, seen)
        if fused:
            first += gemm(model, padded(tokens), e.hidden, fused)
        draft = max(launch, first)
        if k > 1 and drafts > 0:
            one = (drafts, drafts, kv + prompt_kv, kv + prompt_kv, 0.0, 0.0, 0.0)
            later = layers(model, e, padded(drafts)) + argmax + attention(model, e, one)
            if drafter.fuses_every_pass:
                later += gemm(model, padded(drafts), e.hidden, fused)
            draft += (k - 1) * max(launch, later)
        extra = requests * host.verify_request_s.value if verifies else 0.0
    scheduling = host.step_s.value + (requests + prompts_n) * host.request_s.value
    if model.traits.async_scheduling:
        scheduling = max(host.exposed_s.value, scheduling - verify - draft - sampling)
    return verify, draft, sampling, scheduling + extra


SETTINGS = [
    ("llama-3.1-8b", None, 1, True),
    ("llama-3.1-8b", "eagle", 1, True),
    ("llama-3.1-8b", "eagle3", 2, False),
    ("llama-3-70b", "eagle", 8, False),
    ("llama-3-70b", "draft-model", 4, True),
    ("qwen3-8b", "draft-model", 1, False),
    ("qwen3-8b", "ngram", 1, False),
    ("qwen3-0.6b", None, 1, True),
]


@pytest.mark.parametrize(("name", "proposer", "tp", "overlap"), SETTINGS)
def test_compiled_step_is_the_roofline(name: str, proposer: str | None, tp: int, overlap: bool) -> None:
    model = latency(proposer, name, tp, EngineTraits(capture_sizes=SIZES, async_scheduling=overlap))
    rng = np.random.default_rng(7)
    for _ in range(60):
        requests, k = int(rng.integers(0, 400)), int(rng.integers(0, 9))
        queries = requests * (k + 1)
        kv = requests * int(rng.integers(1, 20_000))
        prompts_n = int(rng.integers(0 if requests else 1, 3))
        prompts = prompts_n * int(rng.integers(1, 2000))
        shape = StepShape(
            requests,
            queries,
            kv,
            kv * (k + 1),
            prompts_n,
            prompts,
            prompts + 100 * prompts_n,
            prompts * 300.0,
            queries + prompts_n,
            requests + prompts_n,
            k,
        )
        wanted = expected(model, shape)
        got = model.step_seconds(shape)
        parts = (got.verify_s, got.draft_s, got.sampling_s, got.overhead_s)
        assert [float(part) for part in parts] == pytest.approx(wanted, rel=1e-9)


def test_a_step_beyond_the_tables_is_priced_along_their_last_slope() -> None:
    model = latency("eagle")
    small, whole = model.compile(2048, 64, 3), model.compile(40_000, 1024, 7)
    for tokens in (3000, 20_000):
        counts = (0, 0, 0, 0, 1, tokens, tokens, tokens * tokens / 2, 1, 1, 3)
        beyond, exact = sum(step_parts(small, *counts)), sum(step_parts(whole, *counts))
        assert beyond == pytest.approx(exact, rel=0.02)
    for batch in (100, 1000):
        counts = (batch, 4 * batch, 300 * batch, 1200 * batch, 0, 0, 0, 0.0, 4 * batch, batch, 3)
        beyond, exact = sum(step_parts(small, *counts)), sum(step_parts(whole, *counts))
        assert beyond == pytest.approx(exact, rel=0.05)


def test_a_grid_is_its_cells() -> None:
    model = latency("eagle")
    batch, k, context = np.array([1, 7, 130]), np.array([0, 2, 5]), np.array([10, 3000])
    grid = model.step_seconds(
        StepShape.decode(batch[:, None, None], k[None, :, None], context[None, None, :])
    ).total_s
    assert grid.shape == (3, 3, 2)
    for i, j, c in np.ndindex(grid.shape):
        cell = model.step_seconds(StepShape.decode(int(batch[i]), int(k[j]), int(context[c]))).total_s
        assert float(grid[i, j, c]) == pytest.approx(float(cell), rel=1e-12)


@pytest.mark.parametrize("drafter", [None, eagle_head(), TREE, PARALLEL, SELF, MTP])
@pytest.mark.parametrize("decoder", [LATENT, WINDOWED])
def test_a_grid_of_mixed_steps_is_the_compiled_step(drafter: Drafter | None, decoder: Decoder) -> None:
    model = built(decoder, drafter, traits=EngineTraits(capture_sizes=SIZES))
    rng = np.random.default_rng(3)
    requests, prompts = rng.integers(0, 300, (5, 1)), rng.integers(0, 3, (1, 4))
    k = rng.integers(0, 8, (5, 4))
    queries, kv, chunks = requests * (1 + k[:, :1]), requests * 3000, prompts * 700
    shape = StepShape(
        requests, queries, kv, queries * 3000, prompts, chunks, chunks * 2, chunks * 1050.5,
        queries + prompts, requests + prompts, k,
    )  # fmt: skip
    grid = model.step_seconds(shape)
    cost = model.compile(8192, 512, 8)
    columns = np.broadcast_arrays(*(getattr(shape, field.name) for field in fields(shape)))
    for at in np.ndindex(5, 4):
        cell = step_parts(cost, *(column[at] for column in columns))
        found = [part[at] for part in (grid.verify_s, grid.draft_s, grid.sampling_s, grid.overhead_s)]
        assert found == pytest.approx(cell, rel=1e-12)


def test_work_counts_two_flops_per_weight_and_token() -> None:
    # Independent count: every weight but the embedding is multiplied once per token; weights are read once.
    model = latency()
    work = model.work(StepShape.decode(10, 0, 0))
    multiplied = model.model.params - model.model.decoder.vocab * model.model.decoder.hidden
    norms = (2 * model.model.decoder.layers + 1) * model.model.decoder.hidden
    assert float(work.flops) == pytest.approx(20 * (multiplied - norms), rel=1e-12)
    assert float(work.bytes) == pytest.approx(2 * (multiplied - norms), rel=1e-12)


def test_a_large_grid_is_priced_as_its_parts() -> None:
    """Large grids are shared out over threads, cut along their first axis; an odd length does not divide."""
    model = latency("eagle")
    batch, k, context = np.arange(1, 204), np.arange(16), np.linspace(64, 32_768, 40).astype(np.int64)

    def priced(some: np.ndarray) -> np.ndarray:
        shape = StepShape.decode(some[:, None, None], k[None, :, None], context[None, None, :])
        return np.asarray(model.step_seconds(shape).total_s)

    whole = priced(batch)
    assert whole.size * 4 > 400_000
    few = np.concatenate([priced(batch[at : at + 29]) for at in range(0, 203, 29)])
    assert np.array_equal(whole, few)
