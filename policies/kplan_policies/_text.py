"""What the policies share: the bound on K, and the text that a policy prints back as."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np

MAX_K = 254
"""Largest K of any policy: acceptance traces hold accepted + bonus <= 255 (kplan.acceptance.trace.MAX_K)."""


def checked_k(k: object) -> int:
    """Return ``k`` when it is an integer 0..MAX_K, else raise ValueError in one line."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k <= MAX_K:
        raise ValueError(
            f"K must be an integer 0 to {MAX_K} (the most drafts kplan's traces can hold), not {k}"
        )
    return int(k)


MOST = 10**9
"""Largest count of steps, requests or tokens that a policy takes: more than any run has. The rules keep their
state in float64 and count in int64: a number that neither holds would become another one without a word."""


def checked_int(name: str, value: object, low: int, high: int = MOST) -> int:
    """Return ``value`` when it is an integer low..high, else raise ValueError in one line."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer {low} to {high}, not {value!r}")
    return int(value)


def checked_float(name: str, value: object, low: float, high: float) -> float:
    """Return ``value`` when it is a number low..high, else raise ValueError in one line."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be a number {low:g} to {high:g}, not {value!r}")
    return float(value)


def policy_text(name: str, policy: object) -> str:
    """``name:key=value,...`` with the constructor parameters that differ from their defaults.

    Each parameter must be kept as an attribute of the same name.
    """
    pairs = [
        f"{key}={_value_text(value)}"
        for key, parameter in inspect.signature(type(policy)).parameters.items()
        if (value := getattr(policy, key)) != parameter.default
    ]
    return f"{name}:{','.join(pairs)}" if pairs else name


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)
