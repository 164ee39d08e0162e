"""A study in a file, a line an event: coordinators append to it one at a time, and it outlives them."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

from kplan.errors import InputError
from kplan.files import telling
from kplan.interrupts import shielded
from kplan.locks import hold

_LOCK_S = 30.0
"""Longest wait for another coordinator's line; what lasts longer is no such, or its process is stopped."""


def open_journal(path: Path) -> optuna.storages.BaseStorage:
    """The storage in a journal file, made where it is new.

    Raises:
        InputError: a folder that is not there, or a file that is no journal or cannot be written.
    """
    if not path.parent.is_dir():
        raise InputError("--storage", str(path), "its folder must exist", f"create {path.parent} first")
    if path.exists() and not path.is_file():
        raise InputError("--storage", str(path), "is a folder or device", "name a file")
    try:
        _mend(path)
        return optuna.storages.JournalStorage(_Journal(str(path)))
    except OSError as error:
        raise InputError(
            "--storage", str(path), f"cannot be written ({error.strerror})", "name another file"
        ) from None
    # what Optuna raises of lines that are none of its own
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise InputError(
            "--storage", str(path), f"is no journal of a study, or a damaged one ({error!r:.80})",
            "name another file",
        ) from None  # fmt: skip


class _Journal(JournalFileBackend):
    """One that is locked itself, by a lock that ends with its holder; no failure leaves half a line in it.

    Optuna's lock is a file beside it: what a killed coordinator left of that, the next one waited 30 s for.
    """

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with shielded(), telling("--storage", Path(self._file_path)), _locked(Path(self._file_path)) as file:
            whole = file.seek(0, os.SEEK_END)
            try:
                left = memoryview(text.encode("utf-8"))
                while left:  # a disk that fills up takes a part, and then says so
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(whole)
                raise

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        with shielded():
            logs = list(super().read_logs(log_number_from))
        yield from logs


@contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """The journal, unbuffered, which no other coordinator writes meanwhile."""
    with FileIO(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC), "r+") as file:
        hold(file.fileno(), _LOCK_S)
        yield file


def _mend(path: Path) -> None:
    """Cut what a killed coordinator or a full disk left of a last line: the next one would be glued to it.

    Raises:
        ValueError: the file is no journal, so that nothing may be written to it.
    """
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        first = json.loads(file.readline())
    if not isinstance(first, dict) or "op_code" not in first:
        raise ValueError("its first line is no record")
    with shielded(), _locked(path) as file:
        whole = file.readall()
        file.truncate(whole.rfind(b"\n") + 1)
