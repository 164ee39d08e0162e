"""One door for every acceptance file: the kind is decided by content, never by guessing a default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kplan.acceptance.collect import ImportOptions
from kplan.acceptance.columns import Row
from kplan.acceptance.figures import AcceptanceFigures, load_figures
from kplan.acceptance.import_csv import COLUMNS as CSV_COLUMNS
from kplan.acceptance.import_csv import load_csv
from kplan.acceptance.import_served import load_aiperf, load_sglang, load_vllm
from kplan.acceptance.import_totals import AIPERF_KEY, BENCH_KEY, aiperf_figures, bench_figures
from kplan.acceptance.jsonl import MAX_LINE_BYTES, Progress, parse, silent
from kplan.acceptance.reference_parquet import COLUMNS, load_reference
from kplan.acceptance.specdecode_bench import KNOWN_KEYS, load_jsonl
from kplan.acceptance.store import METADATA_KEY, load_own
from kplan.acceptance.trace import TraceSet
from kplan.config.shipped import shipped_traces, trace_path
from kplan.errors import InputError
from kplan.plainparquet import Parquet

_PARQUET_MAGIC = b"PAR1"
_HEAD_BYTES = 4096
_KINDS = (
    "kplan's own parquet, the reference parquet, JSONL of SpecDecode-Bench, vLLM, SGLang or aiperf, a result "
    "of vllm bench serve, or a CSV of steps is accepted"
)
_NO_OPTIONS = ImportOptions()


def load_traces(path: Path, dataset: str | None = None) -> TraceSet:
    """Read traces from a file that says all about itself: kplan's parquet, SpecDecode-Bench's combined JSONL
    or the reference parquet.

    Args:
        path: the file, or the name of a trace that comes with kplan.
        dataset: which data set of a file that holds several; None takes all.

    Raises:
        InputError: one line that names file, row and column, or the kinds of file that are accepted.
    """
    found = load_acceptance(path, dataset)
    if isinstance(found, AcceptanceFigures):
        bound = f"it holds figures ({found.kind}) and no trace"
        shares = ",".join(f"{share:.4f}" for share in found.marginal)
        fix = f"kplan traces fit --per-position {shares} --kind marginal --k {found.recorded_k}"
        raise InputError("trace file", str(path), bound, fix)
    return found


def load_acceptance(
    path: Path,
    dataset: str | None = None,
    options: ImportOptions = _NO_OPTIONS,
    progress: Progress = silent,
) -> TraceSet | AcceptanceFigures:
    """Read any acceptance file: traces, or figures where the source keeps no more.

    Args:
        path: the file, or the name of a trace that comes with kplan.
        dataset: which data set of a file that holds several; None takes all.
        options: what the file does not say (proposer, K).
        progress: told how many bytes are read, of how many, of a file that is read row by row.

    Raises:
        InputError: as in :func:`load_traces`; also where an option is missing, or given to a file that says
            it itself.
    """
    path = trace_path(path)
    head = _head(path)
    if head.startswith(_PARQUET_MAGIC):
        _refuse(options)
        return _load_parquet(path, dataset)
    if dataset is not None:
        raise InputError("dataset", dataset, "only parquet files hold several data sets", "leave it out")
    if head.lstrip().startswith(b"{"):
        return _load_json(path, options, progress)
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace").removeprefix("\ufeff")
    if {cell.strip().strip('"') for cell in first.split(",")} & {"position", "accepted", "drafted"}:
        return load_csv(path, options, progress)
    raise InputError("trace file", str(path), _KINDS, f"a CSV needs {', '.join(CSV_COLUMNS)}")


def _head(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise InputError("trace file", str(path), "is no file", "name a file")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        fix = f"check the path, or name one that comes with kplan: {', '.join(shipped_traces())}"
        raise InputError("trace file", str(path), error.strerror or "cannot be read", fix) from error
    if not head.strip():
        raise InputError("trace file", str(path), "the file is empty", "record or import traces into it")
    return head


def _load_json(path: Path, options: ImportOptions, progress: Progress) -> TraceSet | AcceptanceFigures:
    record = _first_object(path)
    if {"schema_version", "recorded_k"} <= record.keys():
        _refuse(options)
        return load_figures(path)
    for key, whole in _TOTALS.items():
        if key in record:
            return whole(record, path, options)
    for keys, load in _SERVED:
        if keys <= record.keys():
            return load(path, options, progress)
    if not KNOWN_KEYS & record.keys():
        raise InputError("trace file", str(path), _KINDS, "none of their keys is in its first object")
    _refuse(replace(options, tokenizer=""))
    return replace(load_jsonl(path, progress), tokenizer=options.tokenizer)


_TOTALS: dict[str, Callable[[dict[str, Any], Path, ImportOptions], AcceptanceFigures]] = {
    BENCH_KEY: bench_figures,
    AIPERF_KEY: aiperf_figures,
}
_SERVED = (
    ({"meta_info"}, load_sglang),
    ({"spec_decode_acceptance"}, load_aiperf),
    ({"metadata", "metrics"}, load_aiperf),
    ({"metrics"}, load_vllm),
    ({"choices"}, load_vllm),
    ({"usage", "chunks"}, load_vllm),
)


def _first_object(path: Path) -> dict[str, Any]:
    """The first line's object, or the whole file's where one object spans lines."""
    with path.open("rb") as file:
        line = b"\n"
        number = 0
        while line and not line.strip():
            line, number = file.readline(MAX_LINE_BYTES), number + 1
        if path.stat().st_size <= MAX_LINE_BYTES and line.strip() == b"{":
            file.seek(0)
            line = file.read()
    return parse(line, Row(path.name, number))


def _refuse(options: ImportOptions) -> None:
    """Options that a file which says everything itself would contradict. Raises InputError."""
    given = {
        "--proposer": options.proposer,
        "--recorded-k": options.recorded_k,
        "--tokenizer": options.tokenizer or None,
    }
    for name, told in given.items():
        if told is not None:
            raise InputError(name, told, "the file says it itself", "leave it out")
    if options.figures:
        raise InputError("--figures", "given", "the file holds no steps of a server", "leave it out")


def _load_parquet(path: Path, dataset: str | None) -> TraceSet:
    schema = Parquet("trace file", path, str(path)).schema
    if METADATA_KEY in (schema.metadata or {}):
        return load_own(path, dataset)
    if set(schema.names) >= COLUMNS:
        return load_reference(path, dataset)
    raise InputError("trace file", str(path), _KINDS, "kplan traces import converts what it knows")
