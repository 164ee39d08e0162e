"""Latency models that several tests share."""

from __future__ import annotations

from dataclasses import replace

from kplan.latency import EngineTraits, LatencyModel
from kplan.profiles import (
    Calibration,
    Decoder,
    Drafter,
    DrafterKind,
    Hardware,
    LatentAttention,
    MixtureOfExperts,
    Model,
    SlidingWindow,
    Tree,
    load_calibration,
    load_drafter,
    load_hardware,
    load_model,
)

EAGER = EngineTraits(async_scheduling=False)
"""No graph padding, no overlap: every term shows."""

LLAMA = load_model("llama-3.1-8b").decoder
ROUTED = replace(LLAMA, vocab=32_000, moe=MixtureOfExperts(experts=8, active=2, intermediate=14_336))
LATENT = Decoder(
    layers=27,
    hidden=2048,
    heads=16,
    kv_heads=16,
    head_dim=192,
    intermediate=10_944,
    vocab=102_400,
    latent=LatentAttention(q_rank=0, kv_rank=512, rope_dim=64, nope_dim=128, v_dim=128),
    moe=MixtureOfExperts(experts=64, active=6, intermediate=1408, shared_intermediate=2816, dense_layers=1),
)
WINDOWED = replace(LLAMA, window=SlidingWindow(tokens=1024, layers=24))


def latency(
    proposer: str | None = None,
    model: str = "llama-3.1-8b",
    tp: int = 1,
    traits: EngineTraits = EAGER,
    calibration: Calibration | None = None,
) -> LatencyModel:
    target = load_model(model)
    return LatencyModel(
        load_hardware("h100-sxm"),
        target,
        None if proposer is None else load_drafter(proposer, target),
        calibration or load_calibration("h100-sxm"),
        tp,
        traits,
    )


def built(
    decoder: Decoder = LLAMA,
    drafter: Drafter | None = None,
    *,
    tp: int = 1,
    traits: EngineTraits = EAGER,
    hardware: Hardware | None = None,
    calibration: Calibration | None = None,
    **model: object,
) -> LatencyModel:
    """A model of this architecture; ``model`` overrides fields of :class:`kplan.profiles.Model`."""
    target: Model = replace(load_model("llama-3.1-8b"), name="built", decoder=decoder, **model)  # type: ignore[arg-type]  # passed through
    return LatencyModel(
        hardware or load_hardware("h100-sxm"),
        target,
        drafter,
        calibration or load_calibration("h100-sxm"),
        tp,
        traits,
    )


def head(**fields: object) -> Drafter:
    """The EAGLE head of Llama 3.1 8B with these fields changed."""
    return replace(load_drafter("eagle", load_model("llama-3.1-8b")), **fields)  # type: ignore[arg-type]  # passed through


TREE = head(proposer="eagle-tree", tree=Tree(depth=3, topk=4, verified=20))
PARALLEL = head(proposer="pard", kind=DrafterKind.PARALLEL, fused_hidden=0)
SELF = head(proposer="self-kv", kind=DrafterKind.SELF, decoder=None, fused_hidden=0, kv_budget=512)
MTP = head(
    proposer="mtp",
    decoder=replace(LATENT, layers=1, moe=replace(LATENT.moe, dense_layers=0)),  # type: ignore[type-var]  # it has experts
)
