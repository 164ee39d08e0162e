"""Output files that would do harm, and paths that no system call takes: one line, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.cli.paths import check_outputs
from kplan.errors import InputError
from tests.latency.test_fit_measured import write_log


@pytest.mark.parametrize("out", ["steps.jsonl", "./sub/../steps.jsonl", "sub"])
def test_calibrate_never_writes_over_what_it_reads(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "steps.jsonl", (1, 16, 128))
    (tmp_path / "sub").mkdir()
    before = log.read_bytes()
    assert run(["calibrate", "--steps", str(log), "--out", str(tmp_path / out), "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: --out: got ")
    assert log.read_bytes() == before


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    one = tmp_path / "one"
    check_outputs({"--out": one, "--report": tmp_path / "two"}, [tmp_path / "in"])
    with pytest.raises(InputError, match=r"--report: .*is written as --out by the same command"):
        check_outputs({"--out": one, "--report": one})


def test_a_report_that_cannot_be_written_leaves_no_calibration(tmp_path: Path) -> None:
    log = write_log(tmp_path / "steps.jsonl", (1, 16, 128))
    argv = ["calibrate", "--steps", str(log), "--out", str(tmp_path / "o.yaml"), "--report", str(tmp_path)]
    assert run(argv) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["steps.jsonl"]


@pytest.mark.parametrize("option", ["--model", "--calibration", "--drafter"])
def test_a_name_too_long_for_a_path_is_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--concurrency", "4", option, "a" * 5000 + ".yaml", "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "File name too long" in told.err
    assert len(told.err.splitlines()) == 1
