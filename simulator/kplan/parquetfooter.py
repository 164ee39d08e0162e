"""What the footer of a parquet file says of its columns, in bytes and values.

pyarrow tells the same, and ends the whole process at some that are damaged (its accessors let exceptions of
C++ through); it reads a table only after, when the file is known to be of a size that fits. The footer is a
struct of Thrift's compact protocol (apache/parquet-format, parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAGIC = b"PAR1"
TAIL = 8
"""Bytes at the end: the footer's length and the magic."""
_DEEPEST = 32
_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_DELTA_BYTE_ARRAY = 7
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_WHOLE = (4, 5, 6)


@dataclass(frozen=True)
class Chunk:
    """One column of one group of rows.

    Attributes:
        path: names from the column down to its leaf.
        kind: physical type.
        values: of the leaf, nulls included; at least one a row.
        plain_bytes: of its pages, before compression.
        from_the_last: its texts may take bytes from those before them (DELTA_BYTE_ARRAY).
    """

    path: tuple[str, ...]
    kind: str
    values: int
    plain_bytes: int
    from_the_last: bool


def footer_bytes(tail: bytes) -> int:
    """Length of the footer, by the last 8 bytes of a file. Raises ValueError where they say none."""
    if len(tail) != TAIL or not tail.endswith(MAGIC):
        raise ValueError("it does not end as a parquet file")
    return int.from_bytes(tail[:4], "little")


def chunks(footer: bytes) -> Iterator[Chunk]:
    """The column chunks of a footer.

    Raises:
        ValueError: it is cut, or no such struct.
    """
    try:
        for group in _Compact(footer).struct()[4]:
            for column in group[1]:
                told = column[3]
                values = max(told[5], group[3], 0)
                path = tuple(name.decode("utf-8") for name in told[3])
                yield Chunk(path, _TYPES[told[1]], values, max(told[6], 0), _DELTA_BYTE_ARRAY in told[2])
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"its footer is damaged ({error})") from None


class _Compact:
    """Reader of Thrift's compact protocol: structs as mappings of field numbers."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._depth = data, 0, 0

    def struct(self) -> dict[int, Any]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("structs in structs")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._take(1)[0]) != 0:
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in _WHOLE:
            return self._integer()
        if kind == _BINARY:
            return self._take(self._unsigned())
        if kind in (_LIST, _SET):
            return self._list()
        if kind == _STRUCT:
            return self.struct()
        if kind == _DOUBLE:
            return self._take(8)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._take(1)[0]
        raise ValueError(f"a value of kind {kind}")  # maps are in no footer

    def _list(self) -> list[Any]:
        head = self._take(1)[0]
        size = head >> 4 if head >> 4 != 15 else self._unsigned()
        if size > len(self._data):
            raise ValueError("a list longer than the footer")
        return [self._value(head & 15) for _ in range(size)]

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("it is cut")
        self._at += count
        return taken

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
