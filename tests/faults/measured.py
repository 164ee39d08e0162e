"""Files read one by one in processes of their own, whose memory and time are measured and limited.

``python -m tests.faults.measured`` takes a list of (reader, path) as JSON and prints what became of each.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIMIT_MIB = 1024
LIMIT_S = 60
"""Far above what any takes (a second), for a busy machine: a hang is one without end."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        end: "read", "refused", or what went wrong.
        grown_mib: memory that reading it took, at most.
        seconds: how long it took.
    """

    end: str
    grown_mib: float
    seconds: float


def measure(files: Sequence[tuple[str, Path]]) -> list[Outcome]:
    """The outcome of each (reader's name, file), in order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.measured"],
        input=json.dumps([(name, str(path)) for name, path in files]).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [Outcome(*one) for one in json.loads(done.stdout)]


def _status_mib(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def _child(name: str, path: Path, pipe: int) -> None:
    from tests.faults.readers import READERS, TOLD

    limit = int((_status_mib("VmSize") + 4 * LIMIT_MIB) * 2**20)  # of addresses; what is used is measured
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak of the parent
    before = _status_mib("VmHWM")
    reader = next(one for one in READERS if one.name == name)
    try:
        reader.read(path)
        end = "read"
    except TOLD as error:
        told = str(error)
        end = "refused" if len(told.splitlines()) == 1 and len(told) < 4000 else f"said {told[:200]!r}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        end = f"{type(error).__name__}: {error}"[:300]
    os.write(pipe, json.dumps([end, _status_mib("VmHWM") - before]).encode())


def _measured(name: str, path: Path) -> tuple[str, float, float]:
    out, pipe = os.pipe()
    start = time.monotonic()
    process = os.fork()
    if not process:
        signal.alarm(LIMIT_S)
        _child(name, path, pipe)
        os._exit(0)
    os.close(pipe)
    with os.fdopen(out, "rb") as told:
        answer = told.read()
    _, status = os.waitpid(process, 0)
    seconds = time.monotonic() - start
    if not answer:
        return f"ended by signal {os.waitstatus_to_exitcode(status)}", 0.0, seconds
    end, grown = json.loads(answer)
    return end, grown, seconds


if __name__ == "__main__":
    import tests.faults.readers  # noqa: F401 - once, before the forks

    print(json.dumps([_measured(name, Path(path)) for name, path in json.load(sys.stdin)]))
