"""Locks that end with their holder, however it ends: the system lets them go, and none is ever stale.

They are ``flock`` locks. Where a file system has none, what they guard goes on without.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kplan.errors import InputError

_WITHOUT = frozenset((errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""What a file system without such locks says."""
_POLL_S = 0.02


def take(handle: int, wait_s: float = 0.0) -> bool:
    """Lock an open file until it is closed; False when another holds it for longer than ``wait_s``.

    Raises:
        OSError: the file system knows no locks, or fails.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def hold(handle: int, wait_s: float = 0.0) -> bool:
    """As :func:`take`, and True on a file system without locks."""
    try:
        return take(handle, wait_s)
    except OSError as error:
        if error.errno in _WITHOUT:
            return True
        raise


def unlink_if_free(path: Path) -> None:
    """Remove a file that nobody holds; leave it where that cannot be told."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if take(handle):
            path.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(handle)


@contextmanager
def alone(what: str, path: Path) -> Iterator[None]:
    """Be the only process that works on ``path``, by a hidden file beside it that is gone afterwards.

    Args:
        what: names the path to the user, ``--out`` for one.

    Raises:
        InputError: another process works on it, which is named; or the folder cannot be written.
    """
    beside = path.with_name(f".{os.fsdecode(os.fsencode(path.name)[:200])}.kplan-lock")
    try:
        handle = _held(beside)
    except OSError as error:
        bound = f"cannot be locked ({error.strerror})"
        raise InputError(what, str(path), bound, "name one in a folder that is yours") from None
    except _TakenError as taken:
        fix = "wait for its end, or name another file"
        raise InputError(what, str(path), f"another process is writing it{taken}", fix) from None
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)  # while it is held: who waits for it sees that it is gone
        os.close(handle)


class _TakenError(Exception):
    """Another process has it, which its text names where that is known."""

    def __str__(self) -> str:
        return f" (process {self.args[0]})" if self.args[0] else ""


def _held(beside: Path) -> int:
    while True:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            free, there = hold(handle), os.fstat(handle).st_nlink > 0
            holder = "" if free else os.pread(handle, 20, 0).decode("ascii", "replace")
            if free and there:
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        if free and there:
            return handle
        os.close(handle)  # where it is free, its last holder removed it in between
        if not free:
            raise _TakenError(holder)
