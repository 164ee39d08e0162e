"""A ``config.json`` in place of one that is not at hand: an engine's config code needs a model's, offline.

It has the sizes of a kplan profile in the layout of a released family (Llama, Mixtral, GLM-4.5 with its MTP
layers), so an engine's checks of flags and tables run on it; what an engine does for another family alone
they do not see.
"""

from __future__ import annotations

from typing import Any

from kplan.profiles import Drafter, Model
from kplan.profiles.architecture import Decoder

CONTEXT = 131_072
"""max_position_embeddings where a profile states none."""


def stand_ins(model: Model, drafter: Drafter | None) -> dict[str, dict[str, Any]]:
    """Name of the weights -> config.json, of the target and of a drafter with weights of its own."""
    context = model.max_context or CONTEXT
    configs = {model.hf_id: config_of(model.decoder, context, model.mtp_layers)}
    if drafter is not None and drafter.hf_id is not None and drafter.decoder is not None:
        configs[drafter.hf_id] = config_of(drafter.decoder, context)
    return configs


def config_of(decoder: Decoder, context: int, mtp_layers: int = 0) -> dict[str, Any]:
    """config.json of a decoder-only model of these sizes; MLA and windows are written as plain GQA."""
    config: dict[str, Any] = {
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.intermediate,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
        "vocab_size": decoder.vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    if mtp_layers:
        moe = decoder.moe
        return config | {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_nextn_predict_layers": mtp_layers,
            "n_routed_experts": moe.experts if moe else 1,
            "num_experts_per_tok": moe.active if moe else 1,
            "moe_intermediate_size": moe.intermediate if moe else decoder.intermediate,
            "first_k_dense_replace": moe.dense_layers if moe else decoder.layers,
        }
    if decoder.moe is not None:
        return config | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": decoder.moe.experts,
            "num_experts_per_tok": decoder.moe.active,
        }
    return config | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
