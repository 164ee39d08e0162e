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


def for_each(spec: PolicySpec, run: Callable[[A], B], over: Iterable[A]) -> list[B]:
    """``run`` of every element, in order; at once in threads when ``spec`` runs without Python.

    A policy in Python is run one after the other: it would gain nothing, and may share what it should not.
    """
    items = list(over)
    workers = min(len(os.sched_getaffinity(0)), len(items))
    if workers < 2 or not runs_compiled(spec.build()):
        return [run(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, items))
