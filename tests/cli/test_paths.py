"""Output files that would do harm, and paths that no system call takes: one line, exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.cli.paths import check_outputs
from kplan.errors import InputError
from tests.acceptance.made import dump, recording_row, write_lines
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


OVER = {
    "fit": ["traces", "fit", "{own}", "--proposer", "ngram", "--out", "{own}"],
    "tree": ["traces", "tree", "{own}", "--proposer", "t", "--tree", "3,2,5", "--out", "{own}"],
    "adapt": [
        "traces",
        "adapt",
        "{own}",
        "--proposer",
        "p",
        "--source",
        "s",
        "--lengths",
        "w",
        "--out",
        "{own}",
    ],
    "pair": ["traces", "pair", "{own}", "--workload", "{own}", "--proposer", "a", "--proposer", "b"],
}


@pytest.mark.parametrize("argv", OVER.values(), ids=OVER)
def test_traces_never_writes_over_what_it_reads(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write_lines(tmp_path / "own", [dump(recording_row())])
    before = own.read_bytes()
    assert run([one.format(own=own) for one in argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is read by the same command" in line
    assert own.read_bytes() == before


@pytest.mark.parametrize("folder", ["own", "own/new", "/proc/new"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_fit(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_text("no recording, which is not read")
    argv = ["traces", "workload", str(tmp_path / "own"), "--name", "w", "--out", str(tmp_path / folder)]
    assert run(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --out: got ")


@pytest.mark.parametrize("name", ["../evil", "a/b", "/tmp/w", ".."])
def test_a_name_of_a_workload_leads_nowhere_else(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["traces", "workload", str(tmp_path / "none"), "--name", name, "--out", str(tmp_path / "out")]
    assert run(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --name: got '{name}', ")


def test_a_pair_for_no_workload_is_refused_before_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.yaml").write_text("<html>404</html>")
    argv = ["traces", "pair", str(tmp_path / "none.parquet"), "--workload", str(tmp_path / "page.yaml")]
    assert run([*argv, "--proposer", "ngram", "--proposer", "eagle3"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "page.yaml" in line


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


WRITES = {
    "calibrate": ["calibrate", "--steps", "{log}", "--out"],
    "calibrate --report": ["calibrate", "--steps", "{log}", "--out", "{made}", "--report"],
    "import": ["traces", "import", "{traces}", "--out"],
    "describe": ["traces", "describe", "{traces}", "--report"],
    "replay": ["traces", "replay", "{traces}", "--proposer", "ngram", "--out"],
    "fit": ["traces", "fit", "{traces}", "--proposer", "ngram", "--out"],
    "workload": ["traces", "workload", "{traces}", "--name", "w", "--summary", "s", "--out"],
    "simulate": ["simulate", "--concurrency", "4", "--records"],
    "recommend": ["recommend", "--concurrency", "4", "--out"],
    "export": ["export", "{plan}", "--out"],
    "validate": ["validate", "--write-baseline"],
    "validate --report": ["validate", "--report"],
}


@pytest.mark.parametrize("argv", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("glued", [False, True])
def test_an_empty_path_is_refused_and_nothing_is_written(
    argv: list[str],
    glued: bool,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    *given, option = argv
    assert run([*given, *([f"{option}="] if glued else [option, ""])]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {option}: got 'an empty text', a value is needed")
    assert len(told.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that not even root can write to")
@pytest.mark.parametrize("which", ["calibrate", "calibrate --report", "import", "describe", "replay"])
def test_a_folder_that_nobody_can_write_to_is_told_in_one_line(
    which: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    places = {
        "{log}": str(write_log(tmp_path / "steps.jsonl", (1, 16, 128))),
        "{traces}": str(write_lines(tmp_path / "traces.jsonl", [dump(recording_row())])),
        "{made}": str(tmp_path / "made"),
    }
    argv = [places.get(one, one) for one in WRITES[which]]
    assert run([*argv, "/proc/x.out"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"error: {argv[-1]}: got '/proc/x.out', its folder is not writable")
    assert len(told.err.splitlines()) == 1
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("argv", [["profiles"], ["profiles", "--json"], ["policies"], ["--help"]])
def test_a_reader_that_went_away_is_no_error(argv: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    code = "import sys; from kplan.cli.app import run; sys.exit(run(sys.argv[1:]))"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, *argv], stdout=theirs, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(theirs)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("option", ["--model", "--calibration", "--drafter"])
def test_a_name_too_long_for_a_path_is_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--concurrency", "4", option, "a" * 5000 + ".yaml", "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "File name too long" in told.err
    assert len(told.err.splitlines()) == 1
