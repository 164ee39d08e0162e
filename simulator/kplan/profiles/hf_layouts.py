"""Families of config.json: class defaults that released files leave out, and layouts that are not priced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kplan.errors import InputError
from kplan.profiles.hf_fields import Fields

FAMILIES = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi3", "glm", "glm4"),
        *("glm4_moe", "deepseek_v2", "deepseek_v3", "kimi_k2", "olmo", "olmo2", "olmoe", "granite"),
        *("granitemoe", "granitemoeshared", "internlm3", "seed_oss", "smollm3", "exaone4", "ernie4_5"),
        *("gemma", "gemma2", "gemma3_text", "gpt_oss", "cohere", "cohere2"),
    )
)
"""Every model_type whose fields are known to mean what they are taken for; of others a note says so."""
CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"sliding_window_pattern": 2},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True, "sliding_window_pattern": 4},
}
"""model_type -> what ``transformers`` 5 takes for a field that the file does not have."""

_UNGATED = frozenset(
    (
        *("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "phi", "falcon", "bloom", "mpt"),
        *("codegen", "starcoder2", "nemotron", "persimmon", "biogpt", "xglm", "arcee"),
    )
)
_FOREIGN_FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2"), "state-space layers"
    ),
    **dict.fromkeys(("nemotron_h", "falcon_h1", "granitemoehybrid"), "state-space layers"),
    **dict.fromkeys(
        ("rwkv", "rwkv5", "rwkv6", "rwkv7", "qwen3_next", "kimi_linear"), "linear attention layers"
    ),
    **dict.fromkeys(("minimax", "minimax_text_01"), "linear attention layers"),
    **dict.fromkeys(("recurrent_gemma", "xlstm", "lfm2"), "convolutional or recurrent layers"),
    "llama4_text": "attention in chunks",
}
"""model_type -> its layers: what a released file says by a key of its own, one that was stripped does not."""
_ENCODERS = ("bert", "roberta", "deberta", "electra", "t5", "bart", "whisper", "pegasus", "marian")
_LAYERS_PRICED = frozenset({"full_attention", "sliding_attention"})
_FOREIGN_KEYS: Mapping[str, str] = {
    **dict.fromkeys(("ssm_cfg", "mamba_d_state", "mamba_d_ssm", "attn_layer_period"), "state-space layers"),
    **dict.fromkeys(("hybrid_override_pattern", "layers_block_type", "state_size"), "state-space layers"),
    **dict.fromkeys(
        ("linear_attn_config", "full_attention_interval", "linear_num_value_heads"), "linear attention"
    ),
    **dict.fromkeys(("conv_L_cache", "lru_width"), "convolutional or recurrent layers"),
    "index_topk": "attention over tokens that an indexer selects",
    "attention_chunk_size": "attention in chunks",
    "block_configs": "layers that differ from one another",
    "global_head_dim": "layers with heads of different widths",
    "altup_num_inputs": "several residual streams",
}


def refuse_unpriced(fields: Fields, family: str) -> None:
    """Raise InputError, with the reason, for a layout that the latency model has no price for."""

    def no(key: str, value: object, why: str) -> InputError:
        return fields.fault(key, value, f"{why} not priced", "kplan prices decoders with softmax attention")

    head = "draft_vocab_size" if "draft_vocab_size" in fields.values else "architectures"
    if head == "draft_vocab_size" or any("eagle" in one.lower() for one in fields.texts(head) or ()):
        fix = "give its target's config.json, and the head by --drafter"
        raise fields.fault(head, short(fields.values[head]), "is of the head of a drafter", fix)
    if fields.flag("is_encoder_decoder", False):
        raise no("is_encoder_decoder", "true", "encoder-decoder models are")
    if family.startswith(_ENCODERS):
        raise no("model_type", family, "encoders are")
    if family in _UNGATED:
        raise no("model_type", family, "its MLP has no gate, and ungated MLPs are")
    if family in _FOREIGN_FAMILIES:
        raise no("model_type", family, f"{_FOREIGN_FAMILIES[family]} are")
    for key, layout in _FOREIGN_KEYS.items():
        if fields.values.get(key):
            raise no(key, short(fields.values[key]), f"{layout} are")
    if fields.values.get("num_kv_shared_layers"):
        raise no(
            "num_kv_shared_layers", fields.values["num_kv_shared_layers"], "layers that share a KV cache are"
        )
    foreign = sorted(set(fields.texts("layer_types") or ()) - _LAYERS_PRICED)
    if foreign:
        raise no("layer_types", foreign[0], "such layers are")
    kinds = fields.values.get("attn_type_list")
    if isinstance(kinds, list) and 0 in kinds:
        raise no("attn_type_list", "0", "linear attention layers are")


def short(value: object) -> str:
    """The value as one short line."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(value)).split())
    return text if len(text) <= 40 else f"{text[:40]}..."
