"""Seconds of one engine step from its shape."""

from kplan.latency.compiled import AttentionCost, StepCost, step_parts
from kplan.latency.model import Ceilings, LatencyModel, StepTime, Work
from kplan.latency.shape import StepShape
from kplan.latency.traits import EngineTraits, engine_traits

__all__ = [
    "AttentionCost",
    "Ceilings",
    "EngineTraits",
    "LatencyModel",
    "StepCost",
    "StepShape",
    "StepTime",
    "Work",
    "engine_traits",
    "step_parts",
]
