"""Measure the figures asked for and put them into one record."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from kplan.bench.figures import FIGURES
from kplan.bench.targets import TARGETS
from kplan.errors import InputError
from kplan.provenance import versions
from kplan.telling import Tell, silent


def measure(only: Collection[str] = (), progress: Tell = silent) -> dict[str, Any]:
    """Measure the figures named by ``only``, all of FIGURES when it is empty.

    Returns:
        The figures by key, and ``targets`` (those of the figures measured), ``rounds`` (every time taken) and
        ``machine``.

    Raises:
        InputError: a name that is not in FIGURES.
        InfeasibleError: a figure whose work was not done.
    """
    unknown = [name for name in only if name not in FIGURES]
    if unknown:
        raise InputError("--only", unknown[0], "no figure is called so", f"one of {', '.join(FIGURES)}")
    record: dict[str, Any] = {}
    rounds: dict[str, Any] = {}
    asked = [name for name in FIGURES if not only or name in only]
    for i, name in enumerate(asked):
        progress(f"measuring {name}", i, len(asked))
        reading = FIGURES[name]()
        record |= reading.values
        rounds |= {of: taken.record() for of, taken in reading.rounds.items()}
    judged = {target.figure: target.judge(record) for target in TARGETS}
    return record | {
        "targets": {figure: verdict for figure, verdict in judged.items() if verdict is not None},
        "rounds": rounds,
        "machine": versions() | {"cores": os.cpu_count()},
    }
