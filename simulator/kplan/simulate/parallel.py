"""Independent runs side by side on the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kplan.engine import runs_compiled
from kplan.registry import PolicySpec

A = TypeVar("A")
B = TypeVar("B")


def cores() -> int:
    """Cores that this process may use; where the system does not say (macOS, Windows), all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each(spec: PolicySpec, run: Callable[[A], B], over: Iterable[A], *, alike: bool = False) -> list[B]:
    """``run`` of every element, in order; at once in threads when ``spec`` runs without Python.

    A policy in Python is run one after the other: it would gain nothing, and may share what it should not.

    Args:
        alike: the elements differ in nothing that ``run`` reads, so one is run for all of them.
    """
    items = list(over)
    if alike and items:
        return [run(items[0])] * len(items)
    if min(cores(), len(items)) < 2 or not runs_compiled(spec.build()):
        return [run(item) for item in items]
    return at_once(run, items)


def at_once(run: Callable[[A], B], over: Iterable[A]) -> list[B]:
    """``run`` of every element, in order, in a thread a core: for what the compiled engine runs without
    Python's lock."""
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(run, over))
