"""``kplan policies``: the list, the check of one, and one of one's own from nothing to a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.cli.policy_files import write_policy
from kplan.testing import LAWS

CHEAT = """
class Cheat:
    \"\"\"Looks at what has not happened.\"\"\"
    def choose_k(self, step):
        return 0 if step.future_accepted is None else int(step.future_accepted.max())
"""


def test_the_list_names_each_policy_and_its_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[2:]}
    assert rows["table"].endswith("vllm")
    assert "none: 5-item table entries are in no vLLM release" in rows["context-table"]
    assert max(map(len, lines)) < 220
    assert run(["policies", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["policies"]}
    assert listed["position-ema"]["source"].startswith("vLLM PR #47111")


def test_check_says_ok_law_by_law(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "check", "fixed:3"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.startswith("ok ") for line in out] == [True] * len(LAWS) + [False]
    assert out[-1].startswith(f"fixed:3 keeps all {len(LAWS)} laws; ")


def test_check_exits_1_and_names_the_law_that_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cheat.py").write_text(CHEAT)
    text = f"{tmp_path / 'cheat.py'}:Cheat"
    assert run(["policies", "check", text]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert failed == [line for line in failed if f"{text}: no future: another future from step" in line]
    assert len(failed) == 1
    assert run(["policies", "check", text, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["passed"]
    assert told["steps_per_s"] is None
    assert [one["law"] for one in told["laws"] if not one["passed"]] == ["no future"]


def test_check_of_no_policy_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policies", "check", "fixd:3"]) == 2
    assert "did you mean fixed?" in capsys.readouterr().err


def test_a_new_policy_passes_its_test_and_the_check_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    assert run(["policies", "new", "calm-at-load", "--dir", str(folder), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["policy"] == f"{folder / 'calm_at_load.py'}:CalmAtLoad"
    assert sorted(path.name for path in folder.iterdir()) == ["calm_at_load.py", "test_calm_at_load.py"]
    assert run(["policies", "check", made["policy"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps_per_s"] > 0
    load = ["--qps", "9", "--requests", "100", "--workload", "gsm8k", "--json"]
    assert run(["simulate", *load, "--policy", f"{made['policy']}:k=2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert any("CalmAtLoad" in json.dumps(one) for one in answer.values())
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", made["files"][1]]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(LAWS)} passed" in done.stdout


def test_new_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_policy("one", tmp_path)
    (tmp_path / "one.py").unlink()
    before = (tmp_path / "test_one.py").read_text()
    assert run(["policies", "new", "one", "--dir", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "one.py").exists()
    assert (tmp_path / "test_one.py").read_text() == before


@pytest.mark.parametrize("name", ["1st", "a b", "../x", "class", "é"])
def test_a_name_that_makes_no_module_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policies", "new", name, "--dir", str(tmp_path)]) == 2
    assert "write for example calm-at-load" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert run(["policies", "new", "one", "--dir", str(folder)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"error: --dir: got '{folder}', cannot be made")
        assert told.count("\n") == 1


def test_a_policy_that_exits_breaks_a_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.py").write_text(
        "class Leaves:\n    def choose_k(self, step):\n        raise SystemExit(3)\n"
    )
    assert run(["policies", "check", f"{tmp_path / 'my.py'}:Leaves"]) == 1
    assert "SystemExit: 3" in capsys.readouterr().out
