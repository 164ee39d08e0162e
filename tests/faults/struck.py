"""Processes that are killed at the n-th thing they do to a folder, or to a lock, for every n."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from kplan.cli.app import run

_CHANGES = frozenset(("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"))
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
FEWEST = 4
"""Moments that a writer has at least: making its file, holding it, moving it, and its end."""


def killed_at_each(folder: Path, work: Callable[..., object], *args: Any) -> Iterator[int]:
    """Kill ``work(*args)`` before the first thing that it does in ``folder``, the second, and so on.

    Yields:
        The number of the moment, after each kill; ends with the first process that reaches its end.
    """
    for moment in itertools.count(1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not need
            child = os.fork()
        if child == 0:
            _struck(moment, str(folder), work, args)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), f"moment {moment}: exit {code}"
        if code == 0:
            assert moment > FEWEST, f"the work was over after {moment - 1} moments: nothing was tested"
            return
        yield moment


def command(argv: list[str]) -> None:
    """A command, in the process of its own that is killed; what it prints goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    assert run(argv) == 0


def _struck(moment: int, folder: str, work: Callable[..., object], args: tuple[Any, ...]) -> NoReturn:
    met = itertools.count(1)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if _changes(event, given, folder) and next(met) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        work(*args)
    except BaseException:  # noqa: BLE001 (a fork must not go on as its parent)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _changes(event: str, given: tuple[Any, ...], folder: str) -> bool:
    if event == "fcntl.flock":
        return True
    if event == "open":
        path, _, flags = given
        return not isinstance(path, int) and folder in str(path) and bool(flags & _WRITING)
    return event in _CHANGES and folder in str(given[0])
