"""Hardware, models, drafters, calibrations and engines: loaded from kplan_profiles or a user's file."""

from kplan.profiles.architecture import Decoder, Matmul
from kplan.profiles.calibration import (
    AllReduceFit,
    AttentionFit,
    Calibration,
    ElementwiseFit,
    GemmFit,
    HostFit,
    SamplerFit,
)
from kplan.profiles.drafter import Drafter, DrafterKind
from kplan.profiles.engine import EngineProfile, GraphSizes, GraphUnit, MemoryTier
from kplan.profiles.hardware import Hardware
from kplan.profiles.load import (
    KINDS,
    ProfileLine,
    available,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.profiles.model import Model

__all__ = [
    "KINDS",
    "AllReduceFit",
    "AttentionFit",
    "Calibration",
    "Decoder",
    "Drafter",
    "DrafterKind",
    "ElementwiseFit",
    "EngineProfile",
    "GemmFit",
    "GraphSizes",
    "GraphUnit",
    "Hardware",
    "HostFit",
    "Matmul",
    "MemoryTier",
    "Model",
    "ProfileLine",
    "SamplerFit",
    "available",
    "load_calibration",
    "load_drafter",
    "load_engine",
    "load_hardware",
    "load_model",
]
