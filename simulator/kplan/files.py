"""Atomic writes: a reader sees the old files or the new ones, and a failure leaves nothing behind.

A file is written under a hidden name beside its place, synced, and moved there in one step; its writer holds
a lock on it, so that the next writer of that place can tell what a killed one left, and removes it. Files
that belong together are moved together, see :func:`replacing_together`.

Data is synced before it is moved: without that a power cut may leave the new name with no data, and a disk
that is full, or over a network, may say so only after the old file is gone. The folder is not: after a power
cut it shows the old file or the new one, and both are whole.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import BinaryIO

from kplan.errors import InputError
from kplan.interrupts import shielded
from kplan.locks import hold, take, unlink_if_free

FOLDER_S = 2.0
"""Longest wait for another writer of a folder: its moves take milliseconds, what lasts longer is none."""
_BESIDE = r"\.[0-9a-f]{8}\.kplan-(tmp|old)"
_FIXES = {
    errno.ENOSPC: "free some of the disk, or name a place on another",
    errno.EDQUOT: "free some of your quota, or name a place elsewhere",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "look at the disk, or name a place on another",
}


def check_readable(what: str, path: Path, most_bytes: int) -> None:
    """Raise InputError unless ``path`` is a file of at most ``most_bytes``: reading a pipe may never end."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            check_not_cut(what, path)
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(what, str(path), f"cannot be read ({why})", "check the path") from None
    if not path.is_file():
        raise InputError(what, str(path), "is no file", "name a file")
    if size > most_bytes:
        raise InputError(what, str(path), f"has {size:,} bytes; at most {most_bytes:,} are read", "cut it")


def check_not_cut(what: str, path: Path) -> None:
    """Raise InputError where ``path`` is not there because its writer was killed, or is at it now."""
    if not os.path.lexists(path) and _left_beside(path):
        fix = "give the command that writes it again"
        raise InputError(what, str(path), "was cut short while it was written, or is being written", fix)


def read_text(what: str, file: Path | Traversable, most_bytes: int, encoding: str = "utf-8") -> str:
    """The text of a file of at most ``most_bytes``, or of a resource of an installed package.

    Raises:
        InputError: it cannot be read, is no file (a pipe, a device), is larger, or is not in that encoding.
    """
    if isinstance(file, Path):
        check_readable(what, file, most_bytes)
    try:
        return file.read_bytes().decode(encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(what, str(file), f"cannot be read ({error})", "check the path") from None


def check_file_name(what: str, name: str) -> None:
    """Raise InputError unless ``name`` is that of a file in a folder: what a file says may be a path."""
    if not name or name in (".", "..") or not name.isprintable() or any(c in name for c in "/\\:"):
        raise InputError(what, name, "a file is named by it", "give a name without / and \\")


def most_unpacked(packed_bytes: int) -> int:
    """Bytes that a packed file may have in memory: real tables shrink to a tenth, bombs to a thousandth."""
    return max(2**27, 64 * packed_bytes)


def check_replaceable(what: str, path: Path) -> None:
    """Raise InputError for a folder, and for a device or a pipe: a file would take its place."""
    if path.is_dir():
        raise InputError(what, str(path), "is a folder", "name a file")
    if path.exists() and not path.is_file():
        raise InputError(what, str(path), "is no file", "name a file")


@contextmanager
def made_folder(what: str, folder: Path) -> Iterator[None]:
    """A folder for the length of a ``with`` that writes into it; what was made of it goes when that fails.

    Raises:
        InputError: it cannot be made.
    """
    made: list[Path] = []
    try:
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        with telling(what, folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in made:
            with suppress(OSError):
                one.rmdir()
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file to fill; it takes the place of ``path`` when the block ends well, and goes when not.

    Raises:
        InputError: the folder is not there or not writable, ``path`` is no file, or the disk is full.
    """
    with replacing_together([path]) as (sink,):
        yield sink


@contextmanager
def replacing_together(paths: Sequence[Path], gone: Iterable[Path] = ()) -> Iterator[list[BinaryIO]]:
    """Binary files to fill; all of them take their places when the block ends well, or none does.

    The first of several is the mark of the whole: it is taken away before, and put in place after the others.
    Where it stands, they are of one writing; a writer that was killed between two moves leaves no mark.

    Args:
        gone: files of an earlier writing, which are removed with the same care.

    Raises:
        InputError: a folder is not there or not writable, one of ``paths`` is no file, or the disk is full.
    """
    gone = tuple(gone)
    for path in (*paths, *gone):
        check_replaceable("output file", path)
    with ExitStack() as stack:
        staged = [stack.enter_context(_beside(path)) for path in paths]
        with telling("output file", paths[0]):
            yield [one.sink for one in staged]
        for one in staged:
            with telling("output file", one.path):
                one.sink.flush()
                os.fsync(one.sink.fileno())
        with shielded():
            _move(staged, gone)


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text atomically. Raises InputError."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str | bytes], gone: Iterable[Path] = ()) -> None:
    """Write several texts (UTF-8) or bytes as :func:`replacing_together`, the first as their mark.

    Raises:
        InputError: one of them cannot be written; none was.
    """
    with replacing_together([*texts], gone) as sinks:
        for (path, text), sink in zip(texts.items(), sinks, strict=True):
            with telling("output file", path):
                sink.write(text.encode("utf-8") if isinstance(text, str) else text)


@contextmanager
def telling(what: str, path: Path, verb: str = "be written") -> Iterator[None]:
    """Turn what the system says of a file or folder that is written into an InputError."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, "name a folder that exists and is yours")
        raise InputError(what, str(path), f"cannot {verb} ({error.strerror or error})", fix) from error


@dataclass(frozen=True)
class _Staged:
    """A file that is written beside its place."""

    path: Path
    temporary: Path
    sink: BinaryIO


@contextmanager
def _beside(path: Path) -> Iterator[_Staged]:
    made: list[_Staged] = []
    try:
        with shielded(), telling("output file", path):
            for left in _left_beside(path, "tmp"):
                unlink_if_free(left)
            made.append(_create(path))
        yield made[0]
    finally:
        with shielded():
            for one in made:
                with suppress(OSError):
                    one.temporary.unlink(missing_ok=True)
                with suppress(OSError):  # what it could not write was told before
                    one.sink.close()


def _create(path: Path) -> _Staged:
    while True:
        temporary = _hidden(path, "tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o666)
        hold(handle, FOLDER_S)
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # another writer met it before it was locked, and took it for a leftover
    with suppress(OSError):  # a file that others may not read stays one
        os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))
    return _Staged(path, temporary, os.fdopen(handle, "wb"))


def _move(staged: Sequence[_Staged], gone: Sequence[Path]) -> None:
    """Put everything in its place, the first one last; on a failure all is as it was."""
    mark, *others = staged
    together = [mark.path, *gone, *(one.path for one in others)] if others or gone else []
    aside, placed = list[tuple[Path, Path]](), list[Path]()
    with ExitStack() as stack:
        for folder in sorted({path.parent.resolve() for path in together}):
            stack.enter_context(_held_folder(folder))
        try:
            for path in together:
                _put_aside(path, aside)
            for one in (*others, mark):
                with telling("output file", one.path):
                    check_replaceable("output file", one.path)
                    one.temporary.replace(one.path)
                placed.append(one.path)
        except InputError:
            for path in placed:
                with suppress(OSError):
                    path.unlink()
            for old, path in reversed(aside):
                with suppress(OSError):
                    old.replace(path)
            raise
        for old in (old for path in together for old in _left_beside(path, "old")):
            with suppress(OSError):  # a killed writer's too: now that all is in place
                old.unlink(missing_ok=True)


def _put_aside(path: Path, aside: list[tuple[Path, Path]]) -> None:
    check_replaceable("output file", path)
    old = _hidden(path, "old")
    with telling("output file", path), suppress(FileNotFoundError):
        path.replace(old)
        aside.append((old, path))


@contextmanager
def _held_folder(folder: Path) -> Iterator[None]:
    """Keep other writers of several files out of a folder, so that they do not mix theirs with ours."""
    with telling("output folder", folder):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every file system locks folders
            take(handle, FOLDER_S)
        yield
    finally:
        os.close(handle)


def _hidden(path: Path, kind: str) -> Path:
    return path.with_name(f".{_stem(path)}.{secrets.token_hex(4)}.kplan-{kind}")


def _stem(path: Path) -> str:
    """The name, so short that the hidden one is no longer than a name may be."""
    return os.fsdecode(os.fsencode(path.name)[:200])


def _left_beside(path: Path, kind: str = "tmp|old") -> list[Path]:
    """What writers of ``path`` left, or hold."""
    named = re.compile(re.escape(f".{_stem(path)}") + _BESIDE.replace("tmp|old", kind))
    try:
        with os.scandir(path.parent) as entries:
            return [path.with_name(one.name) for one in entries if named.fullmatch(one.name)]
    except OSError:
        return []
