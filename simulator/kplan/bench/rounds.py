"""Timing on a noisy machine: several rounds, the best one reported and all of them kept."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kplan.errors import InfeasibleError

T = TypeVar("T")


@dataclass(frozen=True)
class Rounds:
    """CPU and wall seconds of every round of the same work, in the order run; CPU of its processes included.

    Whatever else a machine does only ever adds time, so the best round is the closest to the work's own.
    """

    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]

    @property
    def best_cpu_s(self) -> float:
        """CPU seconds of the round that took least."""
        return min(self.cpu_s)

    @property
    def best_wall_s(self) -> float:
        """Wall seconds of the round that took least."""
        return min(self.wall_s)

    def record(self) -> dict[str, Any]:
        """Every round, and how much longer the slowest took than the best (0.1: a tenth)."""
        return {
            "cpu_s": list(self.cpu_s),
            "wall_s": list(self.wall_s),
            "cpu_spread": max(self.cpu_s) / self.best_cpu_s - 1,
            "wall_spread": max(self.wall_s) / self.best_wall_s - 1,
        }


def timed(work: Callable[[], T], rounds: int, *, warm: bool = True) -> tuple[T, Rounds]:
    """Run ``work`` ``rounds`` times without the garbage collector; returns the last answer and the times.

    Args:
        warm: run it once before, untimed: what is compiled or read once is no part of its cost.
    """
    if warm:
        work()
    cpu_s, wall_s = [], []
    collecting = gc.isenabled()
    try:
        for _ in range(rounds):
            gc.collect()
            gc.disable()
            wall, cpu = time.perf_counter(), _cpu_s()
            answer = work()
            cpu_s.append(_cpu_s() - cpu)
            wall_s.append(time.perf_counter() - wall)
    finally:
        if collecting:
            gc.enable()
    return answer, Rounds(tuple(cpu_s), tuple(wall_s))


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def check(right: bool, told: str) -> None:
    """Refuse a figure whose work was not done.

    Raises:
        InfeasibleError: ``right`` is false; ``told`` says what was asked and what was done.
    """
    if not right:
        raise InfeasibleError(f"not measured, for the work was not done: {told}")
