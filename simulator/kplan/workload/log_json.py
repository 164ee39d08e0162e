"""JSONL before Arrow reads it: brackets without end would end the process, and each key is a column."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.columns import Row
from kplan.errors import InputError
from kplan.files import most_unpacked

MOST_LEVELS = 100
"""Lists and objects in one another."""
_BLOCK = 2**24
_VALUE_BYTES = 8
_KEY = re.compile(rb'"([^"\\]*)"\s*:')
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1


def check_json(data: bytes, name: str) -> None:
    """Refuse a text that Arrow could not bear.

    Raises:
        InputError: a line nests too deeply, or a table with a column for every key would not fit.
    """
    first = 1
    for block in _blocks(data):
        levels = _levels(block)
        for at in np.flatnonzero(levels > MOST_LEVELS):
            line = block.split(b"\n")[at]
            if _levels(_TEXT.sub(b'""', line)).max() > MOST_LEVELS:  # brackets in a text are none
                where = Row(name, first + int(at)).at("1")
                raise InputError(
                    where, line[:40].decode("utf-8", "replace"), f"nests more than {MOST_LEVELS} levels"
                )
        first += block.count(b"\n")
    keys = {match[1] for match in _KEY.finditer(data)}
    values = len(keys) * (data.count(b"\n") + 1)
    if values * _VALUE_BYTES > most_unpacked(len(data)):
        bound = f"{len(keys):,} different keys make {values:,} values of its lines"
        raise InputError(name, "a table that does not fit", bound, "leave out what is not needed")


def _blocks(data: bytes) -> Iterator[bytes]:
    """Whole lines, some at a time."""
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + _BLOCK) + 1
        if end <= start:  # a line that is longer
            end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _levels(block: bytes) -> NDArray[np.int64]:
    """The deepest level of each line, by brackets alone."""
    codes = np.frombuffer(block, np.uint8)
    depth = np.cumsum(_STEPS[codes], dtype=np.int64)
    starts = np.concatenate([[0], np.flatnonzero(codes == ord("\n")) + 1])
    starts = starts[starts < len(codes)]
    before = np.concatenate([[0], depth])[starts]
    return np.asarray(np.maximum.reduceat(depth, starts) - before) if len(starts) else np.zeros(1, np.int64)
