"""Latency models that several tests share."""

from __future__ import annotations

from kplan.latency import EngineTraits, LatencyModel
from kplan.profiles import Calibration, load_calibration, load_drafter, load_hardware, load_model

EAGER = EngineTraits(async_scheduling=False)
"""No graph padding, no overlap: every term shows."""


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
