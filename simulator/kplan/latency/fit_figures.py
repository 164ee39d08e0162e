"""The figures of a calibration by their paths: read, replace, borrow, and write as a calibration YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from kplan.files import write_text
from kplan.formats import KEY, PROFILES
from kplan.profiles import Calibration
from kplan.provenance import Figure, Kind, Provenance, file_digest, versions

DIGITS = 6
T = TypeVar("T")


def short(value: float) -> float:
    """Rounded to the digits that a calibration is written with."""
    return float(f"{value:.{DIGITS}g}")


def fitted(value: float, source: str, stderr: float | None = None, note: str = "") -> Figure:
    """A fitted figure, rounded as it is written."""
    return Figure(
        short(value), Provenance(Kind.FITTED, source, note), None if stderr is None else short(stderr)
    )


def file_source(path: Path, citation: str = "") -> str:
    """How a figure names the file it rests on: its name and a digest of its bytes, never where it lies."""
    told = f"{path.name}, blake2b {file_digest(path)}"
    return f"{told}; {citation}" if citation else told


def figures_of(calibration: Calibration) -> dict[str, Figure]:
    """Every figure by its path, for example ``gemm.t0_s`` or ``host.pass_s.eagle``."""
    found: dict[str, Figure] = {}

    def note(path: str, figure: Figure) -> Figure:
        found[path] = figure
        return figure

    _mapped(calibration, "", note)
    return found


def with_figures(calibration: Calibration, changed: Mapping[str, Figure]) -> Calibration:
    """The calibration with the figures at these paths replaced."""
    return _mapped(calibration, "", lambda path, figure: changed.get(path, figure))


def document(calibration: Calibration) -> dict[str, Any]:
    """The calibration as the content of its YAML file; sources are named once, by short keys."""
    keys: dict[str, str] = {}

    def plain(thing: object) -> object:
        if isinstance(thing, Figure):
            return _entry(thing, _key(thing.provenance.source, keys))
        if isinstance(thing, Provenance):
            entry = {"kind": thing.kind.value, "source": thing.source}
            return entry | ({"note": thing.note} if thing.note else {})
        if isinstance(thing, Mapping):
            return {key: plain(value) for key, value in thing.items()}
        if is_dataclass(thing):
            values = {field.name: getattr(thing, field.name) for field in fields(thing)}
            return {name: plain(value) for name, value in values.items() if value is not None}
        return thing

    content = cast(dict[str, Any], plain(calibration))
    provenance = content.pop("provenance")
    del content["borrowed_from"]  # what the loader says of a GPU without a file
    return content | {"sources": {key: text for text, key in keys.items()}, "provenance": provenance}


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the YAML atomically. Raises InputError when the file cannot be written."""
    write_text(calibration_yaml(calibration), path)


def calibration_yaml(calibration: Calibration) -> str:
    """The text of a calibration's file."""
    record = {KEY: PROFILES["calibrations"].version, **document(calibration), "versions": versions()}
    return yaml.safe_dump(record, sort_keys=False, width=110, allow_unicode=True)


def _mapped(thing: T, path: str, change: Callable[[str, Figure], Figure]) -> T:
    """A copy of ``thing`` in which every figure, however deep, went through ``change(path, figure)``."""
    if isinstance(thing, Figure):
        return cast(T, change(path, thing))
    inside = f"{path}." if path else ""
    if isinstance(thing, Mapping):
        return cast(T, {key: _mapped(value, f"{inside}{key}", change) for key, value in thing.items()})
    if is_dataclass(thing) and not isinstance(thing, type) and not isinstance(thing, Provenance):
        values = {field.name: getattr(thing, field.name) for field in fields(thing)}
        parts = {name: _mapped(value, f"{inside}{name}", change) for name, value in values.items()}
        return cast(T, replace(thing, **parts))
    return thing


def _entry(figure: Figure, key: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "value": figure.value,
        "kind": figure.provenance.kind.value,
        "source": key,
    }
    if figure.stderr is not None:
        entry["stderr"] = figure.stderr
    if figure.provenance.note:
        entry["note"] = figure.provenance.note
    return entry


def _key(source: str, keys: dict[str, str]) -> str:
    """A short name for a source text: its first word, numbered when another source begins alike."""
    if source not in keys:
        stem = source.replace(":", " ").replace(",", " ").split()[0].lower()
        taken = set(keys.values())
        number = 2
        key = stem
        while key in taken:
            key = f"{stem}-{number}"
            number += 1
        keys[source] = key
    return keys[source]
