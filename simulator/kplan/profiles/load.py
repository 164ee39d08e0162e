"""Find profiles by name in kplan_profiles, or read them from a user's file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from kplan.errors import InputError
from kplan.profiles import convert, schema
from kplan.profiles.calibration import Calibration
from kplan.profiles.drafter import Drafter
from kplan.profiles.engine import EngineProfile
from kplan.profiles.hardware import Hardware
from kplan.profiles.model import Model
from kplan.provenance import Provenance

File = TypeVar("File", bound=schema.Entry)

_SCHEMAS: dict[str, type[schema.Entry]] = {
    "hardware": schema.HardwareFile,
    "models": schema.ModelFile,
    "drafters": schema.DrafterFile,
    "calibrations": schema.CalibrationFile,
    "engines": schema.EngineFile,
}
KINDS = tuple(_SCHEMAS)


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
    """A model by profile name, Hugging Face id or YAML path. Raises InputError naming close matches."""
    text = str(name_or_path)
    by_id = (
        {_parse("models", file, schema.ModelFile).hf_id: file for file in _files("models")}
        if "/" in text
        else {}
    )
    if text in by_id:
        return convert.model(_parse("models", by_id[text], schema.ModelFile))
    return convert.model(_load("models", name_or_path, schema.ModelFile))


def load_drafter(proposer: str, model: Model) -> Drafter:
    """The drafter that serves ``proposer`` for ``model``. Raises InputError listing what exists."""
    everything = [
        convert.drafter(_parse("drafters", file, schema.DrafterFile)) for file in _files("drafters")
    ]
    fitting = [d for d in everything if model.name in d.targets or "*" in d.targets]
    for candidate in fitting:
        if candidate.proposer == proposer:
            return candidate
    known = sorted({d.proposer for d in everything})
    here = ", ".join(sorted(d.proposer for d in fitting))
    if proposer in known:
        raise InputError("proposer", proposer, f"has no drafter profile for {model.name}", f"it has: {here}")
    raise InputError("proposer", proposer, f"known proposers: {', '.join(known)}", _close(proposer, known))


def load_calibration(hardware: str | Path) -> Calibration:
    """The calibration of a GPU by profile name, or from a YAML path. Raises InputError if there is none."""
    return convert.calibration(_load("calibrations", hardware, schema.CalibrationFile))


def load_engine(name_or_path: str | Path) -> EngineProfile:
    """An engine's defaults by name or YAML path. Raises InputError naming close matches."""
    return convert.engine(_load("engines", name_or_path, schema.EngineFile))


def available(kind: str) -> list[ProfileLine]:
    """Profiles of a kind (hardware, models, drafters, calibrations, engines), by name."""
    if kind not in _SCHEMAS:
        raise InputError("profile kind", kind, f"known kinds: {', '.join(KINDS)}", _close(kind, list(KINDS)))
    lines = []
    for file in _files(kind):
        entry = dict(_parse(kind, file, _SCHEMAS[kind]))
        lines.append(ProfileLine(_stem(file), entry["summary"], entry["provenance"].provenance()))
    return sorted(lines, key=lambda line: line.name)


def _load(kind: str, name_or_path: str | Path, cls: type[File]) -> File:
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise InputError(
                f"{kind} profile", text, "no such file", "give a profile name or an existing YAML file"
            )
        return _parse(kind, path, cls)
    by_name = {_stem(file): file for file in _files(kind)}
    if text.lower() not in by_name:
        names = sorted(by_name)
        raise InputError(f"{kind} profile", text, f"known: {', '.join(names)}", _close(text, names))
    return _parse(kind, by_name[text.lower()], cls)


def _parse(kind: str, file: Traversable | Path, cls: type[File]) -> File:
    try:
        return cls.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise InputError(f"{kind} profile", str(file), "is not valid YAML", str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{kind} profile", str(file), f"{where}: {first['msg']}", "mend that key") from error


def _files(kind: str) -> Iterator[Traversable]:
    for file in (files("kplan_profiles") / kind).iterdir():
        if file.name.endswith(".yaml"):
            yield file


def _stem(file: Traversable) -> str:
    return file.name.removesuffix(".yaml")


def _close(text: str, names: list[str]) -> str:
    matches = get_close_matches(text.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(matches)}?" if matches else ""
