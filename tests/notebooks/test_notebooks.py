"""Every notebook runs from top to bottom, in a fresh kernel, in the environment of the project."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
CELL_LIMIT_S = 180


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_runs(name: str) -> None:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(notebook, timeout=CELL_LIMIT_S, resources={"metadata": {"path": FOLDER}}).execute()
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_is_stored_without_outputs(name: str) -> None:
    """Outputs are made where they are read; stored ones would grow stale and bury every change."""
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
