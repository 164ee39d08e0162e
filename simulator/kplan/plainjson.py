"""JSON records of kplan's own files: one schema version, and one line for whatever is wrong with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from kplan.errors import InputError
from kplan.files import check_readable
from kplan.formats import KEY, Format

MOST_TEXT = 64 * 2**20
"""Longest record that is read, in characters; the largest shipped one has 0.1 MB."""

Record = TypeVar("Record", bound=BaseModel)


class TextFile(Protocol):
    """A path, or a resource of an installed package."""

    def read_text(self, encoding: str | None = ...) -> str: ...


@dataclass(frozen=True)
class HeldText:
    """A file that is held in memory."""

    text: str

    def read_text(self, encoding: str | None = None) -> str:  # noqa: ARG002 (as of a path)
        """The text; an ``encoding`` has nothing to decode."""
        return self.text

    def read_bytes(self) -> bytes:
        """The text as UTF-8."""
        return self.text.encode("utf-8")


def read_record(file: TextFile, kind: type[Record], of: Format) -> Record:
    """Read a JSON file into a pydantic record with a ``schema_version``.

    Args:
        of: what such a file is, and which versions of it are read.

    Raises:
        InputError: not there, too long, not JSON, another schema version, or a value that ``kind`` refuses.
    """
    what, fix = of.name, of.renew
    try:
        if isinstance(file, Path):
            check_readable(what, file, MOST_TEXT)
        text = file.read_text(encoding="utf-8")
        if len(text) > MOST_TEXT:
            raise InputError(what, str(file), f"holds more than {MOST_TEXT:,} characters", fix)
        record = json.loads(text)
    except OSError as error:
        raise InputError(what, str(file), error.strerror or "cannot be read", "check the path") from error
    except (ValueError, RecursionError) as error:
        raise InputError(what, str(file), f"not JSON ({error})"[:120], fix) from error
    of.check(record.get(KEY) if isinstance(record, dict) else None, file)
    try:
        return kind.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its parts"
        shown = "nothing" if first["type"] == "missing" else str(first["input"])[:60]
        raise InputError(f"{what} {file}, {where}", shown, str(first["msg"]), fix) from error


def check_version(text: str, of: Format, file: object) -> None:
    """Refuse a JSON text of another version; one that is no JSON object is left to whoever reads it.

    To be called before the text is held against its schema, which says nothing useful of a newer file.

    Raises:
        InputError: see :meth:`kplan.formats.Format.check`.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(record, dict):
        of.check(record.get(KEY), file)
