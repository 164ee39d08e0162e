"""kplan's own trace file: what goes in comes out, and a damaged file is named, not believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from kplan.acceptance import ProposerTrace, TraceSet, load_traces, save_traces
from kplan.acceptance.columns import select
from kplan.acceptance.store import METADATA_KEY
from kplan.errors import InputError
from tests.acceptance.made import set_of, trace_of, traces


def assert_same(a: ProposerTrace, b: ProposerTrace) -> None:
    for name in ("output_len", "offsets", "acc", "aligned"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert (a.drafted is None) == (b.drafted is None)
    if a.drafted is not None and b.drafted is not None:
        np.testing.assert_array_equal(a.drafted, b.drafted)
    assert a.recorded_k == b.recorded_k


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_round_trip(tmp_path: Path, trace: ProposerTrace) -> None:
    path = tmp_path / "t.parquet"
    made = replace(
        set_of(trace), tokenizer="t", notes=("n",), loopy=np.zeros(len(trace.output_len), np.bool_)
    )
    save_traces(made, path)
    found = load_traces(path)
    assert_same(found.proposers["made"], trace)
    assert found.request_id.tolist() == made.request_id.tolist()
    assert found.prompt_len.tolist() == made.prompt_len.tolist()
    assert (found.provenance, found.tokenizer, found.notes) == (made.provenance, "t", ("n",))
    assert found.loopy is not None
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_an_alias_is_stored_once_and_stays_one(tmp_path: Path) -> None:
    trace = trace_of([[1, 2, 1]], 3)
    save_traces(replace(set_of(trace), proposers={"eagle3": trace, "eagle": trace}), tmp_path / "t.parquet")
    assert "eagle.acc" not in pq.read_schema(tmp_path / "t.parquet").names
    found = load_traces(tmp_path / "t.parquet")
    assert found.proposers["eagle"] is found.proposers["eagle3"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    save_traces(set_of(trace_of([[1, 2, 1]], 3)), path)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(InputError, match="disk full"):
        save_traces(set_of(trace_of([[1]], 3)), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="output file"):
        save_traces(set_of(trace_of([[1]], 3)), tmp_path / "none" / "t.parquet")


Damage = Callable[[pa.Table, dict[str, Any]], pa.Table]


def lists(*rows: list[int | None] | None) -> pa.Array:
    return pa.array(rows, pa.large_list(pa.uint8()))


def put(column: str, values: pa.Array) -> Damage:
    return lambda table, _: table.set_column(table.column_names.index(column), column, values)


def meta(**changes: Any) -> Damage:
    def damage(table: pa.Table, record: dict[str, Any]) -> pa.Table:
        record.update(changes)
        return table

    return damage


DAMAGED: dict[str, tuple[Damage, str]] = {
    "zero": (put("p.acc", lists([1, 2, 1], [1, 0])), "row 2, column p.acc[1]: got 0"),
    "above K": (put("p.acc", lists([1, 9, 1], [1, 1])), "row 1, column p.acc[1]: got 9"),
    "past the end": (put("p.acc", lists([1, 2, 2], [1, 1])), "row 1, column p.acc[2]: got 2"),
    "no prefill": (put("p.acc", lists([2, 2, 1], [1, 1])), "row 1, column p.acc[0]: got 2"),
    "null row": (
        put("p.acc", pa.array([None, [1]], pa.large_list(pa.uint8()))),
        "row 1, column p.acc: got 'null'",
    ),
    "null value": (put("p.acc", lists([1, 2, 1], [1, None])), "row 2, column p.acc: got 'null'"),
    "empty row": (put("p.acc", lists([1, 2, 1], [])), "row 2, column p.acc: got 'an empty list'"),
    "dtype": (put("p.acc", pa.array([[1.0], [1.5]])), "column p.acc: got 'list<"),
    "short": (put("p.drafted", lists([0, 3], [0, 3])), "row 1, column p.drafted: got '2 values'"),
    "undrafted": (put("p.drafted", lists([0, 0, 3], [0, 3])), "row 1, column p.acc[1]: got 2"),
    "prompt": (put("prompt_len", pa.array([1, -4], pa.int32())), "row 2, column prompt_len: got -4"),
    "column gone": (lambda table, _: table.drop_columns(["p.acc"]), "column p.acc: got 'no such column'"),
    "schema": (meta(schema_version=3), "schema_version: got 3, made by a newer kplan"),
    "extra key": (meta(colour="red"), "metadata colour"),
    "alias": (meta(aliases={"q": "r"}), "q -> r"),
    "no rows": (lambda table, _: table.slice(0, 0), "holds no request"),
    "K": (meta(proposers={"p": {"recorded_k": 999, "has_drafted": True}}), "p.recorded_k: got 999"),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named(tmp_path: Path, damage: Damage, expected: str) -> None:
    path = tmp_path / "t.parquet"
    save_traces(set_of(trace_of([[1, 2, 1], [1, 1]], 4, [[0, 3, 3], [0, 3]]), "p"), path)
    table = pq.read_table(path)
    record = json.loads(table.schema.metadata[METADATA_KEY])
    table = damage(table, record)
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(record).encode()}), path)
    with pytest.raises(InputError) as error:
        load_traces(path)
    assert expected in str(error.value)
    assert "t.parquet" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_traces(set_of(trace_of([[1, 2, 1]], 4)), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a readable parquet file"):
        load_traces(path)


def test_another_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="is accepted"):
        load_traces(tmp_path / "t.parquet")


def test_a_million_positions_load_in_a_second(tmp_path: Path) -> None:
    import time

    n, length = 2000, 500
    trace = ProposerTrace(
        output_len=np.full(n, length, np.int32),
        offsets=np.arange(n + 1, dtype=np.int64) * length,
        acc=np.ones(n * length, np.uint8),
        drafted=None,
        aligned=np.ones(n, np.bool_),
        recorded_k=5,
    )
    save_traces(set_of(trace), tmp_path / "t.parquet")
    start = time.perf_counter()
    found: TraceSet = load_traces(tmp_path / "t.parquet")
    assert time.perf_counter() - start < 1.0
    assert len(found.proposers["made"].acc) == n * length


SEEN_DAMAGED: dict[str, tuple[Damage, str]] = {
    "above K": (
        put("p.seen", lists([0, 6, 0], [0, 3])),
        "row 1, column p.seen[1]: got 6, recorded K + 1",
    ),
    "more than verified": (put("p.seen", lists([0, 1, 0], [0, 3])), "row 1, column p.acc[1]: got 2"),
    "unknown and more": (put("p.seen", lists([0, 0, 0], [0, 3])), "row 1, column p.acc[1]: got 2"),
    "short": (put("p.seen", lists([0, 5], [0, 3])), "row 1, column p.seen: got '2 values'"),
    "null": (put("p.seen", lists([0, 5, None], [0, 3])), "row 1, column p.seen: got 'null'"),
    "dtype": (put("p.seen", pa.array([[0.0], [1.5]])), "column p.seen: got 'list<"),
    "gone": (lambda table, _: table.drop_columns(["p.seen"]), "column p.seen: got 'no such column'"),
}


@pytest.mark.parametrize(("damage", "expected"), SEEN_DAMAGED.values(), ids=SEEN_DAMAGED)
def test_what_is_known_is_checked_too(tmp_path: Path, damage: Damage, expected: str) -> None:
    path = tmp_path / "t.parquet"
    trace = replace(trace_of([[1, 2, 1], [1, 1]], 4), seen=np.array([0, 5, 0, 0, 3], np.uint8))
    save_traces(set_of(trace, "p"), path)
    table = pq.read_table(path)
    kept = table.schema.metadata
    pq.write_table(damage(table, {}).replace_schema_metadata(kept), path)
    with pytest.raises(InputError) as error:
        load_traces(path)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_version_1_is_read(tmp_path: Path) -> None:
    """Version 1 had no ``has_seen``: every position was verified."""
    path = tmp_path / "t.parquet"
    save_traces(set_of(trace_of([[1, 2, 1]], 4), "p"), path)
    table = pq.read_table(path)
    record = json.loads(table.schema.metadata[METADATA_KEY])
    record["schema_version"] = 1
    for proposer in record["proposers"].values():
        del proposer["has_seen"]
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(record).encode()}), path)
    found = load_traces(path).proposers["p"]
    assert found.acc.tolist() == [1, 2, 1]
    assert found.seen is None


def test_requests_selected_keep_what_is_known(tmp_path: Path) -> None:
    trace = replace(trace_of([[1, 2, 1], [1, 1]], 4), seen=np.array([0, 5, 0, 0, 3], np.uint8))
    chosen = select(trace, np.array([1, 0]))
    assert chosen.seen is not None
    assert chosen.seen.tolist() == [0, 3, 0, 5, 0]


def test_a_file_of_several_data_sets_gives_the_one_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    labels = pa.array(["chat", "code", "chat"], pa.string())
    save_traces(set_of(trace_of([[1, 2, 1], [1, 3, 1, 1], [1, 1]], 3)), path, {"dataset": labels})
    assert load_traces(path).proposers["made"].output_len.tolist() == [3, 4, 2]
    assert load_traces(path, "chat").proposers["made"].acc.tolist() == [1, 2, 1, 1, 1]
    with pytest.raises(InputError, match=r"'maths', t\.parquet has chat, code"):
        load_traces(path, "maths")


def test_a_file_of_one_data_set_refuses_the_choice(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_traces(set_of(trace_of([[1, 2, 1]], 3)), path)
    with pytest.raises(InputError, match="holds one data set; leave it out"):
        load_traces(path, "chat")
