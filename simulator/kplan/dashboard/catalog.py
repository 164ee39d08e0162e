"""The names that a page may ask for: those of shipped profiles, and never a path."""

from __future__ import annotations

from functools import cache

from kplan.profiles import available, known_proposers
from kplan.workload import available_workloads

TP = (1, 2, 4, 8)
"""Tensor-parallel GPUs per replica that are offered."""


@cache
def names(field: str) -> tuple[str, ...]:
    """Names of a choice of the page: model, hardware, proposer, workload or engine."""
    if field == "proposer":
        return tuple(known_proposers())
    if field == "workload":
        return tuple(line.name for line in available_workloads())
    kind = {"model": "models", "hardware": "hardware", "engine": "engines"}[field]
    return tuple(line.name for line in available(kind))
