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
from nbformat import NotebookNode

from tests.live_fake.fake import Engine, FakeServer

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
LIMIT_S = 180.0
PICTURE = "application/vnd.plotly.v1+json"
FEWEST_PICTURES = 3


def _outputs(name: str, folder: Path, **environment: str) -> list[NotebookNode]:
    """What a notebook shows, run in a copy of its folder with kplan on the PATH."""
    copy = shutil.copytree(FOLDER, folder / "notebooks", ignore=shutil.ignore_patterns("runs"))
    active = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    active.pop("KPLAN_SERVER_URL", None)  # no test asks a server of the user's
    notebook = nbformat.read(copy / name, as_version=4)
    client = NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": copy}})
    client.execute(env=active | environment)
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str, tmp_path: Path) -> None:
    begin = time.monotonic()
    outputs = _outputs(name, tmp_path)
    assert time.monotonic() - begin < LIMIT_S
    pictures = [out.data[PICTURE] for out in outputs if PICTURE in out.get("data", {})]
    assert len(pictures) >= FEWEST_PICTURES
    assert all(picture["data"] for picture in pictures)


def test_a_server_that_is_named_is_verified(tmp_path: Path) -> None:
    with FakeServer(Engine(k=4, offers=0.3)) as server:
        outputs = _outputs("03_calibrate_and_verify.ipynb", tmp_path, KPLAN_SERVER_URL=server.url)
        assert server.done
    text = "".join(out.text for out in outputs if out.output_type == "stream")
    assert "live, vllm, 0.32.0, fake-model, concurrency 4" in text


@pytest.mark.parametrize("name", NAMES)
def test_is_stored_without_outputs(name: str) -> None:
    """Outputs are made where they are read; stored ones would grow stale and bury every change."""
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
