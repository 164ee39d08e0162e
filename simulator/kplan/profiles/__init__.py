"""Hardware, models, drafters, calibrations and engines: loaded from kplan_profiles or a user's file."""

from kplan.profiles.architecture import (
    Block,
    Decoder,
    LatentAttention,
    Matmul,
    MixtureOfExperts,
    SlidingWindow,
)
from kplan.profiles.calibration import (
    AllReduceFit,
    AttentionFit,
    Calibration,
    ElementwiseFit,
    GemmFit,
    HostFit,
    SamplerFit,
)
from kplan.profiles.drafter import Drafter, DrafterKind, Tree
from kplan.profiles.drafters import known_proposers, load_drafter, lookup_proposers
from kplan.profiles.dtype import Dtype
from kplan.profiles.engine import EngineProfile, GraphSizes, GraphUnit, MemoryTier
from kplan.profiles.hardware import Hardware
from kplan.profiles.load import (
    KINDS,
    ProfileLine,
    available,
    load_calibration,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.profiles.model import Model

__all__ = [
    "KINDS",
    "AllReduceFit",
    "AttentionFit",
    "Block",
    "Calibration",
    "Decoder",
    "Drafter",
    "DrafterKind",
    "Dtype",
    "ElementwiseFit",
    "EngineProfile",
    "GemmFit",
    "GraphSizes",
    "GraphUnit",
    "Hardware",
    "HostFit",
    "LatentAttention",
    "Matmul",
    "MemoryTier",
    "MixtureOfExperts",
    "Model",
    "ProfileLine",
    "SamplerFit",
    "SlidingWindow",
    "Tree",
    "available",
    "known_proposers",
    "load_calibration",
    "load_drafter",
    "load_engine",
    "load_hardware",
    "load_model",
    "lookup_proposers",
]
