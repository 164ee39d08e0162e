"""So many questions at once as the machine can answer; whoever comes on top is told that it is busy.

Of the questions of one page the newest counts: an older one that still waits is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
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
LOOK_S = 0.25
"""Seconds after which it is looked whether whoever asks is still there."""


class BusyError(KplanError):
    """As many questions wait already as are let in."""


class SupersededError(KplanError):
    """The same page asked something newer before this was begun, or nobody waits for it any more."""


class _GoneError(Exception):
    """Whoever asked went away."""


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
        self._asked_by: dict[K, list[str | None]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="kplan-answer")

    def ask(self, question: K, page: str | None = None, gone: Callable[[], bool] | None = None) -> V:
        """The answer; blocks until it is there.

        Args:
            page: who asks; what it asked before is dropped where it has not been begun and nobody else waits
                for it. None: nothing is dropped for this question, nor this one for another.
            gone: tells whether whoever asks went away: then the question is dropped on the same terms.

        Raises:
            BusyError, SupersededError: see there.
            KplanError: what the answer raises.
        """
        with self._lock:
            self._drop_older(question, page)
            found = self._kept.find(question)
            if found is not None:
                return found
            future = self._enlisted(question, page)
        try:
            return self._awaited(future, gone)
        except CancelledError:
            if self._closing:
                raise BusyError("the dashboard is closing") from None
            raise SupersededError("a newer question took its place") from None
        except _GoneError:
            self._leave(question, page, future)
            raise SupersededError("nobody waits for it") from None

    def _enlisted(self, question: K, page: str | None) -> Future[V]:
        """Who asks ``question`` waits for the one that works on it, which is begun where there is none."""
        if self._closing:
            raise BusyError("the dashboard is closing")
        future = self._running.get(question)
        if future is None:
            if len(self._running) >= self._waiting:
                raise BusyError(f"busy: {self._waiting} questions wait already; ask again in a while")
            future = self._worker.submit(self._work, question)
            self._running[question] = future
            self._asked_by[question] = []
        self._asked_by[question].append(page)
        return future

    def _awaited(self, future: Future[V], gone: Callable[[], bool] | None) -> V:
        while gone is not None and not future.done():
            if gone():
                raise _GoneError
            wait([future], LOOK_S)
        return future.result()

    def _leave(self, question: K, page: str | None, future: Future[V]) -> None:
        """``page`` went away; what only it waited for, and has not been begun, is dropped."""
        with self._lock:
            if self._running.get(question) is not future:
                return
            self._asked_by[question].remove(page)
            if not self._asked_by[question] and future.cancel():
                self._forget(question)

    def _drop_older(self, question: K, page: str | None) -> None:
        """Forget what ``page`` asked before, if only it waits for that and it has not been begun."""
        if page is None:
            return
        older = self._newest.find(page)
        self._newest.put(page, question)
        if older is None or older == question or set(self._asked_by.get(older, ())) != {page}:
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
        with self._lock:
            self._closing = True
        self._worker.shutdown(wait=True, cancel_futures=True)
