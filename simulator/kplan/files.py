"""Atomic writes: a reader sees the old file or the new one, and a failure leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kplan.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file to fill; it takes the place of ``path`` when the block ends well, and goes when not.

    Raises:
        InputError: the folder is not there or not writable.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        fix = "name a folder that exists and is yours"
        raise InputError("output file", str(path), error.strerror or "cannot be written", fix) from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as sink:
            yield sink
        temporary.chmod(0o644)  # mkstemp makes it private
        temporary.replace(path)
    except IsADirectoryError as error:
        raise InputError("output file", str(path), "it is a folder", "name a file") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(text: str, path: Path) -> None:
    """Write UTF-8 text atomically."""
    with replacing(path) as sink:
        sink.write(text.encode("utf-8"))
