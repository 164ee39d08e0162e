"""Damage to a file: what a disk, an editor, another program or somebody hostile would do to it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1e-320,
    1.5,
    -0.0,
    1e308,
    "",
    "x",
    "NaN",
    "-1",
    "1e999",
    "../../etc/passwd",
    "/etc/passwd",
    "a\x00b",
    "\u2028",
    "\x1b[31m",
    "\ufeff",
    "\ud800",
    "a" * 5000,
    "é漢🎈",
    "table:1-=9",
    "fixed:99999999999999999999",
    "os:system",
    [],
    {},
    [[]],
    [None],
    [1, "x", None],
    {"": None},
    {"a": {"b": []}},
    float("nan"),
    float("inf"),
    -float("inf"),
)
"""What stands in the place of a value, in whatever format."""
WORDS: tuple[bytes, ...] = (
    b"",
    b"null",
    b"~",
    b"true",
    b"NaN",
    b".nan",
    b".inf",
    b"-.inf",
    b"Infinity",
    b"1e999",
    b"-1",
    b"0",
    b"0x" + b"f" * 4000,
    b"9" * 4301,
    b"9" * 400,
    b"1:59:59:59",
    b"1" + b":59" * 300 + b".5",
    b"2026-13-45",
    b"2026-01-01T00:00:00+99:99",
    b"!!int x",
    b"!!int ''",
    b"!!float ''",
    b"!!bool x",
    b"!!timestamp x",
    b"!!binary x",
    b"!!python/object/apply:os.system ['true']",
    b"!!set {a}",
    b"&a [*a]",
    b"*a",
    b"<<: 1",
    b"? [a]",
    b"{a: 1",
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b"'",
    b"[[[[[[[[",
    b"\t",
    b"\r\n",
    b"\r",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"\x1b[2J",
    "\u2028".encode(),
    b"#",
    b"---\n",
    b"...\n",
    b"1_000",
    b"-0",
    b"+1",
    b"0o17",
    b"../../../etc/passwd",
    b"/dev/zero",
    b"a" * 3000,
)
"""The same as bytes of a text."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|[^\s\w]')


def mutate(data: bytes, rng: Random) -> bytes:
    """One to four kinds of damage to ``data``, of which most leave most of it whole."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kinds = _OF_PARQUET if data.startswith(b"PAR1") else _OF_JSON if data[:1] in b"{[" else _OF_TEXT
        data = rng.choice(kinds)(data, rng)
    return data


def _flip(data: bytes, rng: Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 16))):
        if made:
            made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _byte(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return (
        data[:at]
        + bytes([rng.choice((0, 10, 13, 34, 39, 44, 58, 91, 123, 128, 192, 255))])
        + data[at + rng.randrange(2) :]
    )


def _slice(data: bytes, rng: Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 4, 30, 200, len(data))))


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _delete(data: bytes, rng: Random) -> bytes:
    start, end = _slice(data, rng)
    return data[:start] + data[end:]


def _double(data: bytes, rng: Random) -> bytes:
    start, end = _slice(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _move(data: bytes, rng: Random) -> bytes:
    start, end = _slice(data, rng)
    rest = data[:start] + data[end:]
    at = rng.randrange(len(rest) + 1)
    return rest[:at] + data[start:end] + rest[at:]


def _word(data: bytes, rng: Random) -> bytes:
    """A token (a text, a number, a sign) becomes another one."""
    tokens = list(_TOKEN.finditer(data))
    if not tokens:
        return data + rng.choice(WORDS)
    token = rng.choice(tokens)
    given = rng.choice(WORDS) if rng.randrange(4) else rng.choice(tokens)[0]
    return data[: token.start()] + given + data[token.end() :]


def _lines(data: bytes, rng: Random) -> bytes:
    """A line is lost, doubled, moved or indented."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    else:
        lines[at] = rng.choice((b" ", b"\t", b"- ", b"? ", b"# ")) + lines[at]
    return b"\n".join(lines)


def _ends(data: bytes, rng: Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\x00", b"\x0b", b"")))


def _encoded(data: bytes, rng: Random) -> bytes:
    kind = rng.choice(("utf-8-sig", "utf-16", "utf-32", "utf-7", "cp500"))
    return data.decode("utf-8", "replace").encode(kind, "replace")


def _empty(data: bytes, rng: Random) -> bytes:
    return rng.choice(
        (
            b"",
            b" ",
            b"\n",
            b"\x00" * 100,
            b"null",
            b"[]",
            b"{}",
            b"0",
            b'""',
            b"PAR1",
            b"\x1f\x8b",
            b"PK\x03\x04",
        )
    )


def _deep(data: bytes, rng: Random) -> bytes:
    """Brackets without an end, alone or where a value stood."""
    depth = rng.choice((100, 2000, 100_000))
    made = rng.choice(
        (b"[" * depth + b"]" * depth, b"[" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"- " * depth)
    )
    tokens = list(_TOKEN.finditer(data))
    if not tokens or rng.randrange(3) == 0:
        return made
    token = rng.choice(tokens)
    return data[: token.start()] + made + data[token.end() :]


def _value(data: bytes, rng: Random) -> bytes:
    """A value of a JSON text (or of one of its lines) becomes another one, loses a key, or gets one more."""
    lines = data.split(b"\n") if b"\n{" in data.strip() else [data]
    at = rng.randrange(len(lines))
    try:
        record = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _word(data, rng)
    lines[at] = json.dumps(_changed(record, rng)).encode()
    return b"\n".join(lines)


def _changed(value: Any, rng: Random) -> Any:
    if isinstance(value, dict) and value and rng.randrange(5):
        key = rng.choice(list(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return {**value, rng.choice(("x", "", key.upper(), "\ud800")): rng.choice(VALUES)}
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.randrange(5):
        at = rng.randrange(len(value))
        kind = rng.randrange(8)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value[:at] + [value[at]] * rng.choice((2, 300)) + value[at + 1 :]
        return [*value[:at], _changed(value[at], rng), *value[at + 1 :]]
    if type(value) in (int, float) and rng.randrange(2):
        return rng.choice(
            (-value, value + 1, value * 1000, value / 1e3, value * 1e30, str(value), [value], float(value))
        )
    return rng.choice(VALUES)


def _column(data: bytes, rng: Random) -> bytes:
    """A column of a parquet table is lost, doubled, of another type, or has other values."""
    try:
        table = pq.read_table(io.BytesIO(data))
    except (OSError, pa.ArrowException):
        return _flip(data, rng)
    if not table.num_columns:
        return _flip(data, rng)
    at = rng.randrange(table.num_columns)
    name, kind = table.column_names[at], rng.randrange(5)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.slice(0, rng.randrange(table.num_rows + 1))
    elif kind == 2:
        table = table.replace_schema_metadata(
            {k: _value(v, rng) for k, v in (table.schema.metadata or {}).items()}
        )
    else:
        values = table.column(at).to_pylist()
        values = [_changed(one, rng) for one in values] if kind == 3 else [rng.choice(VALUES)] * len(values)
        try:
            table = table.set_column(at, name, pa.array(values))
        except (pa.ArrowException, OverflowError, UnicodeError):
            table = table.set_column(
                at, name, pa.array([str(one).encode("utf-8", "replace") for one in values])
            )
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink, compression=rng.choice(("none", "snappy", "zstd")))
    except (pa.ArrowException, UnicodeError):  # no parquet can hold it
        return _flip(data, rng)
    return sink.getvalue()


Damage = Callable[[bytes, Random], bytes]
_BYTES: tuple[Damage, ...] = (_flip, _byte, _cut, _delete, _double, _move, _empty)
_OF_TEXT: tuple[Damage, ...] = (*_BYTES, _word, _word, _word, _word, _lines, _lines, _ends, _encoded, _deep)
_OF_JSON: tuple[Damage, ...] = (*_OF_TEXT, _value, _value, _value, _value, _value, _value)
_OF_PARQUET: tuple[Damage, ...] = (_flip, _flip, _cut, _delete, _column, _column, _column, _column)
