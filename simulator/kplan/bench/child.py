"""Work that is timed as a process of its own: what a user waits for, and the memory that it takes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kplan.bench.rounds import Rounds, timed
from kplan.errors import InfeasibleError

KPLAN = ("-c", "from kplan.cli.app import main; main()")
"""The ``kplan`` script, whichever way it was installed."""
_STATUS = Path("/proc/self/status")
_RSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of ``ru_maxrss``."""


def run_child(arguments: Sequence[str], rounds: int) -> tuple[str, Rounds]:
    """Run this Python with ``arguments`` in ``rounds`` processes, one after the other.

    Returns:
        What the last of them printed, and the times, start and end of the process included.

    Raises:
        InfeasibleError: one of them failed.
    """
    return timed(lambda: _run(arguments), rounds, warm=False)


def _run(arguments: Sequence[str]) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise InfeasibleError(f"not measured, a process ended with code {done.returncode}: {last}")
    return done.stdout


def peak_bytes() -> int:
    """Most memory that this process ever held at once.

    Linux lets a process inherit the peak of its parent in ``getrusage``, even across exec; the high-water
    mark of /proc is of its own memory alone, and is taken where there is one.
    """
    if _STATUS.exists():
        marks = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        if marks:
            return int(marks[0].split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_BYTES


def serve_in_child(requests: int) -> dict[str, Any]:
    """What a child of ``million_requests`` does and prints: simulate, and say what it took."""
    from kplan.bench.scenes import table_run

    run = table_run(requests)
    run.serve()
    return {"requests": requests, "output_tokens": run.asked_tokens, "peak_bytes": peak_bytes()}


if __name__ == "__main__":
    print(json.dumps(serve_in_child(int(sys.argv[1]))))
