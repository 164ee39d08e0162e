"""Tables from parquet files, within bounds: a small file may say that it holds a billion rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kplan.errors import InputError
from kplan.files import check_readable, most_unpacked
from kplan.parquetfooter import TAIL, Chunk, chunks, footer_bytes

MOST_BYTES = 2**36
"""Largest file that is read: what is asked for of it is in memory at once."""
_TEXTS = "BYTE_ARRAY"
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value in memory; of those of a length of their own see :meth:`Parquet._own_width`."""
_OF_PANDAS = b"pandas"
"""Metadata that to_pandas would trust."""
_FAULTS = (OSError, ValueError, LookupError, pa.ArrowException)
"""What pyarrow raises of a damaged file; ValueError: of a name that is not UTF-8, for one."""
_FIX = "it may be truncated: copy it again"


class Parquet:
    """A file's columns, and how to read some of them.

    Args:
        what: name of such a file in an error.
        source: the file, or its bytes.
        name: the file's name in an error.

    Raises:
        InputError: no readable parquet file.
    """

    def __init__(self, what: str, source: Path | pa.Buffer, name: str) -> None:
        self._what, self._name, self._source = what, name, source
        if isinstance(source, Path):
            check_readable(what, source, MOST_BYTES)
        try:
            self._file = self._opened(())
            self.schema: pa.Schema = self._file.schema_arrow
        except _FAULTS as error:
            raise self._damaged(error) from None
        size = source.stat().st_size if isinstance(source, Path) else source.size
        self._most_bytes = most_unpacked(size)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The columns asked for, in that order; None: all of them.

        Raises:
            InputError: damaged, or of more bytes than a file of its size has.
        """
        names = self.schema.names if columns is None else list(columns)
        texts = self._check(frozenset(names))
        try:
            table = self._opened(texts).read(columns=names)
            table = self._written_out(table)
            table.validate(full=True)  # texts that are not UTF-8 are found at their first use, else
        except _FAULTS as error:
            raise self._damaged(error) from None
        return table

    def _opened(self, texts: Sequence[str]) -> pq.ParquetFile:
        source = self._source if isinstance(self._source, Path) else pa.BufferReader(self._source)
        return pq.ParquetFile(source, read_dictionary=list(texts))

    def _damaged(self, error: BaseException) -> InputError:
        return InputError(self._what, self._name, f"not a readable parquet file ({error})"[:200], _FIX)

    def _check(self, names: frozenset[str]) -> list[str]:
        """Paths of texts, to be read as they are packed; InputError where the file tells too many bytes."""
        texts: set[str] = set()
        needed = 0
        try:
            found = [chunk for chunk in chunks(self._footer()) if chunk.path[0] in names]
        except ValueError as error:
            raise self._damaged(error) from None
        for chunk in found:
            width = _WIDTHS.get(chunk.kind) or self._own_width(chunk)
            if chunk.kind == _TEXTS and not chunk.from_the_last and self._is_text(chunk.path):
                width = _WIDTHS["INT64"]
                texts.add(".".join(chunk.path))
            needed += chunk.values * width + chunk.plain_bytes
        self._bound(needed)
        return sorted(texts)

    def _own_width(self, chunk: Chunk) -> int:
        """Bytes of a value whose length is its own: a decimal's, or of all texts, which each may repeat."""
        at = self.schema.get_field_index(chunk.path[0])
        kind = self.schema.field(at).type if at >= 0 else pa.null()
        kind = kind.value_type if _is_list(kind) else kind
        fixed = pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind)
        return int(kind.byte_width) if fixed else chunk.plain_bytes

    def _footer(self) -> bytes:
        with (
            self._source.open("rb")
            if isinstance(self._source, Path)
            else pa.BufferReader(self._source) as file
        ):
            file.seek(-TAIL, os.SEEK_END)
            size = footer_bytes(file.read(TAIL))
            file.seek(-min(size + TAIL, file.tell()), os.SEEK_END)
            return file.read(size)

    def _is_text(self, path: tuple[str, ...]) -> bool:
        """Whether it is a column of texts, or of lists of texts."""
        at = self.schema.get_field_index(path[0])
        return at >= 0 and (len(path) == 1 or (_is_list(self.schema.field(at).type) and len(path) == 3))

    def _written_out(self, table: pa.Table) -> pa.Table:
        """The table with texts in the place of what stands for them."""
        packed = [at for at, field in enumerate(table.schema) if _is_packed(field.type)]
        wanted = {at: self.schema.field(table.column_names[at]) for at in packed}
        packed = [at for at in packed if not _is_packed(wanted[at].type)]
        self._bound(sum(_text_bytes(chunk) for at in packed for chunk in table.column(at).chunks))
        for at in packed:
            column = table.column(at)
            plain = (
                self._file.read(columns=[wanted[at].name]).column(0)
                if _is_list(column.type)
                else column.cast(wanted[at].type)
            )
            table = table.set_column(at, wanted[at], plain)
        metadata = {key: told for key, told in (self.schema.metadata or {}).items() if key != _OF_PANDAS}
        return table.replace_schema_metadata(metadata)

    def _bound(self, needed: int) -> None:
        if needed > self._most_bytes:
            bound = f"tells {needed:,} bytes of values; {self._most_bytes:,} are read of a file of its size"
            raise InputError(self._what, self._name, bound, "give fewer rows or columns")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_packed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind.value_type if _is_list(kind) else kind))


def _text_bytes(chunk: pa.Array) -> int:
    """Bytes of the texts of ``chunk`` once each is written out."""
    chunk = chunk.flatten() if _is_list(chunk.type) else chunk
    if not pa.types.is_string(chunk.type.value_type) and not pa.types.is_large_string(chunk.type.value_type):
        return int(chunk.nbytes)
    lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def read_parquet(what: str, path: Path) -> pa.Table:
    """All of a parquet file. Raises InputError as :class:`Parquet` does."""
    return Parquet(what, path, str(path)).read()
