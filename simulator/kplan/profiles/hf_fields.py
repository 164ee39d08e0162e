"""Typed reading of a config.json: every fault is one line with the file, the key, the bound and the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from kplan.errors import InputError

MAX_FILE_BYTES = 1_000_000
"""A config.json is some kB; a larger file is something else."""
LARGEST = 10_000_000
"""No count of a model is larger (the widest vocabularies are some 300,000)."""
LAYERS = 10_000
"""No model is deeper."""


class Fields:
    """The values of one JSON object.

    Args:
        values: the object.
        origin: what to call it in a message: the file, and the key of a nested object.
    """

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self.values, self.origin = values, origin

    def fault(self, key: str, value: object, bound: str, fix: str = "") -> InputError:
        """The error to raise for the value of ``key``."""
        return InputError(f"{self.origin}: {key}", value, bound, fix or "mend that key")

    def first(self, *keys: str) -> str | None:
        """The first of ``keys`` that has a value (null is none)."""
        return next((key for key in keys if self.values.get(key) is not None), None)

    def count(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number under the first of ``keys`` that is there, else ``default``.

        Raises:
            InputError: it is missing without a default, is no whole number, or lies outside least..most.
        """
        key = self.first(*keys)
        if key is None:
            if default is None:
                raise self.fault(keys[0], "nothing", "is needed", f"add {' or '.join(keys)}")
            return default
        value = self.values[key]
        if type(value) is not int:  # a bool is an int, 4096.0 and NaN are not
            raise self.fault(key, value, f"must be a whole number from {least} to {most}")
        if not least <= value <= most:
            raise self.fault(key, value, f"must lie in {least}..{most}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The boolean under ``key``, else ``default``. Raises InputError for anything else."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.fault(key, value, "must be true or false")
        return value

    def text(self, *keys: str) -> str:
        """The text under the first of ``keys`` that is there, else "". Raises InputError if it is none."""
        key = self.first(*keys)
        if key is None:
            return ""
        value = self.values[key]
        if not isinstance(value, str):
            raise self.fault(key, value, "must be text")
        return value

    def texts(self, key: str) -> list[str] | None:
        """The list of texts under ``key``; None without one. Raises InputError for anything else."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.fault(key, value, "must be a list of texts")
        return value

    def nested(self, key: str) -> Fields | None:
        """The object under ``key``; None without one. Raises InputError for anything else."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fault(key, value, "must be an object")
        return Fields(value, f"{self.origin}: {key}")


def read_fields(path: Path) -> Fields:
    """The object in a JSON file.

    Raises:
        InputError: it cannot be read, is too large, or holds no JSON object.
    """
    what = "model config"
    try:
        status = path.stat()
        if not (S_ISREG(status.st_mode) or S_ISDIR(status.st_mode)):  # a pipe waits, a device never ends
            raise InputError(what, str(path), "is no regular file", "give a config.json")
        size = status.st_size
        if size > MAX_FILE_BYTES:
            raise InputError(
                what, str(path), f"is {size:,} bytes, more than {MAX_FILE_BYTES:,}", "give a config.json"
            )
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(what, str(path), f"cannot be read ({error.strerror})", "check the path") from None
    except (ValueError, RecursionError) as error:
        raise InputError(what, str(path), f"is not JSON ({error})", "give a config.json") from None
    if not isinstance(values, dict):
        raise InputError(what, str(path), "must hold a JSON object", "give a config.json")
    return Fields(values, str(path))
