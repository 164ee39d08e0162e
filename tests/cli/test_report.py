"""``kplan report``: the page of a run, drawn again from its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.export.files import plan_json
from kplan.report import render_report
from tests.report.pictures import pictured

BOARD = (
    "leaderboard", "--batch", "2", "--workload", "gsm8k", "--only", "fixed", "--max-k", "1",
    "--requests", "60", "--replications", "2", "--workers", "1",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.json").write_text(plan_json(pictured()), encoding="utf-8")
    return tmp_path


def test_a_folder_gets_the_page_of_its_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {folder / 'report.html'}\n")
    assert (folder / "report.html").read_text(encoding="utf-8") == render_report(pictured())


def test_what_would_change_the_answer_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for every changed input of the plan's evidence (``pictures.SENSITIVITY``), by hand."""
    assert run(["report", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(" {2,}", line) for line in lines[1:-1]] == [
        ["what would change the answer", "K run", "TPOT ms", "best K", "TPOT ms", "slower by"],
        ["as asked", "3", "11.60", "3", "11.60", "0.0%"],
        ["acceptance -20%", "3", "16.00", "2", "14.60", "9.6%"],
        ["acceptance +20%", "3", "9.80", "3", "9.80", "0.5%"],
        ["context 4x", "3", "saturated", "-", "saturated", "-"],
        ["other GEMM times", "3", "saturated", "1", "9.00", "-"],
    ]


def test_a_plan_of_an_older_release_tells_no_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = folder / "plan.json"
    plan.write_text(plan_json(pictured(evidence=None)), encoding="utf-8")
    assert run(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'report.html'}\n"


def test_a_file_may_have_any_name_and_its_page_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = (folder / "plan.json").rename(folder / "monday.json")
    page = folder / "monday.html"
    assert run(["report", str(other), "--out", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(page)]
    assert "What K at 64 requests/s?" in page.read_text(encoding="utf-8")


def test_the_page_of_a_board_is_the_one_that_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*BOARD, "--out", str(tmp_path)]) == 0
    page = tmp_path / "leaderboard.html"
    before = page.read_bytes()
    page.unlink()
    assert run(["report", str(tmp_path)]) == 0
    assert page.read_bytes() == before
    assert capsys.readouterr().out.endswith(f"wrote {page}\n")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("plan.json", "{", "plan: got"),
        ("plan.json", '{"schema_version": 2}', "schema_version"),
        ("leaderboard.json", "[]", "leaderboard: got"),
        ("leaderboard.json", '{"kind": "measured"}', "kind"),
        ("other.txt", "", "RUN: got"),
    ],
)
def test_what_is_no_run_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, told: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert run(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_simulate_prints_is_told_from_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "--qps", "1", "--workload", "gsm8k", "--policy", "fixed:1", "--requests", "20"]
    assert run([*asked, "--replications", "1", "--json"]) == 0
    file = tmp_path / "simulated.json"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert run(["report", str(file)]) == 2
    error = capsys.readouterr().err
    assert "is one policy at one load, as kplan simulate --json prints it: no plan" in error
    assert "ask the same with kplan recommend --out DIR" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_the_file_that_is_read_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "plan.json"
    before = file.read_bytes()
    assert run(["report", str(file), "--out", str(file)]) == 2
    assert "--out" in capsys.readouterr().err
    assert file.read_bytes() == before
