"""SGLang's adaptive JSON: what it checks itself, and what it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

RANGES: Mapping[str, tuple[float, float]] = {
    "ema_alpha": (0.001, 1.0),
    "update_interval": (1, 1e6),
    "warmup_batches": (0, 1e6),
    "down_hysteresis": (-1e6, 1e6),
    "up_hysteresis": (-1e6, 1e6),
    "ceiling_coeff": (0.0, 1e6),
}
"""Keys that SGLang reads, at the top level or in a slot, with their sensible values; it checks no range."""

SHIPPED: Mapping[str, Any] = {
    "1": {"candidate_steps": [1, 3, 5, 7]},
    "8": {"candidate_steps": [0, 1, 3], "down_hysteresis": 0.0},
    "32": {"candidate_steps": [0, 1], "down_hysteresis": 0.0},
    "64": {"candidate_steps": [0], "down_hysteresis": 0.0},
}
"""The ladder of SGLang 0.5.23 where no file is given."""


MAX_STEPS = 254
"""Largest K that is simulated; far above any that an engine has memory for."""


@dataclass(frozen=True)
class LadderProblem:
    """One fault; ``refused`` says whether SGLang stops at it, else it goes on in silence."""

    refused: bool
    text: str


def slots_of(ladder: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Batch size -> slot, ascending; only of a ladder in which nothing is refused."""
    return {int(key): ladder[key] for key in sorted((key for key in ladder if _is_slot(key)), key=int)}


def problems(ladder: Any) -> list[LadderProblem]:
    """Everything that is wrong with the content of an adaptive JSON."""
    if not isinstance(ladder, Mapping):
        return [LadderProblem(True, "the adaptive JSON must be an object")]
    keys = [key for key in ladder if _is_slot(key)]
    if not keys:
        return [
            LadderProblem(
                True,
                'the adaptive JSON has no batch-size key such as {"1": {"candidate_steps": [1, 3]}} (the '
                "older flat format is refused)",
            )
        ]
    found = _values("the top level", {key: ladder[key] for key in ladder if key not in keys})
    for key in keys:
        found += _slot(key, ladder[key])
    if len({int(key) for key in keys}) < len(keys):
        found.append(LadderProblem(False, "two batch-size keys mean the same number: the last one counts"))
    return found


def _slot(key: str, slot: Any) -> list[LadderProblem]:
    where = f"batch size {key}"
    if not isinstance(slot, Mapping):
        return [LadderProblem(True, f"{where}: must be an object")]
    steps = slot.get("candidate_steps")
    if not isinstance(steps, Sequence) or not steps or not all(type(k) is int and k >= 0 for k in steps):
        return [LadderProblem(True, f"{where}: candidate_steps must be a list of whole numbers >= 0")]
    if max(steps) > MAX_STEPS:
        return [LadderProblem(True, f"{where}: no server has memory for more than {MAX_STEPS} drafts")]
    found = _values(where, {name: value for name, value in slot.items() if name != "candidate_steps"})
    if any(low >= high for low, high in pairwise(steps)):
        found.append(LadderProblem(False, f"{where}: candidate_steps {list(steps)} do not ascend"))
    return found


def _values(where: str, values: Mapping[str, Any]) -> list[LadderProblem]:
    found = []
    for name, value in values.items():
        if name not in RANGES:
            found.append(LadderProblem(False, f"{where}: {name} is no key of SGLang's, which ignores it"))
            continue
        low, high = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            found.append(
                LadderProblem(
                    False,
                    f"{where}: {name} {value!r} is outside {low:g}..{high:g}, which SGLang does not check",
                )
            )
    return found


def _is_slot(key: Any) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit()
