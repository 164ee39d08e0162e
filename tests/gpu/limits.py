"""How long a run may take, how much memory a row, and how many copies keep inputs out of the cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SWEEP = 3.0
"""Bytes read between two readings of the same copy, over the L2 cache's size: what was there is replaced."""

MOST_COPIES = 256
MEMORY_SHARE = 0.6
"""Share of the free device memory that a row's inputs may take; outputs and the graph need the rest."""

MOST_FAILURES_IN_A_ROW = 8
"""Kernels that fail one after the other: the device is lost, not a shape unsupported."""


@dataclass(frozen=True)
class Budget:
    """Wall time of a run, from ``start_s`` on ``clock``."""

    seconds: float
    start_s: float
    clock: Callable[[], float] = time.monotonic

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.start_s

    @property
    def left(self) -> bool:
        """Whether another row may begin."""
        return self.spent_s < self.seconds


def copies_to_be_cold(footprint_bytes: int, cache_bytes: int) -> int:
    """Copies of an input, read in turn, with which each is out of the L2 cache when its turn comes again.

    1 for an input that is alone more than SWEEP caches, or where there is no cache to leave (0 bytes).
    MOST_COPIES bound it: an input so small is not cold then (see :func:`is_cold`).
    """
    return max(1, min(MOST_COPIES, -(-int(SWEEP * cache_bytes) // footprint_bytes)))


def is_cold(footprint_bytes: int, copies: int, cache_bytes: int) -> bool:
    """Whether ``copies`` read in turn sweep the cache; never where its size is not known (0)."""
    return cache_bytes > 0 and footprint_bytes * copies >= SWEEP * cache_bytes
