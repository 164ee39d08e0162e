"""Atomic writes: a reader sees the old file or the new one, and a failure leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import BinaryIO

from kplan.errors import InputError


def check_readable(what: str, path: Path, most_bytes: int) -> None:
    """Raise InputError unless ``path`` is a file of at most ``most_bytes``: reading a pipe may never end."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(what, str(path), f"cannot be read ({why})", "check the path") from None
    if not path.is_file():
        raise InputError(what, str(path), "is no file", "name a file")
    if size > most_bytes:
        raise InputError(what, str(path), f"has {size:,} bytes; at most {most_bytes:,} are read", "cut it")


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
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file to fill; it takes the place of ``path`` when the block ends well, and goes when not.

    Raises:
        InputError: the folder is not there or not writable, or ``path`` is no file.
    """
    check_replaceable("output file", path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        fix = "name a folder that exists and is yours"
        raise InputError("output file", str(path), error.strerror or "cannot be written", fix) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as sink:
            yield sink
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes it private
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text atomically."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write several UTF-8 texts: all of them, or none where one cannot be written."""
    with ExitStack() as sinks:
        for path, text in texts.items():
            sinks.enter_context(replacing(path)).write(text.encode("utf-8"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
