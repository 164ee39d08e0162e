"""The whole ``recommend``, run behind the page: one at a time, and it says what it is doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

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


class FullRuns:
    """Runs in the background, and the answers that they came to.

    Args:
        run: answers a state; it calls its second argument with what it is doing.
    """

    def __init__(self, run: Callable[[State, Tell], Look]) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._found: Kept[State, Look | KplanError] = Kept(KEPT)
        self._thread: threading.Thread | None = None
        self._state: State | None = None
        self._doing, self._since = "", 0.0

    def start(self, state: State) -> None:
        """Begin, unless the answer is there or under way.

        Raises:
            BusyError: another question is run.
        """
        with self._lock:
            if self._found.find(state) is not None or self._state == state:
                return
            if self._state is not None:
                raise BusyError("busy: the full run of another question is under way; ask again when it ends")
            self._stop.clear()
            self._state, self._doing, self._since = state, "starting", time.monotonic()
            self._thread = threading.Thread(target=self._work, args=(state,), name="kplan-full", daemon=True)
            self._thread.start()

    def cancel(self) -> None:
        """End what is under way at its next step; it leaves no answer."""
        with self._lock:
            if self._state is not None:
                self._stop.set()
                self._doing = "cancelling"

    def running(self) -> Running | None:
        """What is under way."""
        with self._lock:
            if self._state is None:
                return None
            return Running(self._state, self._doing, time.monotonic() - self._since)

    def found(self, state: State) -> Look | KplanError | None:
        """The answer, or why there is none; None when it was not asked for."""
        return self._found.find(state)

    def close(self) -> None:
        """End the run at its next step."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self, state: State) -> None:
        try:
            self._found.put(state, self._run(state, self._tell))
        except KplanError as error:
            self._found.put(state, error)
        except _StoppedError:
            return
        finally:
            with self._lock:
                self._state = None

    def _tell(self, doing: str, _done: int = 0, _of: int = 0, /) -> None:
        with self._lock:
            if self._stop.is_set():
                raise _StoppedError
            self._doing = doing
