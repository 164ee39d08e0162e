"""kplan's own trace file: columnar parquet with schema version, provenance and tokenizer in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from kplan.acceptance.columns import Row, request_names
from kplan.acceptance.trace import MAX_K, ProposerTrace, TraceSet
from kplan.errors import InputError
from kplan.files import replacing
from kplan.formats import KEY, TRACES
from kplan.plainparquet import read_parquet
from kplan.provenance import Kind, Provenance, versions

METADATA_KEY = b"kplan.traces"
VERSIONS_KEY = b"kplan.versions"
"""Beside it: what wrote the file."""
DATASET = "dataset"
"""Column that names the data set of each request, in a file that holds several."""


class _ProposerMeta(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    recorded_k: int
    has_drafted: bool
    has_seen: bool = False


class _Meta(BaseModel):
    """The JSON under :data:`METADATA_KEY`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: int
    kind: Kind
    source: str
    note: str
    tokenizer: str
    notes: tuple[str, ...]
    has_loopy: bool
    proposers: dict[str, _ProposerMeta]
    aliases: dict[str, str]


def save_traces(traces: TraceSet, path: Path, beside: Mapping[str, pa.Array] | None = None) -> None:
    """Write ``traces`` as parquet, atomically; proposers that share one trace are written once.

    Args:
        traces: what to write.
        path: the file.
        beside: further columns, of n values each: :data:`DATASET`, or what other readers of the file look
            for (token ids for a replay).

    Raises:
        InputError: the folder cannot be written.
    """
    stored, aliases = _split_aliases(traces)
    columns: dict[str, pa.Array] = {
        "request_id": pa.array(traces.request_id.tolist(), pa.string()),
        "prompt_len": pa.array(traces.prompt_len, pa.int32()),
    }
    if traces.loopy is not None:
        columns["loopy"] = pa.array(traces.loopy, pa.bool_())
    for name, trace in stored.items():
        columns[f"{name}.acc"] = _ragged(trace.acc, trace.offsets)
        if trace.drafted is not None:
            columns[f"{name}.drafted"] = _ragged(trace.drafted, trace.offsets)
        if trace.seen is not None:
            columns[f"{name}.seen"] = _ragged(trace.seen, trace.offsets)
        columns[f"{name}.aligned"] = pa.array(trace.aligned, pa.bool_())
    columns |= beside or {}
    meta = _Meta(
        schema_version=TRACES.version,
        kind=traces.provenance.kind,
        source=traces.provenance.source,
        note=traces.provenance.note,
        tokenizer=traces.tokenizer,
        notes=traces.notes,
        has_loopy=traces.loopy is not None,
        proposers={
            name: _ProposerMeta(
                recorded_k=t.recorded_k, has_drafted=t.drafted is not None, has_seen=t.seen is not None
            )
            for name, t in stored.items()
        },
        aliases=aliases,
    )
    told = {METADATA_KEY: meta.model_dump_json(), VERSIONS_KEY: json.dumps(versions())}
    table = pa.table(columns).replace_schema_metadata(told)
    with replacing(path) as sink:
        pq.write_table(table, sink, compression="zstd")


def load_own(path: Path, dataset: str | None = None) -> TraceSet:
    """Read a file of :func:`save_traces`, or one data set of it; every array is checked again.

    Raises:
        InputError: one line with file, row and column: another schema version, a column that is missing or
            of another type, a null, an empty array, an acceptance of 0, above the recorded K + 1 or past the
            output; an unknown ``dataset``.
    """
    table = read_parquet("trace file", path)
    meta = _meta(table, path)
    if dataset is not None:
        table = _only(table, dataset, path)
    length = table.num_rows
    if length == 0:
        raise InputError(
            "trace file", str(path), "it holds no request", "import traces with at least one request"
        )
    prompt_len = np.asarray(_flat(table, "prompt_len", pa.int32(), path), np.int32)
    if (prompt_len < 1).any():
        row = int(np.argmax(prompt_len < 1))
        raise InputError(
            Row(path.name, row + 1).at("prompt_len"), int(prompt_len[row]), "at least 1 is needed"
        )
    proposers = {name: _load_proposer(table, name, m, path) for name, m in meta.proposers.items()}
    for alias, name in meta.aliases.items():
        if name not in proposers:
            raise InputError(
                f"{path.name}, metadata", f"{alias} -> {name}", "an alias needs a proposer of the file"
            )
        proposers[alias] = proposers[name]
    return TraceSet(
        request_id=request_names(_flat(table, "request_id", pa.string(), path).tolist(), path.name),
        prompt_len=prompt_len,
        proposers=proposers,
        provenance=Provenance(meta.kind, meta.source, meta.note),
        tokenizer=meta.tokenizer,
        notes=meta.notes,
        loopy=np.asarray(_flat(table, "loopy", pa.bool_(), path), np.bool_) if meta.has_loopy else None,
    )


def _only(table: pa.Table, dataset: str, path: Path) -> pa.Table:
    """The rows of one data set. Raises InputError with those that the file has."""
    if DATASET not in table.column_names:
        raise InputError("dataset", dataset, f"{path.name} holds one data set", "leave it out")
    labels = _flat(table, DATASET, pa.string(), path)
    if dataset not in labels:
        raise InputError("dataset", dataset, f"{path.name} has {', '.join(sorted(set(labels)))}"[:300])
    return table.filter(pa.array(labels == dataset))


def _split_aliases(traces: TraceSet) -> tuple[dict[str, ProposerTrace], dict[str, str]]:
    """Names that hold the same trace object are aliases of the one whose name says it was recorded."""
    stored: dict[str, ProposerTrace] = {}
    aliases: dict[str, str] = {}
    for name, trace in traces.proposers.items():
        twin = next((n for n, t in stored.items() if t is trace), None)
        if twin is None:
            stored[name] = trace
        else:
            aliases[name] = twin
    return stored, aliases


def _load_proposer(table: pa.Table, name: str, meta: _ProposerMeta, path: Path) -> ProposerTrace:
    if not 1 <= meta.recorded_k <= MAX_K:
        raise InputError(
            f"{path.name}, metadata, {name}.recorded_k", meta.recorded_k, f"1..{MAX_K} is accepted"
        )
    acc, offsets = _flat_lists(table, f"{name}.acc", path)
    lengths = np.diff(offsets)
    left = np.repeat(offsets[1:], lengths) - np.arange(len(acc))
    most = meta.recorded_k + 1
    _first_bad(acc, offsets, acc < 1, path, f"{name}.acc", "at least 1 is needed")
    _first_bad(acc, offsets, acc > most, path, f"{name}.acc", f"recorded K + 1 = {most}")
    _first_bad(acc, offsets, acc > left, path, f"{name}.acc", "it runs past the end of the output")
    first = np.zeros(len(acc), np.bool_)
    first[offsets[:-1]] = acc[offsets[:-1]] != 1
    _first_bad(acc, offsets, first, path, f"{name}.acc", "position 0 is the prefill and emits 1")
    drafted = seen = None
    if meta.has_drafted:
        drafted = _beside(table, name, "drafted", offsets, path)
        _first_bad(
            acc, offsets, acc > drafted.astype(np.int64) + 1, path, f"{name}.acc", "more than was drafted + 1"
        )
    if meta.has_seen:
        seen = _beside(table, name, "seen", offsets, path)
        _first_bad(seen, offsets, seen > most, path, f"{name}.seen", f"recorded K + 1 = {most}")
        unknown = "more than was verified + 1 (1 where nothing was)"
        _first_bad(acc, offsets, acc > np.maximum(seen, 1), path, f"{name}.acc", unknown)
    return ProposerTrace(
        output_len=lengths.astype(np.int32),
        offsets=offsets,
        acc=acc,
        drafted=drafted,
        aligned=np.asarray(_flat(table, f"{name}.aligned", pa.bool_(), path), np.bool_),
        recorded_k=meta.recorded_k,
        seen=seen,
    )


def _beside(
    table: pa.Table, name: str, what: str, offsets: NDArray[np.int64], path: Path
) -> NDArray[np.uint8]:
    """The values of a column whose lists are as long as those of ``acc``."""
    values, own = _flat_lists(table, f"{name}.{what}", path)
    if not np.array_equal(offsets, own):
        row = int(np.argmax(np.diff(own) != np.diff(offsets)))
        raise InputError(
            Row(path.name, row + 1).at(f"{name}.{what}"),
            f"{int(np.diff(own)[row])} values",
            f"its output has {int(np.diff(offsets)[row])} tokens",
        )
    return values


def _first_bad(
    values: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    bad: NDArray[np.bool_],
    path: Path,
    column: str,
    bound: str,
) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        raise InputError(Row(path.name, row + 1).at(column, at - int(offsets[row])), int(values[at]), bound)


def _column(table: pa.Table, name: str, kind: pa.DataType, path: Path) -> pa.Array:
    if name not in table.column_names:
        raise InputError(
            f"{path.name}, column {name}", "no such column", "the metadata names it", "import it again"
        )
    column = table.column(name)
    if column.type != kind:
        raise InputError(f"{path.name}, column {name}", str(column.type), f"type {kind} is needed")
    array = column.combine_chunks()
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(Row(path.name, row + 1).at(name), "null", "a value is needed")
    return array


def _flat(table: pa.Table, name: str, kind: pa.DataType, path: Path) -> NDArray[Any]:
    return np.asarray(_column(table, name, kind, path).to_numpy(zero_copy_only=False))


def _flat_lists(table: pa.Table, name: str, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    array = _column(table, name, pa.large_list(pa.uint8()), path)
    offsets = np.asarray(array.offsets, np.int64)
    flat = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if flat.null_count:
        at = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
        row = int(np.searchsorted(offsets - offsets[0], at, side="right")) - 1
        raise InputError(Row(path.name, row + 1).at(name), "null", "a number is needed")
    offsets = offsets - offsets[0]
    if (np.diff(offsets) < 1).any():
        row = int(np.argmax(np.diff(offsets) < 1))
        raise InputError(
            Row(path.name, row + 1).at(name), "an empty list", "an output has at least one token"
        )
    return np.array(flat.to_numpy(zero_copy_only=False), np.uint8), offsets


def _ragged(flat: NDArray[np.uint8], offsets: NDArray[np.int64]) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat, pa.uint8()))


def _meta(table: pa.Table, path: Path) -> _Meta:
    raw = (table.schema.metadata or {}).get(METADATA_KEY, b"{}")
    try:
        record = json.loads(raw)
        TRACES.check(record.get(KEY) if isinstance(record, dict) else None, path.name)
        return _Meta.model_validate(record)
    except (ValidationError, ValueError) as error:
        reason = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(map(str, reason["loc"]))
        raise InputError(
            f"{path.name}, metadata {where}", str(reason["msg"]), "written by another program?"
        ) from error
