"""Seconds of one engine step from its shape."""

from kplan.latency.attention import AttentionCost
from kplan.latency.compiled import StepCost, step_parts
from kplan.latency.model import Ceilings, LatencyModel, StepTime
from kplan.latency.shape import StepShape
from kplan.latency.traits import EngineTraits, engine_traits
from kplan.latency.work import Work

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
