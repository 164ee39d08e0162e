"""Search ranges as annotations: policies declare them, the search turns them into distributions.

def __init__(self, k: Annotated[int, IntRange(0, 7)] = 3) -> None: ...
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IntRange:
    """Integers low..high, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class FloatRange:
    """Reals low..high; ``log`` searches them on a logarithmic scale."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[str | int | float | bool, ...]
