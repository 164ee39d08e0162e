"""Asking the interpreter of an engine's environment: a process of its own, for a bounded time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kplan.errors import InputError

ASK_S = 60.0
"""Seconds that an interpreter may take for a question that imports no engine."""
_FIX = "give the python of the engine's environment, for example venv/bin/python"
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def ask_python(
    option: str, python: Path, arguments: Sequence[str], *, given: str = "", limit_s: float = ASK_S
) -> str:
    """What ``python`` prints, without kplan's own import path and in a folder that holds no package.

    Args:
        option: that named it.
        given: on its standard input.

    Raises:
        InputError: it cannot be run, fails, or takes longer than ``limit_s``; what it started has ended then.
    """
    found = shutil.which(python)
    if found is None:
        raise InputError(option, str(python), "cannot be run (No such file, or none that may be)", _FIX)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _QUIET
    try:
        process = subprocess.Popen(
            [Path(found).absolute(), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, cwd="/", env=environment, encoding="utf-8", errors="replace",
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise InputError(option, str(python), f"cannot be run ({error.strerror})", _FIX) from None
    with process:
        try:
            said, told = process.communicate(given, limit_s)
        except subprocess.TimeoutExpired:
            bound = f"did not answer in {limit_s:.0f} s"
            raise InputError(option, str(python), bound, "try it on an idle machine") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = next((line for line in reversed(told.splitlines()) if line.strip()), "it says nothing")
        raise InputError(option, str(python), f"ended with {process.returncode}: {last.strip()[:200]}", _FIX)
    return said


def ask_python_json(option: str, python: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON object of the last line that ``python`` prints; raises as :func:`ask_python`."""
    lines = ask_python(option, python, arguments).splitlines() or [""]
    try:
        told = json.loads(lines[-1])
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise InputError(option, str(python), "does not answer as Python does", _FIX)
    return told
