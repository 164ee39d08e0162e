"""Importer of the reference parquet: SpecDecode-Bench's recordings as columns, several data sets in one file.

Columns used: ``dataset, request_id, prompt_len, output_len, eagle_len, eagle_aligned, loopy, acc_ngram,
acc_eagle, ngram_match_k, acc_suffix, suffix_k``; each list column has one uint8 per output token. The n-gram
columns are lookup 3..7; those of another lookup (``acc_ngram_2_5``) become the proposer ``ngram-2-5``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kplan.acceptance.columns import Row, TraceBuilder, acceptance, integers, request_names
from kplan.acceptance.heads import RECORDED_HEAD, with_aliases
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError
from kplan.plainparquet import read_parquet
from kplan.provenance import Kind, Provenance

if TYPE_CHECKING:
    import pandas as pd

RECORDED_K = 20
COLUMNS = frozenset(
    {"dataset", "request_id", "prompt_len", "output_len", "eagle_len", "eagle_aligned", "loopy"}
    | {"acc_ngram", "acc_eagle", "ngram_match_k"}
)
_LOOKUPS = (
    ("ngram", "acc_ngram", "ngram_match_k"),
    ("ngram-2-5", "acc_ngram_2_5", "ngram_2_5_k"),
    ("suffix", "acc_suffix", "suffix_k"),
)


def load_reference(path: Path, dataset: str | None = None) -> TraceSet:
    """Read one data set of the file, or all of them with ids ``dataset/request_id``.

    Raises:
        InputError: one line with file, row and column; an unknown ``dataset`` names those the file has.
    """
    frame = read_parquet("trace file", path).to_pandas()
    names = sorted(map(str, frame["dataset"].unique()))
    if dataset is not None:
        if dataset not in names:
            raise InputError("dataset", dataset, f"{path.name} has {', '.join(names)}")
        frame = frame[frame["dataset"] == dataset]
    if frame.empty:
        raise InputError("trace file", str(path), "it holds no request")
    eagle = _eagle(frame, path)
    builders = {
        name: _lookup(frame, path, acc, k) for name, acc, k in _LOOKUPS if {acc, k} <= set(frame.columns)
    }
    proposers, alias_notes = with_aliases(
        {RECORDED_HEAD: eagle.build(), **{name: builder.build() for name, builder in builders.items()}}
    )
    notes = list(alias_notes)
    if eagle.unaligned_rows:
        notes.append(
            f"{RECORDED_HEAD}: {eagle.unaligned_rows} rows belong to another generation than the other "
            "proposers: not for joint use"
        )
    for name, builder in {RECORDED_HEAD: eagle, **builders}.items():
        if builder.clipped_positions:
            notes.append(
                f"{name}: {builder.clipped_positions} positions ran past the output's end and were clipped"
            )
    loopy = frame["loopy"].to_numpy(np.bool_)
    if loopy.any():
        notes.append(f"{int(loopy.sum())} rows degenerate into repetition (loopy)")
    ids = frame["request_id"].astype(str)
    if not dataset:
        ids = frame["dataset"].astype(str) + "/" + ids
    return TraceSet(
        request_id=request_names(list(ids), path.name),
        prompt_len=_lengths(frame, "prompt_len", path).astype(np.int32),
        proposers=proposers,
        provenance=Provenance(
            Kind.MEASURED,
            f"SpecDecode-Bench/simulator @2fdccbd, {dataset or ', '.join(names)}",
            f"Llama-3.1-8B-Instruct, greedy, vLLM, H100, K={RECORDED_K}; suffix and lookup 2..5 replayed",
        ),
        tokenizer="Llama-3.1",
        notes=tuple(notes),
        loopy=loopy,
    )


def _lengths(frame: pd.DataFrame, column: str, path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    values = frame[column].to_numpy()
    bad = (
        ~np.isfinite(values) | (values < 1) | (values != np.floor(values))
        if values.dtype.kind in "iuf"
        else None
    )
    if bad is None or bad.any():
        at = 0 if bad is None else int(np.argmax(bad))
        raise InputError(
            Row(path.name, int(frame.index[at]) + 1).at(column), str(values[at]), "an integer >= 1 is needed"
        )
    return values.astype(np.int64)


def _eagle(frame: pd.DataFrame, path: Path) -> TraceBuilder:
    builder = TraceBuilder(RECORDED_K, has_drafted=False)
    lengths = _lengths(frame, "eagle_len", path)
    rows = zip(frame.index, frame["acc_eagle"], frame["eagle_aligned"], lengths, strict=True)
    for number, values, aligned, length in rows:
        where = Row(path.name, int(number) + 1)
        acc = acceptance(values, where, "acc_eagle", RECORDED_K)
        _same_length(where, "acc_eagle", len(acc), int(length))
        builder.add(acc, aligned=bool(aligned))
    return builder


def _lookup(frame: pd.DataFrame, path: Path, acc_column: str, drafted_column: str) -> TraceBuilder:
    builder = TraceBuilder(RECORDED_K, has_drafted=True)
    lengths = _lengths(frame, "output_len", path)
    rows = zip(frame.index, frame[acc_column], frame[drafted_column], lengths, strict=True)
    for number, values, drafts, length in rows:
        where = Row(path.name, int(number) + 1)
        acc = acceptance(values, where, acc_column, RECORDED_K)
        drafted = integers(drafts, where, drafted_column, 0, RECORDED_K)
        _same_length(where, acc_column, len(acc), int(length))
        _same_length(where, drafted_column, len(drafted), int(length))
        builder.add(acc, drafted, aligned=True)
    return builder


def _same_length(where: Row, column: str, got: int, length: int) -> None:
    if got != length:
        raise InputError(where.at(column), f"{got} values", f"its output has {length} tokens", "drop the row")
