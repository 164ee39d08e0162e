"""Where a figure comes from, and what produced a result."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """How a figure was obtained. Nothing is called measured that was assumed."""

    MEASURED = "measured"
    FITTED = "fitted"
    PUBLISHED = "published"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Provenance:
    """Source of a figure or a file: how obtained, from where, and anything a reader must know."""

    kind: Kind
    source: str
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A number with its source and, when it was fitted, its standard error (same unit)."""

    value: float
    provenance: Provenance
    stderr: float | None = None


def versions() -> dict[str, str]:
    """Versions that a result depends on; the same versions and seed give the same bytes."""
    return {
        "kplan": version("kplan"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
    }


def other_versions(made_with: Mapping[str, str]) -> dict[str, str]:
    """What a result was made with that is another here: name -> its version; of Python the first two numbers
    count, for within them arithmetic stays as it is.

    Args:
        made_with: as :func:`versions` told it then; what it does not tell is left out.
    """
    here = versions()
    return {
        name: was
        for name, was in made_with.items()
        if name in here and _felt(name, was) != _felt(name, here[name])
    }


def _felt(name: str, number: str) -> list[str]:
    """The parts of a version that a figure may depend on."""
    return number.split(".")[: 2 if name == "python" else None]


def file_digest(path: Path) -> str:
    """Hash of a file's bytes (16 hex digits)."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def digest(record: Mapping[str, Any]) -> str:
    """Hash of a JSON-like record, independent of key order (16 hex digits)."""
    text = json.dumps(record, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
