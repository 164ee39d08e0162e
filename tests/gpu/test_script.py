"""The script says in one line what it cannot do, and leaves nothing behind then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "run.sh"


def _run(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_without_a_gpu_it_skips(tmp_path: Path) -> None:
    done = _run("--gpu-python", sys.executable, "--out", "run", "--hardware", "h200", folder=tmp_path)
    assert done.returncode == 77
    assert done.stderr.startswith("no GPU: ")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--tables",), "--tables: no such flag"),
        (("--out",), "--out: got nothing"),
        (("--device", "tpu"), "got 'tpu', must be cuda or cpu"),
        (("--limit-s", "10m"), "got '10m', must be whole seconds"),
        (("--serve", "nowhere"), "got 'nowhere', must hold a config.json"),
        (("--serve", "model"), "--serve needs a file of prompts"),
        (("--out", "model"), "got 'model', must be empty"),
        (("--hardware", "h20"), "h200"),
    ],
)
def test_what_it_cannot_do_is_one_line(argv: tuple[str, ...], told: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    done = _run("--device", "cpu", "--hardware", "h200", "--out", "run", *argv, folder=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()
