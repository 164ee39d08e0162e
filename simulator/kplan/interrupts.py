"""Ctrl-C and SIGTERM are exceptions that may arise between any two lines; some lines they must wait for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

POLITE = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a process to end."""


@contextmanager
def shielded() -> Iterator[None]:
    """Keep polite signals back for the length of a ``with``, and deliver what came at its end.

    For short work on what outlives the process, or is shared: a lock file that an exception between its
    making and its ``try`` would leave, a process that is started and not yet known. Signals reach the main
    thread only, so that in any other one it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in POLITE}
    try:
        for number in POLITE:
            signal.signal(number, keep)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for first in came[:1]:
            signal.raise_signal(first)
