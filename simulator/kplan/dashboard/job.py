"""The whole ``recommend``, run behind the page: one at a time, and it says what it is doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kplan.dashboard.desk import BusyError
from kplan.dashboard.kept import Kept
from kplan.dashboard.quick import Look
from kplan.dashboard.state import State
from kplan.errors import KplanError
from kplan.telling import Tell

KEPT = 16


class _StoppedError(Exception):
    """The run was cancelled, or the dashboard is closing."""


@dataclass(frozen=True)
class Running:
    """A run that is under way: of what, what it is doing, and for how many seconds."""

    state: State
    doing: str
    for_s: float


@dataclass
class _Job:
    """One run: of what, whether it was cancelled, and how far it is."""

    state: State
    stop: threading.Event = field(default_factory=threading.Event)
    doing: str = "starting"
    since_s: float = field(default_factory=time.monotonic)

    def tell(self, doing: str, _done: int = 0, _of: int = 0, /) -> None:
        """What the run is doing; ends it, once it was cancelled."""
        if self.stop.is_set():
            raise _StoppedError
        self.doing = doing


class FullRuns:
    """Runs in the background, one at a time, and the answers that they came to.

    Args:
        run: answers a state; it calls its second argument with what it is doing.
    """

    def __init__(self, run: Callable[[State, Tell], Look]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._found: Kept[State, Look | KplanError] = Kept(KEPT)
        self._job: _Job | None = None
        self._thread: threading.Thread | None = None

    def start(self, state: State) -> None:
        """Begin, unless the answer is there or under way; after what was cancelled has ended.

        Raises:
            BusyError: another question is run.
        """
        with self._lock:
            if self._found.find(state) is not None:
                return
            if self._job is not None and self._job.state != state:
                raise BusyError("busy: the full run of another question is under way; ask again when it ends")
            if self._job is not None:
                return
            self._job = _Job(state)
            self._thread = threading.Thread(
                target=self._work, args=(self._job, self._thread), name="kplan-full", daemon=True
            )
            self._thread.start()

    def cancel(self) -> None:
        """Let go of what is under way: it ends at its next step, and leaves no answer."""
        with self._lock:
            if self._job is not None:
                self._job.stop.set()
                self._job = None

    def running(self) -> Running | None:
        """What is under way."""
        with self._lock:
            job = self._job
            return None if job is None else Running(job.state, job.doing, time.monotonic() - job.since_s)

    def found(self, state: State) -> Look | KplanError | None:
        """The answer, or why there is none; None when it was not asked for."""
        return self._found.find(state)

    def close(self) -> None:
        """End the run at its next step."""
        self.cancel()
        if self._thread is not None:
            self._thread.join()

    def _work(self, job: _Job, before: threading.Thread | None) -> None:
        try:
            if before is not None:
                before.join()
            job.tell("starting")
            found = self._answer(job)
            with self._lock:
                if not job.stop.is_set():
                    self._found.put(job.state, found)
        except _StoppedError:
            return
        finally:
            with self._lock:
                if self._job is job:
                    self._job = None

    def _answer(self, job: _Job) -> Look | KplanError:
        try:
            return self._run(job.state, job.tell)
        except KplanError as error:
            return error
