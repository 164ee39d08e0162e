"""Ctrl-C and SIGTERM, once or twice, in the middle of what a live server is asked: a line, a usable part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.latency.fit_steps import read_steps
from tests.live_fake.fake import Engine, FakeServer

BOTH = pytest.mark.parametrize(
    ("numbers", "codes"),
    [
        ([signal.SIGINT], {130}),
        ([signal.SIGINT, signal.SIGINT], {130}),
        ([signal.SIGTERM, signal.SIGTERM], {143}),
        ([signal.SIGTERM, signal.SIGINT], {143, 130}),
    ],
    ids=["int", "int-int", "term-term", "term-int"],
)


def stopped(argv: list[str], ready: Callable[[], bool], numbers: list[signal.Signals]) -> tuple[int, str]:
    """Run a command, send it the signals one right after the other once it is ready; exit code and stderr."""
    command = [sys.executable, "-c", "from kplan.cli.app import main; main()", *argv]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end_s = time.monotonic() + 60
        while not ready():
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < end_s
            time.sleep(0.01)
        for number in numbers:
            os.kill(child.pid, number)
            time.sleep(0.002)  # two alike at once are delivered as one; of two kinds either may be first
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert out == ""
    return child.returncode, err


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@BOTH
def test_a_stopped_recording_says_what_it_kept_and_is_of_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], numbers: list[signal.Signals], codes: set[int]
) -> None:
    prompts, rows, trace = tmp_path / "p.txt", tmp_path / "a.jsonl", tmp_path / "part.parquet"
    prompts.write_text("".join(f"tell me of number {i}\n" for i in range(60)))
    record = ["record", "--prompts", str(prompts), "--max-tokens", "16", "--proposer", "eagle3"]
    with FakeServer(Engine(step_s=0.02)) as fake:
        argv = [*record, "--url", fake.url, "--out", str(rows), "--concurrency", "2"]
        got, err = stopped(argv, lambda: _lines(rows) >= 3, numbers)
        kept = _lines(rows)
        said = f"interrupted: {kept} of 60 answers are in {rows}; the same command goes on"
        assert (got in codes, err) == (True, said + "\n")
        (of_it,) = json.loads((tmp_path / "a.jsonl.meta.json").read_text())["runs"]
        assert (of_it["closed"], of_it["end"]) == (True, "interrupted")
        assert run(["traces", "import", str(rows), "--proposer", "eagle3", "--out", str(trace)]) == 0
        assert run(["traces", "describe", str(trace)]) == 0
        fake.engine.step_s = 0.0
        capsys.readouterr()
        assert run([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 60 - kept
    assert [json.loads(line)["index"] for line in rows.read_text().splitlines()] == list(range(60))


@BOTH
def test_a_stopped_calibration_keeps_the_rows_it_was_to_save(
    tmp_path: Path, numbers: list[signal.Signals], codes: set[int]
) -> None:
    steps, out = tmp_path / "steps.jsonl", tmp_path / "own.yaml"
    with FakeServer(Engine(k=0, step_s=0.003)) as fake:
        argv = ["calibrate", "--url", fake.url, "--out", str(out), "--batches", "1,2,3,4,5,6,7,8"]
        argv += ["--prompt-tokens", "8", "--output-tokens", "32", "--hold-out", "none"]
        argv += ["--save-steps", str(steps)]
        got, err = stopped(argv, lambda: _lines(steps) >= 2, numbers)
    kept = _lines(steps)
    assert (got in codes, err.count("\n")) == (True, 1), err
    assert f"the rows of {kept} of 8 settings are in {steps}: a later call takes them with --steps" in err
    in_flight = [row.mean("decode_requests") for row in read_steps(steps)]
    assert in_flight == pytest.approx([n + 1.0 for n in range(kept)], rel=0.1)
    assert not out.exists()
