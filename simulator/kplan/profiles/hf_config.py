"""A model from the config.json of its checkpoint (Hugging Face's format), read by its fields.

Layouts that kplan cannot price are refused with the reason; a ``model_type`` that it has not met is taken at
the word of its fields. Where released files leave a field to the class default of ``transformers``,
CLASS_DEFAULTS has it.
"""

from __future__ import annotations

from pathlib import Path

from kplan.profiles.architecture import Decoder, LatentAttention, MixtureOfExperts, SlidingWindow
from kplan.profiles.hf_fields import LAYERS, Fields, read_fields
from kplan.profiles.hf_formats import weight_format
from kplan.profiles.hf_layouts import CLASS_DEFAULTS, FAMILIES, refuse_unpriced, short
from kplan.profiles.model import Model
from kplan.provenance import Kind, Provenance


def config_path(text: str) -> Path | None:
    """The config file that ``text`` names: a .json file, or a folder with a config.json; None for neither."""
    if text.endswith(".json"):
        return Path(text)
    folder = Path(text)
    return folder / "config.json" if (folder / "config.json").is_file() else None


def read_model(path: Path) -> Model:
    """The model that a config.json describes; it is named by the folder, which an engine loads it from.

    Raises:
        InputError: unreadable, a field missing or out of its bounds, or a layout that is not priced.
    """
    whole = read_fields(path)
    nested = whole.nested("text_config")
    fields = nested or whole
    family = fields.text("model_type")
    refuse_unpriced(fields, family)
    fields = Fields(dict(CLASS_DEFAULTS.get(family, {})) | _given(fields), fields.origin)
    notes = ["only the language model of a multimodal one"] if nested else []
    if family not in FAMILIES:
        notes.append(f"model_type {short(family) or 'not given'} taken at the word of its fields")
    tied_by = next((one for one in (whole, fields) if one.first("tie_word_embeddings")), None)
    if tied_by is None:
        notes.append("tie_word_embeddings not given: taken as false")
    dtype, format_note = weight_format(whole, fields)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    decoder = read_decoder(fields)
    return Model(
        name=name,
        hf_id=str(path.resolve().parent),
        summary=f"{name}, from its config.json",
        decoder=decoder,
        tied_embeddings=tied_by is not None and tied_by.flag("tie_word_embeddings", False),
        weight_dtype=dtype,
        mtp_layers=fields.count("num_nextn_predict_layers", default=0, least=0, most=LAYERS),
        max_context=fields.count("max_position_embeddings", "model_max_length", default=0, least=0) or None,
        provenance=Provenance(Kind.PUBLISHED, str(path), "; ".join(filter(None, [*notes, format_note]))),
    )


def _given(fields: Fields) -> dict[str, object]:
    """The fields with a value: null stands for the class default."""
    return {key: value for key, value in fields.values.items() if value is not None}


def read_decoder(fields: Fields) -> Decoder:
    """The decoder stack of these fields. Raises InputError naming the field at fault."""
    layers = fields.count("num_hidden_layers", "n_layer", "num_layers", most=LAYERS)
    hidden = fields.count("hidden_size", "n_embd", "d_model")
    heads = fields.count("num_attention_heads", "n_head")
    kv_heads = fields.count("num_key_value_heads", default=heads, most=heads)
    if heads % kv_heads:
        raise fields.fault("num_key_value_heads", kv_heads, f"must divide the {heads} attention heads")
    latent = _latent(fields)
    if latent is not None:
        head_dim = latent.nope_dim + latent.rope_dim
    elif fields.first("head_dim") is None and hidden % heads:
        raise fields.fault("num_attention_heads", heads, f"must divide hidden_size {hidden}", "add head_dim")
    else:
        head_dim = fields.count("head_dim", default=hidden // heads)
    return Decoder(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.count("intermediate_size", "ffn_hidden_size"),
        vocab=fields.count("vocab_size"),
        latent=latent,
        window=_window(fields, layers),
        moe=_experts(fields, layers),
    )


def _latent(fields: Fields) -> LatentAttention | None:
    if fields.first("kv_lora_rank") is None:
        return None
    return LatentAttention(
        q_rank=fields.count("q_lora_rank", default=0, least=0),
        kv_rank=fields.count("kv_lora_rank"),
        rope_dim=fields.count("qk_rope_head_dim"),
        nope_dim=fields.count("qk_nope_head_dim"),
        v_dim=fields.count("v_head_dim"),
    )


def _window(fields: Fields, layers: int) -> SlidingWindow | None:
    """The sliding window and how many layers have it: by layer_types, a pattern, or all of them."""
    types = fields.texts("layer_types")
    if fields.first("sliding_window") is None and "sliding_attention" not in (types or ()):
        return None
    if not fields.flag("use_sliding_window", True):
        return None
    tokens = fields.count("sliding_window", least=0)
    if types is not None:
        if len(types) != layers:
            raise fields.fault(
                "layer_types", f"{len(types)} entries", f"must have one for each of {layers} layers"
            )
        local = types.count("sliding_attention")
    elif fields.first("sliding_window_pattern", "_sliding_window_pattern") is not None:
        pattern = fields.count("sliding_window_pattern", "_sliding_window_pattern")
        local = layers - layers // pattern  # every pattern-th layer sees everything
    elif fields.first("use_sliding_window") is not None:  # Qwen: the first max_window_layers see everything
        local = max(0, layers - fields.count("max_window_layers", default=0, least=0))
    else:
        local = layers
    return SlidingWindow(tokens, local) if tokens and local else None


def _experts(fields: Fields, layers: int) -> MixtureOfExperts | None:
    key = fields.first("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    experts = 0 if key is None else fields.count(key, least=0)
    if experts <= 1:  # some dense checkpoints of a routed family say 0 or 1
        return None
    width = fields.count("moe_intermediate_size", "intermediate_size")
    copies = fields.count(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0
    )
    shared = fields.count(
        "shared_expert_intermediate_size", "shared_intermediate_size", default=copies * width, least=0
    )
    return MixtureOfExperts(
        experts=experts,
        active=fields.count("num_experts_per_tok", "num_experts_per_token", "moe_k", most=experts),
        intermediate=width,
        shared_intermediate=shared,
        dense_layers=_dense_layers(fields, layers),
    )


def _dense_layers(fields: Fields, layers: int) -> int:
    """Leading layers with a dense MLP; raises InputError where dense and routed layers alternate."""
    for key in ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"):
        if fields.first(key) is not None and fields.values[key] != 1:
            raise fields.fault(
                key, fields.values[key], "only leading dense layers are priced", "take a model profile (YAML)"
            )
    only_dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(only_dense, list) or only_dense != list(range(min(len(only_dense), layers - 1))):
        raise fields.fault(
            "mlp_only_layers",
            str(only_dense),
            "only leading dense layers are priced, and a routed one after them",
            "take a model profile (YAML)",
        )
    return fields.count("first_k_dense_replace", default=len(only_dense), least=0, most=layers - 1)
