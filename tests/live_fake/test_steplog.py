"""``kplan steplog`` on an environment of its own that holds a stand-in for vLLM."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run

ASK = """
import importlib.metadata as m, json
d = m.distribution("kplan-steplog")
print(json.dumps({
    "points": [[p.name, p.value] for p in m.entry_points(group="vllm.stat_logger_plugins")],
    "files": [[str(f), f.hash and f.hash.value, str(f.locate())] for f in d.files],
}))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment with an empty package called vllm."""
    venv.create(tmp_path / "engine", with_pip=False)
    (site,) = (tmp_path / "engine" / "lib").glob("python*/site-packages")
    (site / "vllm").mkdir()
    (site / "vllm" / "__init__.py").write_text(
        "raise RuntimeError('asking for its place must not import it')"
    )
    return tmp_path / "engine" / "bin" / "python"


def files(python: Path) -> set[str]:
    """What lies beside vllm in the environment."""
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}


def asked(python: Path) -> dict[str, Any]:
    """What the environment's own metadata says of the plugin."""
    done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_plugin_comes_with_a_record_of_every_file_and_goes_whole(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(python)
    assert run(["steplog", "status", str(python)]) == 1
    assert run(["steplog", "install", str(python)]) == 0
    assert "--enable-logging-iteration-details" in capsys.readouterr().out
    told = asked(python)
    assert told["points"] == [["kplan_steplog", "kplan_steplog:StepLog"]]
    assert {name for name, _, _ in told["files"]} == files(python) - before
    for name, recorded, where in told["files"]:
        digest = hashlib.sha256(Path(where).read_bytes()).digest()
        assert recorded in (None, base64.urlsafe_b64encode(digest).decode().rstrip("="))
        assert (recorded is None) == name.endswith("RECORD")
    assert run(["steplog", "status", str(python)]) == 0
    assert run(["steplog", "uninstall", str(python)]) == 0
    assert files(python) == before


def test_installing_again_mends_and_otherwise_changes_nothing(
    python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["steplog", "install", str(python)]) == 0
    once = files(python)
    assert run(["steplog", "install", str(python)]) == 0
    assert "installed already" in capsys.readouterr().out
    (module,) = (python.parent.parent / "lib").glob("python*/site-packages/kplan_steplog.py")
    whole = module.read_text()
    module.write_text("")
    assert run(["steplog", "status", str(python)]) == 1
    assert run(["steplog", "install", str(python), "--json"]) == 0
    assert module.read_text() == whole
    assert files(python) == once


@pytest.mark.parametrize(
    "python", [sys.executable, "/nowhere/python", "/etc/passwd", "/bin/true"], indirect=False
)
def test_a_python_without_vllm_is_refused_in_one_line(
    python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["steplog", "install", python]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "ENGINE_PYTHON" in told
