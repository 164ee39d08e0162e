"""Every notebook runs from top to bottom, in a fresh kernel, in the environment of the project."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
LIMIT_S = 180.0
PICTURE = "application/vnd.plotly.v1+json"
FEWEST_PICTURES = 3


@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, tmp_path: Path) -> None:
    """In a copy of the folder, with kplan on the PATH as where its environment is active, within its time."""
    folder = shutil.copytree(FOLDER, tmp_path / "notebooks", ignore=shutil.ignore_patterns("runs"))
    active = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    active.pop("KPLAN_SERVER_URL", None)  # a test asks no server of the user's
    notebook = nbformat.read(folder / name, as_version=4)
    begin = time.monotonic()
    NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": folder}}).execute(env=active)
    took_s = time.monotonic() - begin
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    pictures = [out.data[PICTURE] for out in outputs if PICTURE in out.get("data", {})]
    assert len(pictures) >= FEWEST_PICTURES
    assert all(picture["data"] for picture in pictures)
    assert took_s < LIMIT_S


@pytest.mark.parametrize("name", NAMES)
def test_is_stored_without_outputs(name: str) -> None:
    """Outputs are made where they are read; stored ones would grow stale and bury every change."""
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
