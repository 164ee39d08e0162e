"""Parquet tables: what a footer says, what is read back, what is refused."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kplan.errors import InputError
from kplan.parquetfooter import chunks
from kplan.plainparquet import Parquet, read_parquet

TABLE = pa.table(
    {
        "whole": pa.array([1, None, 3], pa.int32()),
        "share": [0.5, 1.5, float("nan")],
        "text": ["a", None, "né"],
        "texts": [["x", "y"], [], None],
        "numbers": [[1, 2, 3], [4], []],
        "both": [{"a": 1, "b": "p"}, None, {"a": None, "b": "q"}],
        "flag": [True, False, None],
        "money": pa.array([Decimal("1.50"), None, Decimal("2.25")], pa.decimal128(20, 2)),
        "raw": pa.array([b"ab", b"cd", None], pa.binary(2)),
        "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
    }
)


@pytest.fixture(params=[{}, {"use_dictionary": False, "compression": "none"}, {"row_group_size": 2}])
def data(request: pytest.FixtureRequest) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, **request.param)
    return sink.getvalue()


def test_the_footer_says_what_arrow_reads_of_it(data: bytes) -> None:
    theirs = []
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    for group in (metadata.row_group(at) for at in range(metadata.num_row_groups)):
        for one in (group.column(at) for at in range(group.num_columns)):
            values = max(one.num_values, group.num_rows)
            theirs.append((one.path_in_schema, one.physical_type, values, one.total_uncompressed_size))
    size = int.from_bytes(data[-8:-4], "little")
    ours = [
        (".".join(one.path), one.kind, one.values, one.plain_bytes) for one in chunks(data[-8 - size : -8])
    ]
    assert ours == theirs


def test_a_table_is_read_as_arrow_reads_it(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(data)
    for ours in (read_parquet("table", path), Parquet("table", pa.py_buffer(data), "t").read()):
        theirs = pq.read_table(path)
        assert ours.schema.equals(theirs.schema)
        assert str(ours.to_pylist()) == str(theirs.to_pylist())  # NaN is NaN as text
    assert Parquet("table", path, "t").read(["texts", "whole"]).column_names == ["texts", "whole"]


def test_a_flipped_bit_anywhere_is_read_or_refused(data: bytes) -> None:
    """Some of these footers end the process where pyarrow is asked for what they say of a column."""
    refused = 0
    for at in range(len(data) % 5, len(data), 5):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        try:
            str(Parquet("table", pa.py_buffer(bytes(flipped)), "t").read().to_pylist())
        except InputError:
            refused += 1
    assert refused > len(data) // 100


@pytest.mark.parametrize(
    "tail", [b"", b"\x00" * 8, b"\x15" * 40, b"\xff" * 40, b"\x4c" * 5000, b"\x49\xf5\xff\xff\xff\x0f"]
)
def test_a_footer_that_is_none(tail: bytes) -> None:
    with pytest.raises(ValueError, match="its footer is damaged"):
        list(chunks(tail))
