"""Find profiles by name in kplan_profiles, or read them from a user's file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from kplan.config.record import fault
from kplan.errors import InputError
from kplan.files import read_text
from kplan.formats import PROFILES
from kplan.plainyaml import MOST_BYTES, load_yaml
from kplan.profiles import convert, schema, schema_calibration
from kplan.profiles.borrow import borrow
from kplan.profiles.calibration import Calibration
from kplan.profiles.engine import EngineProfile
from kplan.profiles.hardware import Hardware
from kplan.profiles.hf_config import config_path, read_model
from kplan.profiles.model import Model
from kplan.provenance import Provenance

File = TypeVar("File", bound=schema.Entry)

_SCHEMAS: dict[str, type[schema.Entry]] = {
    "hardware": schema.HardwareFile,
    "models": schema.ModelFile,
    "drafters": schema.DrafterFile,
    "calibrations": schema_calibration.CalibrationFile,
    "engines": schema.EngineFile,
}
KINDS = tuple(_SCHEMAS)
YAML = (".yaml", ".yml")
LENDER = "h100-sxm"
"""The GPU whose calibration stands in for that of one without."""


@dataclass(frozen=True)
class ProfileLine:
    """One line of ``kplan profiles``."""

    name: str
    summary: str
    provenance: Provenance


def load_hardware(name_or_path: str | Path) -> Hardware:
    """A GPU by profile name or YAML path. Raises InputError naming close matches."""
    return convert.hardware(_load("hardware", name_or_path, schema.HardwareFile))


def load_model(name_or_path: str | Path) -> Model:
    """A model by profile name, Hugging Face id, YAML path, or config.json (its path or its folder).

    Raises:
        InputError: an unknown name (with close matches), or a file that describes no model that is priced.
    """
    text = str(name_or_path)
    if text.lower() in {_stem(file) for file in shipped("models")}:
        return convert.model(_load("models", text, schema.ModelFile))
    if "/" in text:
        for entry in (parse("models", file, schema.ModelFile) for file in shipped("models")):
            if entry.hf_id == text:
                return convert.model(entry)
    config = config_path(text)
    if config is not None:
        return read_model(config)
    return convert.model(_load("models", text, schema.ModelFile))


def load_calibration(hardware: str | Path | Hardware) -> Calibration:
    """The calibration of a GPU, by the GPU, by profile name, or from a YAML path.

    A GPU without one of its own borrows that of LENDER (:func:`kplan.profiles.borrow.borrow`).

    Raises:
        InputError: neither a calibration nor a hardware profile of that name.
    """
    name = hardware.name if isinstance(hardware, Hardware) else str(hardware)
    if name.endswith(YAML) or name.lower() in {_stem(file) for file in shipped("calibrations")}:
        return convert.calibration(_load("calibrations", name, schema_calibration.CalibrationFile))
    gpu = hardware if isinstance(hardware, Hardware) else load_hardware(name)
    return borrow(load_calibration(LENDER), load_hardware(LENDER), gpu)


def load_engine(name_or_path: str | Path) -> EngineProfile:
    """An engine's defaults by name or YAML path. Raises InputError naming close matches."""
    return convert.engine(_load("engines", name_or_path, schema.EngineFile))


def available(kind: str) -> list[ProfileLine]:
    """Profiles of a kind (hardware, models, drafters, calibrations, engines), by name."""
    if kind not in _SCHEMAS:
        raise InputError("profile kind", kind, f"known kinds: {', '.join(KINDS)}", close(kind, list(KINDS)))
    lines = []
    for file in shipped(kind):
        entry = dict(parse(kind, file, _SCHEMAS[kind]))
        lines.append(ProfileLine(_stem(file), entry["summary"], entry["provenance"].provenance()))
    return sorted(lines, key=lambda line: line.name)


def _load(kind: str, name_or_path: str | Path, cls: type[File]) -> File:
    text = str(name_or_path)
    if text.endswith(YAML):
        path = Path(text)
        if not path.is_file():
            raise InputError(
                f"{kind} profile", text, "no such file", "give a profile name or an existing file"
            )
        return parse(kind, path, cls)
    by_name = {_stem(file): file for file in shipped(kind)}
    if text.lower() not in by_name:
        names = sorted(by_name)
        raise InputError(f"{kind} profile", text, f"known: {', '.join(names)}", close(text, names))
    return parse(kind, by_name[text.lower()], cls)


def parse(kind: str, file: Traversable | Path, cls: type[File]) -> File:
    """The validated record of one profile file. Raises InputError naming the first key at fault."""
    if isinstance(file, Path) and file.parent == _SHIPPED / kind:
        entry: File = _parse_once(kind, file, cls)
        return entry
    return _parse(kind, file, cls)


_SHIPPED = Path(str(files("kplan_profiles")))


@cache
def _parse_once(kind: str, file: Path, cls: type[File]) -> File:
    """A file that ships does not change while kplan runs: reading the YAML was most of setting a run up."""
    return _parse(kind, file, cls)


def _parse(kind: str, file: Traversable | Path, cls: type[File]) -> File:
    try:
        record = load_yaml(read_text(f"{kind} profile", file, MOST_BYTES))
        return cls.model_validate(PROFILES[kind].unmarked_of(record, file))
    except yaml.YAMLError as error:
        raise InputError(f"{kind} profile", str(file), "is not valid YAML", str(error)) from error
    except ValidationError as error:
        raise fault(error, f"{kind} profile {file}") from error


def shipped(kind: str) -> Iterator[Traversable]:
    """The files of a kind that come with kplan."""
    for file in (files("kplan_profiles") / kind).iterdir():
        if file.name.endswith(".yaml"):
            yield file


def _stem(file: Traversable) -> str:
    return file.name.removesuffix(".yaml")


def close(text: str, names: list[str]) -> str:
    """ "did you mean ...?" with the names most like ``text``; "" when none is."""
    begun = [name for name in names if text and name.startswith(text.lower())]
    matches = begun[:3] or get_close_matches(text.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(matches)}?" if matches else ""
