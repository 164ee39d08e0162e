"""One door for every trace file: the kind is decided by content, never by guessing a default."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kplan.acceptance.reference_parquet import COLUMNS, load_reference
from kplan.acceptance.specdecode_bench import load_jsonl
from kplan.acceptance.store import METADATA_KEY, load_own
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError

_PARQUET_MAGIC = b"PAR1"
_KINDS = "kplan's own parquet, SpecDecode-Bench JSONL or the reference parquet is accepted"


def load_traces(path: Path, dataset: str | None = None) -> TraceSet:
    """Read traces from kplan's parquet, SpecDecode-Bench's combined JSONL or the reference parquet.

    Args:
        path: the file.
        dataset: which data set of a file that holds several; None takes all.

    Raises:
        InputError: one line that names file, row and column, or the kinds of file that are accepted.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(64).lstrip()
    except OSError as error:
        raise InputError(
            "trace file", str(path), error.strerror or "cannot be read", "check the path"
        ) from error
    if not head:
        raise InputError("trace file", str(path), "the file is empty", "record or import traces into it")
    if head.startswith(_PARQUET_MAGIC):
        return _load_parquet(path, dataset)
    if dataset is not None:
        raise InputError(
            "dataset", dataset, "only the reference parquet holds several data sets", "leave it out"
        )
    if head.startswith(b"{"):
        return load_jsonl(path)
    raise InputError("trace file", str(path), _KINDS)


def _load_parquet(path: Path, dataset: str | None) -> TraceSet:
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        fix = "the file may be truncated: copy or import it again"
        raise InputError(
            "trace file", str(path), f"not a readable parquet file ({error})"[:200], fix
        ) from error
    if METADATA_KEY in (schema.metadata or {}):
        if dataset is not None:
            raise InputError("dataset", dataset, "kplan's own file holds one data set", "leave it out")
        return load_own(path)
    if set(schema.names) >= COLUMNS:
        return load_reference(path, dataset)
    raise InputError("trace file", str(path), _KINDS, "kplan traces import converts what it knows")
