"""Columns of the record files, and how they become parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kplan.formats import KEY, RECORDS

METADATA_KEY = b"kplan.records"


class Column(NamedTuple):
    """A column of a file: its type, its unit and what it says."""

    kind: Any
    unit: str
    what: str


_WHERE = {
    "replication": Column(pa.int32(), "", "0 and up; its seed is in run.json"),
    "replica": Column(pa.int32(), "", "0 and up; with data-parallel ranks: replica x ranks + rank"),
}

STEP_COLUMNS: Mapping[str, Column] = {
    **_WHERE,
    "step": Column(pa.int64(), "", "0 and up on its replica, warm-up and drain included"),
    "start_s": Column(pa.float64(), "s", "since the start of the replication"),
    "end_s": Column(pa.float64(), "s", "start_s + verify_s + draft_s + sampling_s + overhead_s"),
    "verify_s": Column(pa.float64(), "s", "target pass"),
    "draft_s": Column(pa.float64(), "s", "drafter"),
    "sampling_s": Column(pa.float64(), "s", "sampler"),
    "overhead_s": Column(pa.float64(), "s", "host time that shows, and the wait for slower ranks"),
    "batch": Column(pa.int32(), "requests", "in the step"),
    "decodes": Column(pa.int32(), "requests", "of the batch that decoded; the others prefilled"),
    "query_tokens": Column(
        pa.int32(), "tokens", "through the target: prompt chunks, drafts and one a decode"
    ),
    "context": Column(pa.int64(), "tokens", "summed over the requests that decoded"),
    "k": Column(pa.int32(), "tokens", "deepest draft asked for (vLLM: for the next step)"),
    "proposed": Column(pa.int32(), "tokens", "drafts verified"),
    "accepted": Column(pa.int32(), "tokens", "drafts that were right, also beyond an output's end"),
    "emitted": Column(pa.int32(), "tokens", "output tokens, first ones included"),
    "decode_emitted": Column(pa.int32(), "tokens", "output tokens of the requests that decoded"),
    "finished": Column(pa.int32(), "requests", "that ended with the step"),
    "running": Column(pa.int32(), "requests", "admitted when the step was built"),
    "waiting": Column(pa.int32(), "requests", "arrived or preempted, and not admitted"),
    "used_blocks": Column(pa.int32(), "blocks", "of KV cache that requests held"),
    "preemptions": Column(pa.int32(), "", "on the replica so far"),
    "switches": Column(pa.int32(), "requests", "whose drafts came from another proposer than before"),
    "measured": Column(pa.bool_(), "", "inside the measured window: counts in means and rates"),
}

REQUEST_COLUMNS: Mapping[str, Column] = {
    **_WHERE,
    "request": Column(pa.int64(), "", "0 and up over all replicas, as drawn"),
    "arrival_s": Column(pa.float64(), "s", "since the start of the replication"),
    "admitted_s": Column(pa.float64(), "s", "into the running batch, for the first time"),
    "first_token_s": Column(pa.float64(), "s", "end of the step that emitted it"),
    "finish_s": Column(pa.float64(), "s", "end of the step that emitted the last token"),
    "ttft_s": Column(pa.float64(), "s", "first_token_s - arrival_s"),
    "tpot_s": Column(pa.float64(), "s", "(finish_s - first_token_s) / (output_len - 1); null for one token"),
    "prompt_len": Column(pa.int32(), "tokens", ""),
    "output_len": Column(pa.int32(), "tokens", ""),
    "steps": Column(pa.int32(), "", "in which it decoded"),
    "proposed": Column(pa.int32(), "tokens", "drafts verified"),
    "accepted": Column(pa.int32(), "tokens", "drafts that were right, also beyond its end"),
    "preempted": Column(pa.int32(), "", "how often"),
    "cached_tokens": Column(
        pa.int32(), "tokens", "of the prompt that its first admission found in the cache"
    ),
    "measured": Column(pa.bool_(), "", "inside the measured window: counts in TTFT and TPOT"),
}


def open_table(sink: BinaryIO, name: str, columns: Mapping[str, Column], origin: Mapping[str, Any]) -> Any:
    """A parquet writer whose schema says what every column is and where the rows come from."""
    meta = {
        KEY: RECORDS.version,
        "table": name,
        "columns": {name: {"unit": one.unit, "what": one.what} for name, one in columns.items()},
        **origin,
    }
    fields = [pa.field(name, column.kind) for name, column in columns.items()]
    schema = pa.schema(fields, {METADATA_KEY: json.dumps(meta).encode()})
    return pq.ParquetWriter(sink, schema, compression="zstd")


def as_table(columns: Mapping[str, Column], values: Mapping[str, Any], schema: Any) -> Any:
    """The columns as an arrow table; NaN becomes null."""
    arrays = [pa.array(values[name], column.kind, from_pandas=True) for name, column in columns.items()]
    return pa.table(arrays, schema=schema)
