"""So many questions at once as the machine can answer; whoever comes on top is told that it is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from kplan.dashboard.kept import Kept
from kplan.errors import KplanError

K = TypeVar("K")
V = TypeVar("V")

WAITING = 16
"""Questions that are worked on or wait; the same one asked by several counts once."""
KEPT = 128
"""Answers that are held."""


class BusyError(KplanError):
    """As many questions wait already as are let in."""


class Desk(Generic[K, V]):
    """Answers one question at a time, in the order they came, and each but once.

    Args:
        answer: what answers; it already uses every core.
        waiting, kept: bounds.
    """

    def __init__(self, answer: Callable[[K], V], waiting: int = WAITING, kept: int = KEPT) -> None:
        self._answer, self._waiting = answer, waiting
        self._lock = threading.Lock()
        self._kept: Kept[K, V] = Kept(kept)
        self._running: dict[K, Future[V]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="kplan-answer")

    def ask(self, question: K) -> V:
        """The answer; blocks until it is there.

        Raises:
            BusyError: see there.
            KplanError: what the answer raises.
        """
        with self._lock:
            found = self._kept.find(question)
            if found is not None:
                return found
            future = self._running.get(question)
            if future is None:
                if len(self._running) >= self._waiting:
                    raise BusyError(f"busy: {self._waiting} questions wait already; ask again in a while")
                future = self._worker.submit(self._work, question)
                self._running[question] = future
        try:
            return future.result()
        except CancelledError:
            raise BusyError("the dashboard is closing") from None

    def _work(self, question: K) -> V:
        try:
            return self._kept.put(question, self._answer(question))
        finally:
            with self._lock:
                self._running.pop(question, None)

    def close(self) -> None:
        """End; what waits is dropped."""
        self._worker.shutdown(wait=True, cancel_futures=True)
