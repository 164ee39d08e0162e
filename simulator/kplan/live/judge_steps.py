"""Times of the steps that a server logs while it is measured (``kplan steplog``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kplan.errors import InputError
from kplan.live.workload import F64


def size_of(log: Path | None) -> int:
    """Bytes of a step log so far. Raises InputError when it is not there."""
    if log is None:
        return 0
    try:
        return log.stat().st_size
    except OSError as error:
        raise InputError(
            "--steplog", str(log), error.strerror or "cannot be read", "kplan steplog install says how"
        ) from None


def read_step_log(log: Path, at: int) -> F64:
    """(m,) seconds of the steps that decoded, of the lines after byte ``at``.

    Raises:
        InputError: no such step was written, or none with the time of a whole step.
    """
    with log.open("rb") as file:
        file.seek(at)
        lines = file.read().decode("utf-8", "replace").splitlines()
    seconds = [step for step in map(_step_s, lines) if step is not None]
    if not seconds:
        raise InputError(
            "--steplog", str(log), "it did not grow by a step with step_s or gap_ms while the load ran",
            "is it the file that the server was started with?",
        )  # fmt: skip
    return np.array(seconds)


def _step_s(line: str) -> float | None:
    """Seconds of a step that decoded; None of any other line, and of one that is not whole yet."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    if isinstance(gap_ms := record.get("gap_ms"), int | float):
        return gap_ms / 1e3
    whole = record.get("step_s")
    return float(whole) if isinstance(whole, int | float) and record.get("decode_requests") else None
