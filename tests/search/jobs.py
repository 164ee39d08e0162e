"""Jobs for the workers' tests; in a module of their own, for worker processes import it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from kplan.errors import InputError


@dataclass(frozen=True)
class Squares:
    """Squares a number, slowly; writes down who did it."""

    folder: Path
    seconds: float = 0.0

    def run(self, task: int) -> int:
        """``task`` squared."""
        (self.folder / f"{task}-{os.getpid()}").touch()
        time.sleep(self.seconds)
        if task < 0:
            raise InputError("task", task, "must not be negative", "give another")
        return task * task


@dataclass(frozen=True)
class Deadly:
    """Kills its worker on task 3, as often as ``lives`` says."""

    folder: Path
    lives: int

    def run(self, task: int) -> int:
        """``task`` itself."""
        deaths = len(list(self.folder.glob("death-*")))
        if task == 3 and deaths < self.lives:
            (self.folder / f"death-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task
