"""``kplan search``: its files, and what it says of a best policy that no engine runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.cli.app import run

SMALL = [
    "search", "--concurrency", "4", "--workload", "gsm8k", "--max-k", "3", "--max-num-seqs", "64",
    "--requests", "60", "--replications", "2", "--workers", "1", "--trials", "3",
]  # fmt: skip

FORESEES = """
from typing import Annotated
from kplan.space import IntRange
from kplan_policies.oracle import Oracle

class Foresees(Oracle):
    def __init__(self, unused: Annotated[int, IntRange(0, 1)] = 0) -> None:
        pass
"""
"""A family that wins, for it looks at the future."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals go to the working folder."""
    monkeypatch.chdir(tmp_path)


def test_the_plan_and_the_configs_of_the_best_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run([*SMALL, "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    names = {Path(one).name for one in record["files"]}
    assert {"search.json", "trials.parquet", "plan.json", "vllm.yaml"} <= names
    assert all(Path(one).is_file() for one in record["files"])
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert plan["answer"]["policy"] == record["planned"] == record["runnable"]["policy"]
    assert (record["best"]["policy"] == record["planned"]) == (record["plan_note"] == "")
    assert run(["export", str(out / "plan.json"), "--out", str(tmp_path / "again")]) == 0
    again = (tmp_path / "again" / "vllm.yaml").read_text(encoding="utf-8")
    assert again == (out / "vllm.yaml").read_text(encoding="utf-8")


def test_a_best_that_no_engine_runs_is_named_and_the_best_that_one_does_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.py").write_text(FORESEES, encoding="utf-8")
    argv = [*SMALL, "--family", "my.py:Foresees", "--out", "out"]
    assert run(argv) == 0
    told = capsys.readouterr().out.splitlines()
    note = next(line for line in told if "is not exported" in line)
    assert note.startswith("my.py:Foresees:unused=")
    assert "its class declares no engine that runs it; the plan is that of " in note
    policy = json.loads(Path("out/plan.json").read_text(encoding="utf-8"))["answer"]["policy"]
    assert note.endswith(policy)
    assert policy.partition(":")[0] in ("off", "fixed", "table")


def test_a_load_that_nothing_serves_has_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--slo-tpot-ms", "0.1", "--out", "out", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert [Path(one).name for one in record["files"]] == ["search.json", "trials.parquet"]
    assert record["planned"] is None
    assert record["plan_note"] == "no plan: no policy serves every load"


def test_replicas_are_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--replicas", "auto"]) == 2
    assert "--replicas: got 'auto', policies are compared on a given number" in capsys.readouterr().err


def test_a_data_set_is_one_of_recorded_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--dataset", "gsm8k"]) == 2
    assert "--dataset is one of recorded traces: give --traces FILE" in capsys.readouterr().err


def test_on_recorded_traces_the_best_table_is_as_good_as_every_fixed_k(
    shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = ["--traces", str(shared_dir / "data" / "acceptance_traces.parquet"), "--dataset", "gsm8k"]
    common = ["--max-k", "5", "--replications", "3", "--workers", "1", "--trials", "8", "--json"]
    for load in (["--concurrency", "8"], ["--qps", "8"]):
        assert run(["search", *load, *traces, *common]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["cases"][0].startswith("traces acceptance_traces.parquet (gsm8k) at ")
        assert record["runnable"]["runnable"]
        fixed = [one for one in record["gaps"] if one["policy"].startswith("fixed:")]
        assert len(fixed) == 5
        for one in fixed:
            assert one["tpot"]["ratio"] <= 1.01 or one["tpot"]["verdict"] == "tie", one
