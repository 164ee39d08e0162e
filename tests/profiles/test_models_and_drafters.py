"""Profiles against numbers published elsewhere: parameters, memory added by drafters, KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.errors import InputError
from kplan.profiles import Dtype, load_drafter, load_model


@pytest.mark.parametrize(
    ("name", "params_billion"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3-70b", 70.6),
        ("llama-3.1-70b", 70.6),
        ("qwen3-8b", 8.19),
        ("llama-3.2-1b", 1.24),
        ("qwen3-0.6b", 0.596),
        ("qwen3-32b", 32.8),
        ("mixtral-8x7b", 46.7),
        ("deepseek-v2-lite", 15.7),
        ("gemma-3-27b", 27.0),  # 1,416M and 25,600M, as its report says, without the vision tower
    ],
)
def test_parameters_and_weight_bytes_are_the_published_ones(name: str, params_billion: float) -> None:
    model = load_model(name)
    assert model.params / 1e9 == pytest.approx(params_billion, rel=4e-3)  # published rounded
    assert model.weight_bytes() == pytest.approx(2e9 * params_billion, rel=4e-3)  # bf16


def test_routed_models_of_other_formats_have_the_published_totals() -> None:
    air, oss = load_model("glm-4.5-air"), load_model("gpt-oss-20b")
    assert air.params / 1e9 == pytest.approx(106, rel=0.01)
    # the checkpoint's 110B hold the MTP layer with copies of its own of embedding and head
    whole = air.params + load_drafter("mtp", air).params + 2 * 151552 * 4096
    assert whole / 1e9 == pytest.approx(110, rel=5e-3)
    assert oss.params / 1e9 == pytest.approx(20.9, rel=0.01)
    assert oss.weight_bytes() / 2**30 == pytest.approx(12.8, rel=0.075)  # published; attention is bf16 there


@pytest.mark.parametrize(
    ("name", "kib"),
    [("deepseek-v2-lite", 27 * 576 * 2 / 1024), ("glm-4.5-air", 184.0), ("gpt-oss-20b", 48.0)],
)
def test_kv_bytes_of_other_layouts(name: str, kib: float) -> None:
    model = load_model(name)
    assert model.kv_bytes_per_token() / 1024 == kib
    assert model.stored(None, Dtype.FP8).kv_bytes_per_token() / 1024 == kib / 2


def test_formats_shrink_the_matrices_of_the_layers_only() -> None:
    """Llama 3.1 8B: 6.98B parameters in matrices of layers, the rest (embedding, head, norms) stays bf16."""
    model = load_model("llama-3.1-8b")
    matrices = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    rest = 2 * (model.params - matrices)
    assert model.stored(Dtype.FP8, None).weight_bytes() == matrices + rest
    assert model.stored(Dtype.INT4, None).weight_bytes() == matrices * (0.5 + 4 / 128) + rest
    assert model.stored(None, None) == model


@pytest.mark.parametrize(
    ("target", "proposer", "added_percent", "tolerance"),
    [  # SpecDecode-Bench, static memory that each method adds to its target
        ("llama-3.1-8b", "eagle", 3.1, 0.05),
        ("llama-3.1-8b", "eagle3", 5.3, 0.05),
        ("llama-3-70b", "eagle", 1.4, 0.05),
        ("llama-3-70b", "draft-model", 1.8, 0.06),
        ("qwen3-8b", "eagle3", 4.9, 0.05),
        ("qwen3-8b", "draft-model", 7.3, 0.05),
        ("qwen3-8b", "ngram", 0.0, 0.0),
    ],
)
def test_memory_a_drafter_adds(target: str, proposer: str, added_percent: float, tolerance: float) -> None:
    model = load_model(target)
    added = load_drafter(proposer, model).weight_bytes() / model.weight_bytes() * 100
    assert added == pytest.approx(added_percent, abs=tolerance)


@pytest.mark.parametrize(
    ("target", "proposer", "target_kib", "with_drafter_kib"),
    [  # SpecDecode-Bench, KV cache per token
        ("llama-3.1-8b", "eagle", 128, 132),
        ("llama-3-70b", "draft-model", 320, 352),
        ("qwen3-8b", "draft-model", 144, 256),
    ],
)
def test_kv_bytes_per_token(target: str, proposer: str, target_kib: int, with_drafter_kib: int) -> None:
    model = load_model(target)
    drafter = load_drafter(proposer, model)
    assert model.kv_bytes_per_token() == target_kib * 1024
    assert model.kv_bytes_per_token() + drafter.kv_bytes_per_token() == with_drafter_kib * 1024


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_share_weights_and_cache(tp: int) -> None:
    model = load_model("llama-3-70b")
    whole = sum(n * matmul.params for n, matmul in model.decoder.matmuls())
    assert tp * sum(n * matmul.params for n, matmul in model.decoder.matmuls(tp)) == whole
    assert tp * model.kv_bytes_per_token(tp) == model.kv_bytes_per_token()
    norms = 2 * (2 * 80 + 1) * 8192  # whole on every rank
    assert model.weight_bytes(tp) - norms == (model.weight_bytes() - norms) / tp


def test_every_rank_holds_what_is_not_split() -> None:
    """TP 4 by hand: KV heads fewer than ranks, MLA's compressions, routers and norms are on every rank."""
    llama = load_model("llama-3.1-8b")
    two_kv_heads = replace(llama, decoder=replace(llama.decoder, kv_heads=2))
    qkv = (8 + 2 * 1) * 128 * 4096  # a quarter of 32 query heads, one KV head of two
    layer = qkv + 4096 * 4096 // 4 + 3 * 4096 * 14336 // 4 + 2 * 4096
    assert two_kv_heads.weight_bytes(4) == 2 * (32 * layer + 2 * 128256 * 4096 // 4 + 4096)

    lite = load_model("deepseek-v2-lite")
    attention = 2048 * (4 * 192 + 576) + 4 * 512 * (128 + 128) + 4 * 128 * 2048 + 2 * 2048
    dense = 3 * 2048 * 10944 // 4
    routed = 64 * 2048 + 3 * 2048 * 2816 // 4 + 64 * 3 * 2048 * 1408 // 4
    total = 27 * attention + dense + 26 * routed + 2 * 102400 * 2048 // 4 + 2048
    assert lite.weight_bytes(4) == 2 * total
    absorbed = 27 * 4 * 512 * 256  # the fp8 original beside bf16 copies
    plain = 27 * (4 * 512 * 256 + 2 * 2048) + 26 * 64 * 2048 + 2 * 102400 * 2048 // 4 + 2048
    assert lite.stored(Dtype.FP8, None).weight_bytes(4) == total + plain + absorbed

    head = load_drafter("eagle", llama)  # the projection whole; embedding and LM head are the target's
    layer = (8 + 2 * 2) * 128 * 4096 + 4096 * 4096 // 4 + 3 * 4096 * 14336 // 4 + 2 * 4096
    assert head.weight_bytes(4) == 2 * (layer + 2 * 4096 * 4096)


def test_formats_leave_embedding_head_and_projection_of_a_drafter_bf16() -> None:
    """Qwen3 0.6B in fp8: 440 M parameters in matrices of layers."""
    draft = load_drafter("draft-model", load_model("qwen3-8b"))
    matrices = 28 * (1024 * 4096 + 2048 * 1024 + 3 * 1024 * 3072)
    saved = draft.weight_bytes() - replace(draft, weight_dtype=Dtype.FP8).weight_bytes()
    assert saved == matrices
    mtp = load_drafter("mtp", load_model("glm-4.5-air"))
    whole, fp8 = mtp.weight_bytes(), replace(mtp, weight_dtype=Dtype.FP8).weight_bytes()
    assert 2 * fp8 - whole == 2 * (2 * 4096 * 4096 + 128 * 4096 + 2 * 4096)  # projection, router, norms


@pytest.mark.parametrize(("heads", "kv_heads", "tp"), [(40, 10, 4), (24, 3, 2), (24, 6, 4)])
def test_kv_heads_that_do_not_split_evenly_are_refused(heads: int, kv_heads: int, tp: int) -> None:
    decoder = replace(load_model("llama-3.1-8b").decoder, heads=heads, kv_heads=kv_heads)
    with pytest.raises(InputError, match=rf"{kv_heads} of KV"):
        decoder.check_tp(tp)
