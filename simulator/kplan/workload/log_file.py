"""The file of a request log as named columns: CSV, JSONL and parquet, known by content and not by name."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from kplan.errors import InputError
from kplan.files import check_readable, most_unpacked
from kplan.plainparquet import Parquet
from kplan.workload.log_json import check_json

MOST_BYTES = 2**33
"""Largest log that is read; the largest public one has 1.5 GB."""
_KINDS = "CSV, JSONL (either may be gzipped) or parquet is accepted"
MAX_BLOCK = 2**30
"""Bytes that Arrow parses at a time; its errors count the rows from the start of such a block."""
_BENCH = ("start_times", "input_lens", "output_lens")


@dataclass(frozen=True)
class LogFile:
    """A file's column names, and how to read some of them.

    Attributes:
        name: of the file, for messages.
        columns: in the file's order.
        read: the table of the columns asked for; a CSV's values stay text.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], pa.Table]


def open_log(path: Path) -> LogFile:
    """Look into a log: what kind of file it is, and which columns it has.

    Raises:
        InputError: the file cannot be read, is empty, or is of no kind that is known.
    """
    check_readable("request log", path, MOST_BYTES)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError("request log", str(path), error.strerror or str(error), "check the path") from error
    if data.startswith(b"\x1f\x8b"):
        data = _unzipped(data, path.name)
    file = _kind(data, path.name)
    twice = sorted(column for column, count in Counter(file.columns).items() if count > 1)
    if twice:
        raise InputError(path.name, f"two columns {twice[0]}", "names must differ", "rename one")
    return file


def _unzipped(data: bytes, name: str) -> bytes:
    most = most_unpacked(len(data))
    try:
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(name, "a damaged gzip file", str(error), "copy it again") from error
    if len(text) > most:
        bound = f"at most {most:,} bytes are unpacked of a file of its size"
        raise InputError(name, "a gzip file that holds more", bound, "unpack it yourself, or cut it")
    return text


def _kind(data: bytes, name: str) -> LogFile:
    if data.startswith(b"PAR1"):
        return _parquet(data, name)
    data = data.removeprefix(b"\xef\xbb\xbf")
    start = data[:4096].lstrip()
    if not start:
        raise InputError(name, "an empty file", "at least one request is needed")
    if start.startswith(b"{"):
        return _json(data, name)
    if start.startswith(b"["):
        raise InputError(name, "a JSON array", _KINDS, "write one object a line")
    return _csv(data, name)


def _parquet(data: bytes, name: str) -> LogFile:
    file = Parquet("request log", pa.py_buffer(data), name)
    return LogFile(name, tuple(file.schema.names), file.read)


def _csv(data: bytes, name: str) -> LogFile:
    header, _, _ = data.partition(b"\n")
    try:
        names = [cell.strip() for cell in next(csv.reader([header.decode("utf-8").strip()]), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(name, "a first line that is no CSV header", _KINDS) from error
    body = pa.py_buffer(data).slice(len(header) + 1) if len(data) > len(header) else pa.py_buffer(b"")
    return LogFile(name, tuple(names), partial(_csv_table, body, name, tuple(names)))


def _csv_table(body: pa.Buffer, name: str, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    if not body.size or body[: 1 << 16].to_pybytes().isspace():
        return pa.table({column: pa.array([], pa.string()) for column in columns})
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(body),
            # one thread: only then does an error give the row
            read_options=pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                include_columns=list(columns),
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise InputError(
            name, "a line that is no row", str(error)[:200], "rows count from 1, below the header"
        ) from error


def _json(data: bytes, name: str) -> LogFile:
    try:
        data.decode("utf-8")  # Arrow lets other bytes pass
    except UnicodeDecodeError as error:
        raise InputError(name, f"byte {error.start + 1}", "text in UTF-8 is needed", "save it so") from error
    check_json(data, name)
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data), read_options=pyarrow.json.ReadOptions(block_size=min(len(data), MAX_BLOCK))
        )
    except pa.ArrowInvalid as error:
        # Arrow counts the rows from 0
        reason = re.sub(r"(?<=in row )\d+", lambda row: str(int(row[0]) + 1), str(error))
        raise InputError(name, "a line that is no request", reason[:200], "one JSON object a line") from error
    if table.num_rows == 1 and set(_BENCH) <= set(table.column_names):
        table = _bench_result(table, name)
    return LogFile(name, tuple(table.column_names), lambda columns: table.select(list(columns)))


def _bench_result(table: pa.Table, name: str) -> pa.Table:
    """The requests of a result of ``vllm bench serve --save-detailed``: one object that holds lists."""
    lists = {column: table.column(column)[0].as_py() or [] for column in _BENCH}
    counts = {column: len(values) for column, values in lists.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{count} {column}" for column, count in counts.items())
        raise InputError(name, shown, "one of each a request is needed", "run the benchmark again")
    return pa.table(lists)
