"""Flags of the load: how they become a scenario, and that a plan keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


FEW = ["--requests", "60", "--replications", "1", "--max-k", "3", "--workload", "gsm8k"]


def _answered(capsys: pytest.CaptureFixture[str], argv: list[str]) -> dict[str, Any]:
    assert run([*argv, "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_a_table_on_ranks_is_simulated_as_the_engine_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--qps", "4", "--dp", "2", *FEW]
    table = _answered(capsys, [*argv, "--policy", "table:1-8=1,9-16=3,17-=2"])
    largest = _answered(capsys, [*argv, "--policy", "fixed:3"])
    assert table["name"] == "fixed:3"
    assert table["tpot_ms"] == largest["tpot_ms"]
    assert [note for note in table["notes"] if "drops table:1-8=1,9-16=3,17-=2" in note]
    assert not [note for note in largest["notes"] if "drops" in note]


def test_a_plan_for_ranks_has_no_table_and_asks_vllm_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["recommend", "--qps", "4", "--dp", "2", "--tp", "2", "--out", str(tmp_path), *FEW]
    plan = _answered(capsys, argv)
    assert plan["question"]["dp"] == 2
    assert plan["answer"]["table"] is None
    assert "on 1 replica of 4 x h100-sxm" in plan["answer"]["words"]
    tables = [one for one in plan["policies"] if one["name"].startswith("table")]
    assert not any(one["exportable"] for one in tables)
    assert "data-parallel-size: 2" in (tmp_path / "vllm.yaml").read_text()
    assert not (tmp_path / "sglang.yaml").exists()
    assert "data parallel" in (tmp_path / "report.html").read_text()


def test_what_a_short_context_refuses_and_cuts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of 100 tokens and answers of 50 in a context of 120: none refused, all of them end early."""
    argv = ["simulate", "--qps", "4", "--prompt-tokens", "100", "--output-tokens", "50", *FEW]
    told = " ".join(_answered(capsys, [*argv, "--max-model-len", "120"])["notes"])
    assert "takes 120 tokens a request (--max-model-len): 100.0% of the requests end early." in told
    assert "tokens a request" not in " ".join(_answered(capsys, argv)["notes"])


def test_a_context_that_would_fit_the_kv_cache_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--concurrency", "1", "--prompt-tokens", "120000", "--policy", "fixed:3", *FEW]
    tight = [*argv, "--gpu-memory-utilization", "0.3"]
    assert run(tight) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    fix = told.rpartition("--max-model-len ")[2].strip()
    assert run([*tight[:3], "--prompt-tokens", str(int(fix) - 50), *tight[5:], "--max-model-len", fix]) == 0


def test_a_log_is_answered_with_its_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """120 requests over four minutes, 90 of them in the last: 0.5 QPS on average, 1.5 at the peak."""
    times = [i * 6.0 for i in range(30)] + [180.0 + i * 59.0 / 89 for i in range(90)]
    log = tmp_path / "day.csv"
    log.write_text("t_s,input_tokens,output_tokens\n" + "".join(f"{t},200,100\n" for t in times))
    argv = ["recommend", "--replay", str(log), "--replications", "1", "--max-k", "1"]
    words = _answered(capsys, argv)["answer"]["words"]
    assert "at the pace of day.csv" in words
    assert "on average" in words
    assert "in its busiest minute (1.5 QPS)" in words
