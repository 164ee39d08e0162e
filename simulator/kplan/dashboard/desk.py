"""So many questions at once as the machine can answer; whoever comes on top is told that it is busy.

Of the questions of one page the newest counts: an older one that still waits is dropped.
"""

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
PAGES = 256
"""Pages whose newest question is known."""


class BusyError(KplanError):
    """As many questions wait already as are let in."""


class SupersededError(KplanError):
    """The same page asked something newer before this was begun."""


class Desk(Generic[K, V]):
    """Answers one question at a time, in the order they came, and each but once.

    Args:
        answer: what answers; it already uses every core.
        waiting, kept: bounds.
    """

    def __init__(self, answer: Callable[[K], V], waiting: int = WAITING, kept: int = KEPT) -> None:
        self._answer, self._waiting = answer, waiting
        self._lock = threading.Lock()
        self._closing = False
        self._kept: Kept[K, V] = Kept(kept)
        self._running: dict[K, Future[V]] = {}
        self._newest: Kept[str, K] = Kept(PAGES)
        self._asked_by: dict[K, set[str | None]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="kplan-answer")

    def ask(self, question: K, page: str | None = None) -> V:
        """The answer; blocks until it is there.

        Args:
            page: who asks; what it asked before is dropped where it has not been begun and nobody else waits
                for it. None: nothing is dropped for this question, nor this one for another.

        Raises:
            BusyError, SupersededError: see there.
            KplanError: what the answer raises.
        """
        with self._lock:
            self._drop_older(question, page)
            found = self._kept.find(question)
            if found is not None:
                return found
            future = self._running.get(question)
            if future is None:
                if len(self._running) >= self._waiting:
                    raise BusyError(f"busy: {self._waiting} questions wait already; ask again in a while")
                future = self._worker.submit(self._work, question)
                self._running[question] = future
                self._asked_by[question] = set()
            self._asked_by[question].add(page)
        try:
            return future.result()
        except CancelledError:
            if self._closing:
                raise BusyError("the dashboard is closing") from None
            raise SupersededError("a newer question took its place") from None

    def _drop_older(self, question: K, page: str | None) -> None:
        """Forget what ``page`` asked before, if only it waits for that and it has not been begun."""
        if page is None:
            return
        older = self._newest.find(page)
        self._newest.put(page, question)
        if older is None or older == question or self._asked_by.get(older) != {page}:
            return
        if self._running[older].cancel():
            self._forget(older)

    def _work(self, question: K) -> V:
        try:
            return self._kept.put(question, self._answer(question))
        finally:
            with self._lock:
                self._forget(question)

    def _forget(self, question: K) -> None:
        self._running.pop(question, None)
        self._asked_by.pop(question, None)

    def close(self) -> None:
        """End; what waits is dropped."""
        self._closing = True
        self._worker.shutdown(wait=True, cancel_futures=True)
