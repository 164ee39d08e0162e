"""Profiles against numbers published elsewhere: parameters, memory added by drafters, KV cache."""

from __future__ import annotations

import pytest

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
