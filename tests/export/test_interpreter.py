"""What is given as an engine's Python and is none: one line, in bounded time, and nothing left running."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.export.interpreter import ask_python, ask_python_json
from kplan.live.steplog import engine_site


def script(folder: Path, text: str) -> Path:
    """An executable file."""
    file = folder / "python"
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_the_last_line_is_the_answer(tmp_path: Path) -> None:
    told = ask_python_json("--check", Path(sys.executable), ["-c", "print('hello'); print('{\"a\": 1}')"])
    assert told == {"a": 1}


def test_no_package_of_the_folder_at_hand_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout of vLLM has a folder of that name."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = "import importlib.util as u, json; print(json.dumps({'vllm': u.find_spec('vllm') is not None}))"
    assert ask_python_json("--check", Path(sys.executable), ["-c", found]) == {"vllm": False}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#!/bin/sh\nexit 3\n", "ended with 3: it says nothing"),
        ("#!/bin/sh\n", "does not answer as Python does"),
        ("#!/bin/sh\necho '[]'\n", "does not answer as Python does"),
        ("#!/bin/sh\nprintf '\\377\\376'\n", "does not answer as Python does"),
        ("no program\n", "cannot be run"),
        ('#!/bin/sh\necho \'{"vllm": true, "site": 5}\'\n', "has no vLLM"),
    ],
)
def test_another_program_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as told:
        engine_site(script(tmp_path, text))
    assert "\n" not in str(told.value)


def test_one_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    python = script(tmp_path, f"#!/bin/sh\n(sleep 1; touch {mark}) &\nsleep 60\n")
    with pytest.raises(InputError, match="did not answer in 0 s"):
        ask_python("--check", python, [], limit_s=0.3)
    time.sleep(1.2)
    assert not mark.exists()


@pytest.mark.parametrize(
    "command",
    [
        "HF_TOKEN=hunter2 vllm serv m",
        "docker run -e API_KEY=hunter2 image",
        "vllm serve 'm --api-key hunter2",
        "--api-key=hunter2 vllm",
    ],
)
def test_a_command_that_is_not_understood_is_shown_without_its_keys(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(["import-config", "--command", command]) == 2
    err = capsys.readouterr().err
    assert "..." in err
    assert "hunter2" not in err


def test_the_config_that_is_read_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("model: llama-3.1-8b\nmax-num-seqs: 4\n")
    assert run(["import-config", str(config), "--qps", "1", "--out", str(config)]) == 2
    assert "is read by the same command" in capsys.readouterr().err
    assert config.read_text() == "model: llama-3.1-8b\nmax-num-seqs: 4\n"


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor a device, which only root could."""
    config, pipe = tmp_path / "vllm.yaml", tmp_path / "pipe"
    config.write_text("model: llama-3.1-8b\nmax-num-seqs: 4\n")
    os.mkfifo(pipe)
    assert run(["import-config", str(config), "--qps", "1", "--out", str(pipe)]) == 2
    assert "is no file" in capsys.readouterr().err
    assert pipe.is_fifo()
