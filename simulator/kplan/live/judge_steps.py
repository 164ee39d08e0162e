"""Times of the steps that a server logs while it is measured (``kplan steplog``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from kplan.errors import InputError
from kplan.live.steplog import log_size
from kplan.live.workload import F64

_MOST = 1e9
"""Above it a log tells no time of a step."""


def read_step_log(log: Path, at: int) -> F64:
    """(m,) seconds of the steps that decoded, of the lines after byte ``at``.

    Raises:
        InputError: no such step was written, or none with the time of a whole step; or the log is gone.
    """
    log_size(log)
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
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if (gap_ms := record.get("gap_ms")) is not None:
        return gap_ms / 1e3 if _is_time(gap_ms) else None
    whole = record.get("step_s")
    return float(whole) if _is_time(whole) and record.get("decode_requests") else None


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 < value < _MOST
