"""Traces that come with kplan, known by name wherever a trace file is asked for."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_traces() -> dict[str, Path]:
    """Name -> file of each trace that comes with kplan."""
    folder = Path(str(files("kplan_profiles") / "traces"))
    return {file.stem: file for file in sorted(folder.glob("*.parquet"))}


def trace_path(name_or_path: Path) -> Path:
    """The file behind what a user gave: a file of that name first, then the trace that ships under it.

    What is neither is returned as it stands, for its reader to refuse.
    """
    path = Path(name_or_path)
    if len(path.parts) != 1 or path.is_file():
        return path
    return shipped_traces().get(path.name.lower(), path)
