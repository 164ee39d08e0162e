"""Asynchronous work in a thread of its own: it has one deadline, and no signal falls into its middle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from kplan.interrupts import shielded

T = TypeVar("T")


def run_apart(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What ``work()`` gives, run in another thread.

    An exception that a signal raises in this thread meanwhile cancels the work. It goes on once the work has
    ended, however many signals follow: nothing is written behind the back of the one who catches it.
    """
    began, running = threading.Event(), _Running()

    async def all_of_it() -> T:
        running.loop, running.task = asyncio.get_running_loop(), asyncio.current_task()
        began.set()
        return await work()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(asyncio.run, all_of_it())
        done.add_done_callback(lambda _: began.set())  # also where it never began
        try:
            return done.result()
        finally:
            if not done.done():
                with shielded():
                    began.wait()
                    running.cancel()
                    thread.shutdown()


class _Running:
    """The work as its own thread knows it."""

    loop: asyncio.AbstractEventLoop | None = None
    task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """Give it up; called from another thread."""
        if self.loop is not None and self.task is not None:
            with suppress(RuntimeError):  # it has ended meanwhile, and its loop is closed
                self.loop.call_soon_threadsafe(self.task.cancel)
