"""``kplan leaderboard`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.cli.app import run

SMALL = ["--batch", "2", "--workload", "gsm8k", "--max-k", "2", "--requests", "40", "--replications", "2"]
ROW_KEYS = {
    "workload", "proposer", "load", "policy", "speedup", "ci95", "oracle_share", "regret", "switches",
}  # fmt: skip
LOUD = """
class Loud:
    def choose_k(self, step) -> int:
        print("loud")
        return 1
"""


def test_json_is_one_object_though_a_policy_prints(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    mine = f"{tmp_path / 'loud.py'}:Loud"
    board = [*SMALL, "--policy", mine, "--only", "fixed", "--only", mine, "--workers", "1"]
    assert run(["leaderboard", *board, "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert set(told) >= {"rows", "summary", "files", "scenario_hash", "versions"}
    assert [one["policy"] for one in told["rows"]] == ["off", "fixed:1", "fixed:2", "oracle", mine]
    for one in told["rows"]:
        assert set(one) >= ROW_KEYS
        assert (one["workload"], one["proposer"], one["kind"], one["load"]) == (
            "gsm8k",
            "eagle3",
            "closed",
            2,
        )
    same = {one["policy"]: one["speedup"] for one in told["rows"]}
    assert same[mine] < same["fixed:1"]  # the same K at the price of one that may change
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "leaderboard.html", "leaderboard.json", "leaderboard.parquet",
    ]  # fmt: skip


def test_the_table_shows_the_ranking_and_the_best_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["leaderboard", *SMALL, "--only", "fixed", "--only", "goodput", "--only", "ucb"]) == 0
    few = capsys.readouterr().out
    assert run(["leaderboard", *SMALL, "--only", "fixed", "--only", "goodput", "--only", "ucb", "--all"]) == 0
    whole = capsys.readouterr().out
    heading = "gsm8k, eagle3, batch 2"
    assert "ranking over 1 cells" in few
    assert len(few.split(heading)[1].strip().splitlines()) < len(whole.split(heading)[1].strip().splitlines())
    for name in ("off", "fixed:1", "fixed:2", "goodput *", "ucb *", "oracle *"):
        assert name in whole.split(heading)[1]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--batch", "1.5"], "clients are counted"),
        (["--qps", "fast"], "is no number"),
        (["--dataset", "gsm8k"], "give --traces FILE"),
        (["--traces", "x.parquet", "--workload", "gsm8k"], "does not go with --traces"),
        (["--policy", "nobody"], "no policy is called 'nobody'"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["leaderboard", *argv]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_folder_that_is_a_file_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    assert run(["leaderboard", "--out", str(tmp_path / "taken")]) == 2
    assert "name a folder" in capsys.readouterr().err


def test_simulate_takes_one_data_set_of_recorded_traces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["simulate", "--qps", "4", "--dataset", "gsm8k"]) == 2
    assert "--dataset is one of recorded traces" in capsys.readouterr().err
