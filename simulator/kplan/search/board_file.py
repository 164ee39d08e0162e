"""The files of a leaderboard."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, ValidationError

from kplan.errors import InputError
from kplan.files import made_folder, read_text, write_texts
from kplan.formats import LEADERBOARD
from kplan.plainjson import check_version
from kplan.search.board_rows import Board, Row, Standing, Told, record

MOST_BYTES = 2**26
"""Largest leaderboard.json that is read; a row takes 1 kB."""
FILES = "leaderboard.parquet", "leaderboard.json", "leaderboard.html"
_INTERVALS = ("ci95", "oracle_share_ci95", "regret_ci95")
_TYPES: dict[str, Any] = {
    "str": pa.string(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
}


def schema() -> pa.Schema:
    """A column for every field of a row; an interval is two, ``_low`` and ``_high``."""
    columns: list[tuple[str, Any]] = []
    for field in fields(Row):
        if field.name in _INTERVALS:
            columns += [(f"{field.name}_{end}", pa.float64()) for end in ("low", "high")]
        else:
            columns.append((field.name, _TYPES[str(field.type)]))
    return pa.schema(columns)


def write(board: Board, page: str, out: Path) -> list[Path]:
    """Write the rows as a table, all as JSON, and ``page``: all of them or none, the JSON as their mark.

    Raises:
        InputError: the folder cannot be written.
    """
    told = record(board)
    origin = {
        key: json.dumps(told[key]) for key in ("kind", "scenario_hash", "replications", "seed", "versions")
    }
    table = pa.Table.from_pylist([_flat(row) for row in board.rows], schema=schema().with_metadata(origin))
    text = json.dumps(told, indent=2, allow_nan=False) + "\n"
    paths = [out / name for name in FILES]
    rows = BytesIO()
    pq.write_table(table, rows)
    with made_folder("--out", out):
        write_texts({paths[1]: text, paths[0]: rows.getvalue(), paths[2]: page})
    return paths


def read(path: Path) -> Told:
    """Read leaderboard.json.

    Raises:
        InputError: not there, cut short, or not a leaderboard of this release.
    """
    fix = "write it anew with kplan leaderboard --out"
    text = read_text("leaderboard", path, MOST_BYTES)
    try:
        check_version(text, LEADERBOARD, path)
        found = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError("leaderboard", str(path), f"{where}: {first['msg']}"[:200], fix) from None
    scenario = found.scenario
    return Told(
        found.rows, found.summary, found.notes, scenario.model, scenario.hardware, scenario.engine,
        found.replications, found.versions,
    )  # fmt: skip


class _Scenario(BaseModel):
    """Of the scenario, what the page names."""

    model: str
    hardware: str
    engine: str


class _File(BaseModel):
    """Of leaderboard.json, what the page shows; ``kind`` says that all of it was simulated."""

    kind: Literal["simulated"]
    rows: tuple[Row, ...]
    summary: tuple[Standing, ...]
    notes: tuple[str, ...]
    replications: int
    versions: dict[str, str] = Field(default_factory=dict)
    scenario: _Scenario


def _flat(row: Row) -> dict[str, Any]:
    """A row whose intervals are two values each, null where there is none."""
    values = asdict(row)
    for name in _INTERVALS:
        low, high = values.pop(name) or (None, None)
        values |= {f"{name}_low": low, f"{name}_high": high}
    return values
