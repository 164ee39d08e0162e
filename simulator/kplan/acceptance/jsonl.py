"""JSONL read as a stream: one object in memory at a time, and one line for whatever is not an object."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kplan.acceptance.columns import Row
from kplan.acceptance.trace import MAX_TOKENS
from kplan.errors import InputError

MAX_LINE_BYTES = 2**28
"""Longest line that is read: a file without line ends must not fill the memory."""
MAX_COUNT = 2**31 - 1
"""Largest count of steps or drafts."""


Progress = Callable[[int, int], None]
"""Told how many bytes of a file are read, of how many."""

_TELL_BYTES = 2**20


def silent(_: int, __: int) -> None:
    """The progress of one who does not ask for it."""


def records(path: Path, progress: Progress = silent) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The objects of a file, one a line, with the line each stands on; blank lines are passed over.

    ``progress`` is told about every MiB, and of the end.

    Raises:
        InputError: the file cannot be read or holds no object, or a line is too long, truncated or no object.
    """
    try:
        with path.open("rb") as lines:
            met = read = told = 0
            total = path.stat().st_size
            for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES + 1), b""), start=1):
                where = Row(path.name, number)
                if len(line) > MAX_LINE_BYTES:
                    bound = f"{MAX_LINE_BYTES} bytes a line are accepted"
                    raise InputError(where.at("1"), "a longer line", bound, "write one request a line")
                if line.strip():
                    met += 1
                    yield where, parse(line, where)
                read += len(line)
                if read - told >= _TELL_BYTES:
                    told = read
                    progress(read, total)
            progress(read, total)
    except OSError as error:
        raise InputError("trace file", str(path), error.strerror or "cannot be read") from error
    if not met:
        fix = "give a file with one JSON object a line"
        raise InputError("trace file", str(path), "it holds no request", fix)


def parse(text: bytes, where: Row) -> dict[str, Any]:
    """One JSON object. NaN passes here and is refused, with its index, where its value is checked."""
    try:
        record = json.loads(text)
    except UnicodeDecodeError as error:
        raise InputError(where.at(f"byte {error.start + 1}"), "not UTF-8", "JSON text is needed") from error
    except json.JSONDecodeError as error:
        fix = "the line may be truncated: copy the file again"
        raise InputError(
            where.at(f"character {error.pos + 1}"), error.msg, "a JSON object is needed", fix
        ) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, brackets without end
        raise InputError(where.at("1"), str(error)[:60], "a JSON object is needed") from error
    if not isinstance(record, dict):
        raise InputError(where.at("1"), type(record).__name__, "a JSON object is needed")
    return record


def value(record: dict[str, Any], path: str, where: Row) -> Any:
    """The value at a dotted path. Raises InputError when a part of the path is not there, or is null."""
    found: Any = record
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        raise InputError(where.at(path), "no such key", "a value is needed", "record it, or drop the row")
    return found


def count(record: dict[str, Any], path: str, where: Row, low: int, high: int = MAX_COUNT) -> int:
    """The integer in low..high at a dotted path. Raises InputError for anything else."""
    found = value(record, path, where)
    if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
        raise InputError(where.at(path), str(found)[:60], f"an integer in {low}..{high} is needed")
    return found


def tokens(record: dict[str, Any], path: str, where: Row) -> int:
    """The length of a prompt or an output at a dotted path. Raises InputError for anything else."""
    return count(record, path, where, 1, MAX_TOKENS)
