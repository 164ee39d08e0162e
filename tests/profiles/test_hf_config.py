"""config.json files with the values of released models: totals as published, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kplan.errors import InputError
from kplan.profiles import Dtype, load_model

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
RELEASED: dict[str, tuple[dict[str, Any], float]] = {  # and parameters of the language model, in billions
    "llama-3.1-8b": (LLAMA, 8.03),
    "mistral-7b": (
        {"model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
         "tie_word_embeddings": False},
        7.24,
    ),
    "mixtral-8x7b": (
        {"model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": None,
         "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False},
        46.7,
    ),
    "qwen2.5-7b": (
        {"model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
         "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "sliding_window": 131072,
         "use_sliding_window": False, "max_window_layers": 28, "tie_word_embeddings": False},
        7.62,
    ),
    "qwen1.5-moe-a2.7b": (
        {"model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 16, "intermediate_size": 5632, "vocab_size": 151936, "num_experts": 60,
         "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
         "decoder_sparse_step": 1, "use_sliding_window": False, "tie_word_embeddings": False},
        14.3,
    ),
    "qwen3-30b-a3b": (
        {"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
         "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
         "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": [],
         "decoder_sparse_step": 1, "tie_word_embeddings": False},
        30.5,
    ),
    "gemma-2-9b": (
        {"model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000,
         "sliding_window": 4096},
        9.24,
    ),
    "gemma-3-4b": (
        {"model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
         "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                         "num_hidden_layers": 34, "sliding_window": 1024}},
        3.88,
    ),
    "phi-3-mini-4k": (
        {"model_type": "phi3", "num_hidden_layers": 32, "hidden_size": 3072, "num_attention_heads": 32,
         "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "sliding_window": 2047,
         "tie_word_embeddings": False},
        3.82,
    ),
    "glm-4-9b-0414": (
        {"model_type": "glm4", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696, "vocab_size": 151552,
         "tie_word_embeddings": False},
        9.40,
    ),
    "glm-4.5-air": (
        {"model_type": "glm4_moe", "num_hidden_layers": 46, "hidden_size": 4096, "num_attention_heads": 96,
         "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "vocab_size": 151552,
         "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
         "tie_word_embeddings": False},
        106.0,
    ),
    "deepseek-v2-lite": (
        {"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
         "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400, "q_lora_rank": None,
         "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
         "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
         "n_shared_experts": 2, "first_k_dense_replace": 1, "tie_word_embeddings": False},
        15.7,
    ),
    "deepseek-v3": (DEEPSEEK_V3, 671.0),
    "gpt-oss-120b": (GPT_OSS, 116.8),
    "olmo-2-7b": (
        {"model_type": "olmo2", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 100352,
         "tie_word_embeddings": False},
        7.30,
    ),
    "granite-3.1-8b": (
        {"model_type": "granite", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
         "num_key_value_heads": 8, "intermediate_size": 12800, "vocab_size": 49155,
         "tie_word_embeddings": True},
        8.17,
    ),
}  # fmt: skip


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_are_those_published(name: str, tmp_path: Path) -> None:
    config, billions = RELEASED[name]
    model = load_model(written(tmp_path, config))
    assert model.params / 1e9 == pytest.approx(billions, rel=0.01)
    assert "at the word" not in model.provenance.note


@pytest.mark.parametrize(
    ("name", "window"),
    [  # (tokens, layers) as their papers and model cards say
        ("mistral-7b", (4096, 32)),
        ("mixtral-8x7b", None),
        ("qwen2.5-7b", None),
        ("gemma-2-9b", (4096, 21)),
        ("gemma-3-4b", (1024, 29)),  # five local layers, then a global one
        ("phi-3-mini-4k", (2047, 32)),
        ("gpt-oss-120b", (128, 18)),
    ],
)
def test_windows_are_those_of_the_released_models(
    name: str, window: tuple[int, int] | None, tmp_path: Path
) -> None:
    found = load_model(written(tmp_path, RELEASED[name][0])).decoder.window
    assert (found and (found.tokens, found.layers)) == window


def test_qwen_windows_start_above_max_window_layers(tmp_path: Path) -> None:
    config = RELEASED["qwen2.5-7b"][0] | {"use_sliding_window": True, "max_window_layers": 20}
    window = load_model(written(tmp_path, config)).decoder.window
    assert window is not None
    assert window.layers == 8


def test_latent_attention_experts_and_formats(tmp_path: Path) -> None:
    """DeepSeek-V3: 70.272 kB of KV cache per token in bf16; 671 GB of fp8, and what is bf16 besides."""
    model = load_model(written(tmp_path, DEEPSEEK_V3))
    assert model.kv_bytes_per_token() == 70_272
    assert (model.weight_dtype, model.kv_dtype, model.mtp_layers) == (Dtype.FP8, Dtype.BF16, 1)
    moe = model.decoder.moe
    assert moe is not None
    assert (moe.shared_intermediate, moe.dense_layers) == (2048, 3)
    bf16_params = 2 * 129280 * 7168 + 58 * 256 * 7168  # embedding and head, routers
    copies = 61 * 2 * 128 * 512 * (128 + 128)  # of the key and value expansions, beside their fp8 originals
    assert model.weight_bytes() == pytest.approx(model.params + bf16_params + copies, rel=1e-5)


def test_mxfp4_is_as_small_as_published(tmp_path: Path) -> None:
    """gpt-oss-120b takes 60.8 GiB; its attention (2% of the parameters) is bf16 there and int4 here."""
    model = load_model(written(tmp_path, GPT_OSS))
    assert model.weight_bytes() / 2**30 == pytest.approx(60.8, rel=0.025)
    assert "mxfp4" in model.provenance.note


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ({"quant_method": "awq", "bits": 4}, Dtype.INT4),
        ({"quant_method": "gptq", "bits": 4}, Dtype.INT4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Dtype.INT4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Dtype.FP8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            Dtype.FP8,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            Dtype.INT4,
        ),
    ],
)
def test_quantized_checkpoints(stored: dict[str, object], dtype: Dtype, tmp_path: Path) -> None:
    assert load_model(written(tmp_path, LLAMA | {"quantization_config": stored})).weight_dtype is dtype


def test_a_folder_names_the_model_and_an_unknown_type_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    written(folder, LLAMA | {"model_type": "brandnew"})
    model = load_model(folder)
    assert (model.name, model.hf_id) == ("my-model", str(folder))
    assert model.max_context == 131072
    assert "brandnew taken at the word" in model.provenance.note
    assert model.decoder == load_model("llama-3.1-8b").decoder


def test_untied_is_assumed_and_noted_where_nothing_is_said(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    model = load_model(written(tmp_path, config))
    assert not model.tied_embeddings
    assert "tie_word_embeddings not given" in model.provenance.note


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": None}, ["hidden_size", "is needed"]),
        ({"hidden_size": -4096}, ["hidden_size", "-4096", "1..10000000"]),
        ({"hidden_size": 4096.0}, ["hidden_size", "4096.0", "whole number"]),
        ({"hidden_size": float("nan")}, ["hidden_size", "nan", "whole number"]),
        ({"hidden_size": "4096"}, ["hidden_size", "'4096'", "whole number"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers", "1..10000"]),
        ({"vocab_size": 0}, ["vocab_size", "0"]),
        ({"num_key_value_heads": 5}, ["num_key_value_heads", "must divide the 32"]),
        ({"num_key_value_heads": 64}, ["num_key_value_heads", "1..32"]),
        ({"num_attention_heads": 30, "num_key_value_heads": 30}, ["must divide hidden_size", "add head_dim"]),
        ({"num_experts": 8}, ["num_experts_per_tok", "is needed"]),
        ({"num_experts": 8, "num_experts_per_tok": 9}, ["num_experts_per_tok", "1..8"]),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 32},
            ["first_k_dense_replace"],
        ),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
            ["decoder_sparse_step", "2"],
        ),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [7]}, ["mlp_only_layers", "'[7]'"]),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": 7}, ["mlp_only_layers", "'7'"]),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": list(range(32))},
            ["mlp_only_layers", "a routed one after them"],
        ),
        ({"layer_types": ["sliding_attention"] * 32}, ["sliding_window", "is needed"]),
        ({"kv_lora_rank": 512}, ["qk_rope_head_dim", "is needed"]),
        ({"sliding_window": 4096, "layer_types": ["full_attention"]}, ["layer_types", "1 entries", "32"]),
        ({"sliding_window": "wide"}, ["sliding_window", "wide"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "true or false"]),
        ({"torch_dtype": "int3"}, ["dtype", "int3", "bfloat16"]),
        ({"text_config": [1]}, ["text_config", "must be an object"]),
        ({"quantization_config": {"quant_method": "squeezellm"}}, ["squeezellm", "--quantization"]),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, ["3-bit", "--quantization"]),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, ["config_groups"]),
        ({"is_encoder_decoder": True}, ["is_encoder_decoder", "not priced"]),
        ({"model_type": "bert"}, ["encoders are not priced"]),
        (
            {"architectures": ["LlamaForCausalLMEagle3"]},
            ["LlamaForCausalLMEagle3", "the head of a drafter", "--drafter"],
        ),
        ({"draft_vocab_size": 32000}, ["draft_vocab_size", "32000", "the head of a drafter"]),
        ({"model_type": "gpt2"}, ["no gate"]),
        ({"model_type": 7}, ["model_type", "must be text"]),
        ({"layer_types": ["linear_attention", "full_attention"] * 16}, ["linear_attention", "not priced"]),
        ({"layer_types": "full_attention"}, ["layer_types", "must be a list of texts"]),
        ({"layer_types": ["full_attention", 7] * 16}, ["layer_types", "must be a list of texts"]),
        ({"full_attention_interval": 4}, ["linear attention", "not priced"]),
        ({"mamba_d_state": 128}, ["state-space", "not priced"]),
        ({"index_topk": 2048}, ["indexer", "not priced"]),
        ({"attention_chunk_size": 8192}, ["in chunks", "not priced"]),
        ({"num_kv_shared_layers": 15}, ["share a KV cache", "not priced"]),
    ],
)
def test_a_config_that_cannot_be_priced_is_refused_in_one_line(
    changes: dict[str, object], told: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path, LLAMA | changes)
    with pytest.raises(InputError) as caught:
        load_model(path)
    message = str(caught.value)
    assert "\n" not in message
    for text in [str(path), *told]:
        assert text in message


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "7", "[" * 100_000, "\x00", '{"a": 1' + " " * 1_000_001])
def test_a_file_that_is_no_config_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_model(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_model(tmp_path / "config.json")


def test_a_pipe_or_a_device_is_refused_unread(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe.json", tmp_path / "zero.json"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(InputError, match="is no regular file"):
            load_model(path)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert load_model(path).decoder.hidden == 4096


@pytest.mark.parametrize("family", ["qwen3_next", "llama4_text", "mamba2", "rwkv6", "nemotron_h"])
def test_a_family_of_other_layers_is_refused_by_its_name(family: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"model_type: got '{family}'.*not priced"):
        load_model(written(tmp_path, LLAMA | {"model_type": family}))


def test_an_unknown_family_is_noted_on_one_short_line(tmp_path: Path) -> None:
    note = load_model(written(tmp_path, LLAMA | {"model_type": "a\nb\x1b" + "c" * 100})).provenance.note
    assert note.startswith("model_type a b c")
    assert len(note) < 120
    assert note.isprintable()


def test_kv_heads_must_split_over_the_ranks_or_be_shared_by_them(tmp_path: Path) -> None:
    few = LLAMA | {"num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 128}
    decoder = load_model(written(tmp_path, few)).decoder
    decoder.check_tp(2)
    with pytest.raises(InputError, match=r"got 4, must divide 24 heads \(6 of KV\).*\[1, 2\]"):
        decoder.check_tp(4)
    shared = load_model(written(tmp_path, LLAMA | {"num_key_value_heads": 2})).decoder
    shared.check_tp(8)
    assert shared.kv_heads_per_rank(8) == 1
