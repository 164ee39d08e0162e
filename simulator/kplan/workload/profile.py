"""Workload profiles: YAML beside its trace models, in ``kplan_profiles/workloads`` or in a user's folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from kplan.config.record import Record, fault
from kplan.errors import InputError
from kplan.files import read_text
from kplan.formats import KEY, WORKLOAD
from kplan.plainyaml import MOST_BYTES, load_yaml
from kplan.provenance import Kind, Provenance, versions
from kplan.workload.lengths import Lengths
from kplan.workload.workload import Workload

Tokens = Annotated[float, Field(ge=1, le=10_000_000, allow_inf_nan=False)]


@dataclass(frozen=True)
class WorkloadLine:
    """One shipped workload, for a listing."""

    name: str
    summary: str
    provenance: Provenance


class _Source(Record):
    kind: Kind
    source: str
    note: str = ""

    def provenance(self) -> Provenance:
        return Provenance(self.kind, self.source, self.note)


class _Lengths(Record):
    probabilities: Annotated[tuple[float, ...], Field(min_length=2)]
    prompt_tokens: tuple[Tokens, ...]
    output_tokens: tuple[Tokens, ...]
    rank_correlation: Annotated[float, Field(ge=-1, le=1)]
    provenance: _Source

    @model_validator(mode="after")
    def _tables_fit(self) -> _Lengths:
        steps = np.diff(self.probabilities)
        if self.probabilities[0] != 0 or self.probabilities[-1] != 1 or (steps <= 0).any():
            raise ValueError("probabilities must rise from 0 to 1")
        for name, values in (("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)):
            if len(values) != len(self.probabilities) or (np.diff(values) < 0).any():
                raise ValueError(f"{name} must hold one non-decreasing value per probability")
        return self


def _beside(file: str) -> str:
    """A file that stands beside the profile, or below: a profile of others leads nowhere else."""
    path = PurePosixPath(file)
    if not file or path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file:
        raise ValueError(f"{file!r} is not the name of a file beside the profile")
    return file


_File = Annotated[str, AfterValidator(_beside)]


class _WorkloadFile(Record):
    """workloads/NAME.yaml"""

    name: str
    summary: str
    target: str = ""
    lengths: _Lengths
    models: Annotated[dict[str, _File], Field(min_length=1)]
    pairs: dict[str, _File] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)
    provenance: _Source
    versions: dict[str, str] = Field(default_factory=dict)


def available_workloads() -> list[WorkloadLine]:
    """The workloads that ship, by name."""
    entries = [_parse(file) for file in _shipped()]
    lines = [WorkloadLine(e.name, e.summary, e.provenance.provenance()) for e in entries]
    return sorted(lines, key=lambda line: line.name)


def load_workload(name_or_path: str | Path) -> Workload:
    """A shipped workload by name, or a user's own by the path of its YAML file.

    Raises:
        InputError: unknown name, no such file, or a value out of its bounds (which is named).
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise InputError("workload", text, "no such file", "give a workload's name or an existing YAML")
        return _workload(_parse(path), path.parent)
    shipped = {file.name.removesuffix(".yaml"): file for file in _shipped()}
    if text.lower() not in shipped:
        close = get_close_matches(text.lower(), shipped, n=2, cutoff=0.5)
        fix = f"did you mean {' or '.join(close)}?" if close else "kplan profiles lists them"
        raise InputError("workload", text, f"known: {', '.join(sorted(shipped))}", fix)
    return _workload(_parse(shipped[text.lower()]), files("kplan_profiles") / "workloads")


def to_yaml(workload: Workload, models: dict[str, str]) -> str:
    """The profile of ``workload`` as YAML; ``models`` maps proposers to file names beside it."""
    lengths = workload.lengths
    record: dict[str, Any] = {
        KEY: WORKLOAD.version,
        "name": workload.name,
        "summary": workload.summary,
        "target": workload.target,
        "lengths": {
            "probabilities": [float(p) for p in lengths.probabilities],
            "prompt_tokens": [float(f"{t:.5g}") for t in lengths.prompt_tokens],
            "output_tokens": [float(f"{t:.5g}") for t in lengths.output_tokens],
            "rank_correlation": round(lengths.rank_correlation, 3),
            "provenance": _source(lengths.provenance),
        },
        "models": models,
        **(
            {"pairs": {name: Path(str(file)).name for name, file in workload.pairs.items()}}
            if workload.pairs
            else {}
        ),
        "missing": dict(workload.missing),
        "provenance": _source(workload.provenance),
        "versions": versions(),
    }
    return yaml.safe_dump(record, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def _source(provenance: Provenance) -> dict[str, str]:
    return {"kind": str(provenance.kind), "source": provenance.source, "note": provenance.note}


def _workload(entry: _WorkloadFile, folder: Traversable | Path) -> Workload:
    table = entry.lengths
    return Workload(
        name=entry.name,
        summary=entry.summary,
        target=entry.target,
        lengths=Lengths(
            probabilities=np.array(table.probabilities, np.float64),
            prompt_tokens=np.array(table.prompt_tokens, np.float64),
            output_tokens=np.array(table.output_tokens, np.float64),
            rank_correlation=table.rank_correlation,
            provenance=table.provenance.provenance(),
        ),
        models={proposer: folder / file for proposer, file in entry.models.items()},
        pairs={names: folder / file for names, file in entry.pairs.items()},
        missing=entry.missing,
        provenance=entry.provenance.provenance(),
    )


def _shipped() -> Iterator[Traversable]:
    for file in (files("kplan_profiles") / "workloads").iterdir():
        if file.name.endswith(".yaml"):
            yield file


def _parse(file: Traversable | Path) -> _WorkloadFile:
    try:
        record = load_yaml(read_text("workload", file, MOST_BYTES))
        return _WorkloadFile.model_validate(WORKLOAD.unmarked_of(record, file))
    except yaml.YAMLError as error:
        raise InputError("workload", str(file), f"not YAML ({error})"[:200], "mend that line") from error
    except ValidationError as error:
        raise fault(error, f"workload {file}") from error
