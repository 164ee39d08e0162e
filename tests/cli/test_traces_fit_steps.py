"""``kplan traces``: a live server's metrics to a workload that a simulation takes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kplan.acceptance import ProposerTrace, save_traces
from kplan.cli.app import run
from kplan.validate import order
from kplan.workload import load_workload
from tests.acceptance.made import dump, flat_model, set_of, steps_of, write_lines
from tests.acceptance.served import vllm_row


def served(trace: ProposerTrace, k: int) -> list[str]:
    """vLLM's responses to the requests of a trace, at K = k."""
    steps = steps_of(trace, k)
    assert steps.seen is not None
    lines = []
    for start, end in zip(trace.offsets[:-1], trace.offsets[1:], strict=True):
        accepted = [int(steps.acc[i]) - 1 for i in range(start, end) if steps.seen[i]]
        lines.append(dump(vllm_row(accepted, [k] * len(accepted), int(end - start), k)))
    return lines


def test_metrics_of_a_server_become_a_workload_that_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens a step, in the simulation of the server's K, are those that the server showed."""
    workload = load_workload("gsm8k")
    trace = workload.model("eagle3").generate(5, workload.sample_lengths(5, 120)[1])
    log = write_lines(tmp_path / "responses.jsonl", served(trace, 3))
    steps = tmp_path / "steps.parquet"
    assert run(["traces", "import", str(log), "--proposer", "eagle3", "--out", str(steps)]) == 0
    flags = ["traces", "workload", str(steps), "--name", "mine", "--no-holdout", "--out", str(tmp_path)]
    assert run(flags) == 0
    assert "assumed as in " in capsys.readouterr().out
    flags = [
        "simulate",
        "--workload",
        str(tmp_path / "mine.yaml"),
        "--proposer",
        "eagle3",
        "--policy",
        "fixed:3",
    ]
    assert run([*flags, "--concurrency", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    shown = [steps_of(trace, 3).acc[i] for i in np.flatnonzero(steps_of(trace, 3).seen)]
    assert answer["acceptance_length"] == pytest.approx(np.mean(shown), rel=0.02)


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.parquet"
    save_traces(set_of(steps_of(flat_model([0.5]).generate(0, np.full(40, 60)), 3), "eagle3"), path)
    return path


def test_like_names_what_lends(steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.json"
    flags = ["--proposer", "eagle3", "--like", "gsm8k-eagle3", "--no-holdout", "--out", str(out), "--json"]
    assert run(["traces", "fit", str(steps), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["like"] == "gsm8k-eagle3"
    assert "as in gsm8k-eagle3" in json.loads(out.read_text())["provenance"]["note"]


def fails(capsys: pytest.CaptureFixture[str], file: Path, *flags: str) -> str:
    """The one line of an error that leaves no file behind."""
    out = file.parent / "none.json"
    assert run(["traces", "fit", str(file), "--proposer", "eagle3", "--out", str(out), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not out.exists()
    return line


def test_policies_are_not_ranked_on_steps(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "ranked on a recording of every position" in fails(capsys, steps, "--judge-order")


def test_what_lends_has_to_fit_the_recording(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "eagle3 is a head" in fails(capsys, steps, "--like", "gsm8k-ngram")
    whole = steps.parent / "whole.parquet"
    save_traces(set_of(flat_model([0.5]).generate(0, np.full(40, 60)), "eagle3"), whole)
    assert "borrows nothing" in fails(capsys, whole, "--like", "gsm8k-eagle3")


def test_traces_that_are_loops_only_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = set_of(flat_model([0.5]).generate(0, np.full(40, 60)), "eagle3")
    save_traces(replace(traces, loopy=np.ones(40, np.bool_)), tmp_path / "loops.parquet")
    assert "requests: got 0" in fails(capsys, tmp_path / "loops.parquet", "--judge-order")


def test_the_order_of_the_policies_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of drafts accepted nine times in ten: no pair of no speculation, K = 1 and K = 5 is in doubt."""
    monkeypatch.setattr(order, "POLICIES", ("off", "fixed:1", "fixed:5"))
    monkeypatch.setattr(order.judge_order, "__defaults__", ((1,),))
    file = tmp_path / "whole.parquet"
    save_traces(set_of(flat_model([0.9]).generate(0, np.full(40, 100)), "eagle3"), file)
    flags = ["--proposer", "eagle3", "--no-holdout", "--judge-order", "--out", str(tmp_path / "m.json")]
    assert run(["traces", "fit", str(file), *flags]) == 0
    told = capsys.readouterr()
    assert "batch 1: pairs ranked otherwise by the model: none" in told.out
    assert all(policy in told.out + told.err for policy in ("off", "fixed:1", "fixed:5"))
