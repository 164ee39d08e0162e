"""Flags of the load: how they become a scenario, and that a plan keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.cli.options import scenario_of
from kplan.errors import InputError


def test_columns_are_pairs(tmp_path: Path) -> None:
    flags = {"replay": tmp_path / "log.csv", "columns": "t_s = when ,input_tokens=n in"}
    assert scenario_of(None, flags, {}).columns == {"t_s": "when", "input_tokens": "n in"}


@pytest.mark.parametrize(
    ("text", "named"),
    [("t_s", "'t_s'"), ("t_s=", "'t_s='"), ("t_s=a,,", "''"), ("t_s=a,t_s=b", "t_s is given twice")],
)
def test_columns_that_are_no_pairs_are_told(text: str, named: str) -> None:
    with pytest.raises(InputError, match="--columns") as caught:
        scenario_of(None, {"replay": Path("log.csv"), "columns": text}, {})
    assert named in str(caught.value)


@pytest.mark.parametrize("command", ["simulate", "recommend"])
@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--qps", "4", "--think-s", "1"], "--think-s"),
        (["--qps", "4", "--arrivals", "ramp"], "--ramp-to-qps"),
        (["--qps", "4", "--burstiness", "-1"], "--burstiness"),
        (["--qps", "4", "--router", "any"], "--router"),
        (["--qps", "4", "--dp", "0"], "--dp"),
        (["--qps", "4", "--max-model-len", "0"], "--max-model-len"),
        (["--replay", "log.csv", "--concurrency", "2"], "exactly one"),
        (["--replay", "log.csv", "--columns", "t_s"], "--columns"),
        (["--concurrency", "2", "--ramp-to-qps", "4"], "--ramp-to-qps"),
    ],
)
def test_both_commands_refuse_a_load_that_does_not_hold_together(
    command: str, argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, *argv, "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert named in told.err
    assert len(told.err.splitlines()) == 1


def test_a_plan_keeps_how_the_load_came_and_how_it_was_served(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["recommend", "--qps", "4", "--requests", "100", "--replications", "2", "--max-k", "1", "--json"]
    load = ["--arrivals", "constant", "--router", "least-outstanding"]
    server = ["--max-model-len", "32768", "--no-prefix-caching"]
    assert run([*argv, *load, *server]) == 0
    question = json.loads(capsys.readouterr().out)["question"]
    kept = {"arrivals": "constant", "router": "least-outstanding", "max_model_len": 32768}
    assert question | kept == question
    assert question["prefix_caching"] is False
