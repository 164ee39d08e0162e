"""Dependences of two proposers as JSON files: the pydantic edge of :class:`Dependence`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from kplan.acceptance import cells
from kplan.acceptance.joint import Dependence
from kplan.config.record import Record
from kplan.files import write_text
from kplan.formats import KEY, PAIR
from kplan.plainjson import TextFile, read_record
from kplan.provenance import Kind, Provenance, versions

_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Source(Record):
    kind: Kind
    source: str
    note: str = ""


class _PairFile(Record):
    schema_version: int
    leader: str
    follower: str
    provenance: _Source
    class_share: _Share
    window_share: _Share
    window: Annotated[int, Field(ge=1, le=1024)]
    candidates: Annotated[int, Field(ge=2, le=256)]
    depth: Annotated[int, Field(ge=1, le=cells.DEPTHS)]
    facts: dict[str, Any]
    versions: dict[str, str] = Field(default_factory=dict)


def save_pair(pair: Dependence, path: Path) -> None:
    """Write the dependence as JSON, atomically. Raises InputError when the file cannot be written."""
    write_text(pair_json(pair), path)


def pair_json(pair: Dependence) -> str:
    """The text of a dependence's file."""
    record = {
        KEY: PAIR.version,
        "leader": pair.leader,
        "follower": pair.follower,
        "provenance": {
            "kind": str(pair.provenance.kind),
            "source": pair.provenance.source,
            "note": pair.provenance.note,
        },
        "class_share": pair.class_share,
        "window_share": pair.window_share,
        "window": pair.window,
        "candidates": pair.candidates,
        "depth": pair.depth,
        "facts": dict(pair.facts),
        "versions": versions(),
    }
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def load_pair(file: TextFile) -> Dependence:
    """Read a file of :func:`save_pair`.

    Raises:
        InputError: not there, not JSON, another schema version, or a value out of its bounds.
    """
    entry = read_record(file, _PairFile, PAIR)
    return Dependence(
        leader=entry.leader,
        follower=entry.follower,
        class_share=entry.class_share,
        window_share=entry.window_share,
        window=entry.window,
        candidates=entry.candidates,
        depth=entry.depth,
        provenance=Provenance(entry.provenance.kind, entry.provenance.source, entry.provenance.note),
        facts=entry.facts,
    )
