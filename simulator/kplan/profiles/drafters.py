"""Find the drafter that serves a proposer for a model: by profile, by layout, or by what the user names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kplan.errors import InputError
from kplan.profiles import convert, schema
from kplan.profiles.architecture import Decoder
from kplan.profiles.drafter import Drafter, DrafterKind
from kplan.profiles.hf_config import config_path
from kplan.profiles.load import close, load_model, parse, shipped
from kplan.profiles.model import Model

ANY = "*"
"""Target of a drafter that fits every model."""
DRAFT_MODEL = "draft-model"
_DRAFT_MODEL_METHODS = {"vllm": "draft_model", "sglang": "STANDALONE"}


def load_drafter(proposer: str, model: Model, named: str | None = None) -> Drafter:
    """The drafter that serves ``proposer`` for ``model``.

    A profile made for the model comes before one for any model, which takes its width from the model.

    Args:
        named: what the user names it by: a drafter YAML; for ``draft-model`` a model as in
            :func:`kplan.profiles.load_model`; for a head or a parallel drafter the Hugging Face repository
            or the folder that an engine loads.

    Raises:
        InputError: an unknown proposer, one that the model cannot have, or a name that does not fit it.
    """
    if named is not None and named.endswith((".yaml", ".yml")):
        return _from_file(proposer, model, Path(named))
    everything = [parse("drafters", file, schema.DrafterFile) for file in shipped("drafters")]
    if named is not None and proposer == DRAFT_MODEL:
        return _draft_model(model, named)
    drafter = _bind(_find(proposer, model, everything), model, everything)
    return drafter if named is None else _with_weights(drafter, named)


def known_proposers() -> list[str]:
    """Proposers of the shipped profiles, by name."""
    return sorted({parse("drafters", file, schema.DrafterFile).proposer for file in shipped("drafters")})


def lookup_proposers() -> set[str]:
    """Proposers that look up their drafts, by the shipped profiles."""
    everything = [parse("drafters", file, schema.DrafterFile) for file in shipped("drafters")]
    return {one.proposer for one in everything if one.kind is DrafterKind.LOOKUP}


def _find(proposer: str, model: Model, everything: Iterable[schema.DrafterFile]) -> schema.DrafterFile:
    fitting = [file for file in everything if model.name in file.targets or ANY in file.targets]
    for file in sorted(fitting, key=lambda one: ANY in one.targets):
        if file.proposer == proposer:
            return file
    known = sorted({file.proposer for file in everything})
    if proposer not in known:
        raise InputError("proposer", proposer, f"known proposers: {', '.join(known)}", close(proposer, known))
    here = sorted({file.proposer for file in fitting if not _lacks_mtp(file, model)})
    fix = "; or name a small model with --drafter" if proposer == DRAFT_MODEL else ""
    raise InputError(
        "proposer", proposer, f"has no drafter profile for {model.name}", f"it has: {', '.join(here)}{fix}"
    )


def _bind(file: schema.DrafterFile, model: Model, everything: Iterable[schema.DrafterFile]) -> Drafter:
    """The file as a drafter of this model: its layer at the model's width, or another proposer's head."""
    drafter = convert.drafter(file)
    if file.head is not None:
        head = _bind(_find(file.head, model, everything), model, everything)
        return replace(
            head,
            name=drafter.name,
            proposer=drafter.proposer,
            targets=drafter.targets,
            engine_methods=drafter.engine_methods,
            summary=drafter.summary,
            tree=drafter.tree,
            head=file.head,
            provenance=drafter.provenance,
        )
    if file.layer is None:
        return drafter
    if not file.layer.mtp:
        return replace(drafter, decoder=_layer(file.layer, model.decoder))
    if _lacks_mtp(file, model):
        has = f"has {model.mtp_layers or 'no'} multi-token-prediction layers"
        why = ", one for each position, and only one is priced" if model.mtp_layers else ""
        raise InputError("proposer", file.proposer, f"{model.name} {has}{why}", "choose another proposer")
    moe = model.decoder.moe and replace(model.decoder.moe, dense_layers=0)
    return replace(
        drafter,
        decoder=replace(_layer(file.layer, model.decoder), moe=moe),
        weight_dtype=model.weight_dtype,
        kv_dtype=model.kv_dtype,
    )


def _lacks_mtp(file: schema.DrafterFile, model: Model) -> bool:
    return file.layer is not None and file.layer.mtp and model.mtp_layers != 1


def _layer(layer: schema.LayerEntry, target: Decoder) -> Decoder:
    """One dense layer with the target's attention and widths, that sees everything."""
    return replace(
        target,
        layers=1,
        vocab=layer.vocab or target.vocab,
        attention_inputs=layer.attention_inputs,
        window=None,
        moe=None,
    )


def _from_file(proposer: str, model: Model, path: Path) -> Drafter:
    if not path.is_file():
        raise InputError("--drafter", str(path), "no such file", "check the path")
    file = parse("drafters", path, schema.DrafterFile)
    if file.proposer != proposer:
        raise InputError(
            "--drafter", str(path), f"is of proposer {file.proposer}", f"--proposer {file.proposer}"
        )
    if model.name not in file.targets and ANY not in file.targets:
        raise InputError(
            "--drafter",
            str(path),
            f"drafts for {', '.join(file.targets)}",
            f"add {model.name} to its targets",
        )
    return _bind(file, model, [parse("drafters", one, schema.DrafterFile) for one in shipped("drafters")])


def _draft_model(model: Model, named: str) -> Drafter:
    draft = load_model(named)
    if draft.decoder.vocab != model.decoder.vocab:
        raise InputError(
            "--drafter",
            named,
            f"has a vocabulary of {draft.decoder.vocab}, {model.name} one of {model.decoder.vocab}",
            "draft with a model of the same family",
        )
    return Drafter(
        name=draft.name,
        proposer=DRAFT_MODEL,
        kind=DrafterKind.MODEL,
        hf_id=draft.hf_id,
        targets=(model.name,),
        engine_methods=_DRAFT_MODEL_METHODS,
        summary=f"{draft.name} as draft model",
        decoder=draft.decoder,
        own_embedding=True,
        own_head=not draft.tied_embeddings,
        weight_dtype=draft.weight_dtype,
        kv_dtype=draft.kv_dtype,
        provenance=draft.provenance,
    )


def _with_weights(drafter: Drafter, named: str) -> Drafter:
    """The drafter with the weights that an engine loads for it."""
    if drafter.kind in (DrafterKind.LOOKUP, DrafterKind.SELF) or drafter.proposer == "mtp":
        raise InputError("--drafter", named, f"{drafter.proposer} has no weights of its own", "leave it out")
    config = config_path(named)
    if config is not None:
        named = str(config.resolve().parent)
    elif "/" not in named or Path(named).is_dir():
        raise InputError("--drafter", named, "must be ORG/NAME or a folder with a config.json", "check it")
    return replace(drafter, hf_id=named)
