"""Where a study is kept: a journal file, PostgreSQL, or memory; and which coordinators still work on it."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._file import get_lock_file
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from kplan.errors import InputError
from kplan.interrupts import shielded

T = TypeVar("T")

BEAT_S, DEAD_S = 5.0, 60.0
"""A coordinator leaves a sign of life this often, and is given up when it left none for so long."""
OUTAGES = (StorageInternalError, SQLAlchemyError)
"""What a database that is away raises."""
_OWNER = "coordinator:"
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


def shown(storage: str) -> str:
    """The storage without its secrets: of a URL only scheme, host, port and database."""
    if not _is_url(storage):
        return storage
    scheme = storage.partition(":")[0]
    try:
        url = make_url(storage)
    except (ArgumentError, ValueError):
        return f"{scheme}://..."
    host = (url.host or "").rpartition("@")[2] + (f":{url.port}" if url.port else "")
    return f"{scheme}://{host}/{url.database or ''}"


def _is_url(storage: str) -> bool:
    """Also one of PostgreSQL that lacks a slash: as the name of a file its password would be shown."""
    return "://" in storage or storage.partition(":")[0] in {*_POSTGRES} - {storage}


@contextmanager
def opened(storage: str | None) -> Iterator[optuna.storages.BaseStorage]:
    """A storage for the length of a ``with``, made where it is new.

    Args:
        storage: path of a journal file, a ``postgresql://`` URL, or None for memory.

    Raises:
        InputError: another scheme, a folder that is not there, a file that is no journal or cannot be
            written, a database that cannot be reached.
    """
    one = _open(storage)
    try:
        yield one
    finally:
        one.remove_session()
        if isinstance(one, optuna.storages.RDBStorage):
            one.engine.dispose()


def _open(storage: str | None) -> optuna.storages.BaseStorage:
    if storage is None:
        return optuna.storages.InMemoryStorage()
    if not _is_url(storage):
        return _journal(Path(storage))
    if storage.partition(":")[0] not in _POSTGRES:
        raise InputError(
            "--storage", shown(storage), "is neither a file nor PostgreSQL", "give a path or postgresql://..."
        )
    try:
        url = make_url(storage).set(drivername="postgresql+psycopg")
        if "@" not in (url.host or ""):  # else a part of the password, which would be told as the host
            return _rdb(url.render_as_string(hide_password=False))
    except (ArgumentError, ValueError):
        pass
    except ImportError:
        raise InputError(
            "--storage", shown(storage), "needs psycopg", "pip install 'kplan[postgres]'"
        ) from None
    except OUTAGES as error:
        reason = str(getattr(error, "orig", None) or error.__cause__ or "no answer")
        raise InputError(
            "--storage", shown(storage), f"the database cannot be used ({type(error).__name__}: {reason})",
            "check that it runs and that you may create tables in it",
        ) from None  # fmt: skip
    raise InputError(
        "--storage", shown(storage), "is no URL", "postgresql://USER@HOST/NAME, with %40 for @ within"
    )


def _journal(path: Path) -> optuna.storages.BaseStorage:
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
    """One whose lock file no interrupt leaves behind: every coordinator would wait for it, ours too."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with shielded():
            super().append_logs(logs)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        with shielded():
            logs = list(super().read_logs(log_number_from))
        yield from logs


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
    with shielded(), get_lock_file(JournalFileSymlinkLock(str(path))), path.open("rb+") as file:
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)


def _rdb(url: str, attempts: int = 3) -> optuna.storages.BaseStorage:
    """Two coordinators that make the tables at once disturb each other; the second one finds them made."""
    for left in reversed(range(attempts)):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        except OUTAGES:
            if not left:
                raise
            time.sleep(1.0)
    raise AssertionError


class Patience:
    """Waits while the database is away, says so once, and goes on when it is back."""

    def __init__(self, tell: Callable[[str], None], where: str) -> None:
        self._tell, self._where = tell, where

    def __call__(self, ask: Callable[[], T]) -> T:
        """The answer of ``ask``, which may be called several times."""
        pause_s, said = 0.5, False
        while True:
            try:
                answer = ask()
            except OUTAGES:
                if not said:
                    self._tell(f"the storage {self._where} does not answer: waiting for it")
                said = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 10.0)
            else:
                if said:
                    self._tell(f"the storage {self._where} is back")
                return answer


def check_identity(study: optuna.Study, identity: Mapping[str, Any]) -> None:
    """Mark a new study with what it searches; refuse one that searches something else.

    Raises:
        InputError: the study was made for something else; the line names what differs.
    """
    found = study.user_attrs.get("search")
    if found is None:
        study.set_user_attr("search", dict(identity))
        return
    differs = [key for key in identity if found.get(key) != identity[key]]
    if differs:
        raise InputError(
            "--study", study.study_name, f"holds another search: its {' and '.join(differs)} differ",
            "give it another name, or another --storage",
        )  # fmt: skip


class Coordinators:
    """Signs of life of those who share a study, so that what a dead one left running is run again.

    Attributes:
        me: name of this one.
    """

    def __init__(self, study: optuna.Study) -> None:
        self.me = uuid4().hex
        self._study = study
        self._watched: dict[str, tuple[object, float]] = {}

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Leave signs of life meanwhile, and say goodbye at the end."""
        stop = threading.Event()
        beats = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        self._sign(0)
        beats.start()
        try:
            yield
        finally:
            stop.set()
            beats.join()
            with suppress(*OUTAGES):  # without a goodbye this one is given up later
                self._sign(None)

    def left(self, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether nobody works on this running trial any more; to be asked while one has none oneself."""
        owner = trial.user_attrs.get("owner")
        if owner == self.me:
            return True
        others = {
            name.removeprefix(_OWNER): sign
            for name, sign in self._study.user_attrs.items()
            if name.startswith(_OWNER) and name != _OWNER + self.me
        }
        sign = others.get(str(owner))
        if sign is not None and _gone(sign):
            return True
        if owner is None and all(map(_gone, others.values())):
            return True  # killed before it put its name there, and nobody else is at work
        now, key = time.monotonic(), f"{owner}" if owner else f"trial {trial.number}"
        seen = self._watched.get(key)
        if seen is None or seen[0] != sign:
            self._watched[key] = (sign, now)
            return False
        return now - seen[1] > DEAD_S

    def _beat(self, stop: threading.Event) -> None:
        beat = 0
        while not stop.wait(BEAT_S):
            beat += 1
            with suppress(*OUTAGES):  # a database that is away gets the next one
                self._sign(beat)

    def _sign(self, beat: int | None) -> None:
        sign = {"place": _place(), "pid": os.getpid(), "beat": beat}
        self._study.set_user_attr(_OWNER + self.me, sign)


def _gone(sign: Mapping[str, Any]) -> bool:
    """Whether a coordinator said goodbye, or its process has ended."""
    return sign["beat"] is None or _ended(sign)


def _ended(sign: Mapping[str, Any]) -> bool:
    """Whether the process of a sign, of this system, has ended (its number may be ours by now)."""
    if sign["place"] != _place():
        return False
    if sign["pid"] == os.getpid():
        return True
    try:
        os.kill(sign["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _place() -> str:
    """Where process numbers mean the same: a boot of a system, and a namespace (container) in it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()
