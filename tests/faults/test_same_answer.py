"""The same question gives the same bytes in any process, place and language, and on any number of workers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run
from kplan.config.scenario import make_scenario
from kplan.search.found import judge
from kplan.search.optimize import Asked, optimize
from kplan.search.single import simulate_one
from tests.search.servers import environment

ASK = {"qps": 9.0, "requests": 60, "replications": 2, "workload": "gsm8k", "max_k": 3, "seed": 5}
FLAGS = [part for key, value in ASK.items() for part in (f"--{key.replace('_', '-')}", str(value))]
HERE = {
    "PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
}  # fmt: skip
ELSEWHERE = {
    "PYTHONHASHSEED": "4242", "TZ": "Asia/Kathmandu", "LC_ALL": "de_DE.UTF-8", "OMP_NUM_THREADS": "3",
    "NUMBA_NUM_THREADS": "2", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX2 FMA3", "COLUMNS": "61",
}  # fmt: skip
"""Another hash order, zone, language, number of threads, width; numpy without its wide arithmetic."""
BOTH = f"""
import os, sys
os.umask(int(sys.argv[1], 8))
import warnings
warnings.simplefilter("ignore")  # numpy names the features that this processor lacks anyway
from kplan.cli.app import run
flags = {FLAGS!r}
codes = [run(["recommend", *flags, "--out", "plan"])]
codes += [run(["simulate", *flags, "--policy", "fixed:3", "--records", "rec"])]
sys.exit(max(codes))
"""


def answered(folder: Path, variables: dict[str, str], umask: str) -> dict[str, bytes]:
    """What the two commands write in a process of these variables: path -> bytes."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BOTH, umask], cwd=folder, env=environment() | variables, check=False,
        capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}
    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*.*")}
    assert modes == {0o666 & ~int(umask, 8)}
    return found


def test_another_process_place_and_language_write_the_same_bytes(tmp_path: Path) -> None:
    one = answered(tmp_path / "one", HERE, "022")
    other = answered(tmp_path / "an öther", ELSEWHERE, "077")
    assert {"plan/plan.json", "plan/vllm.yaml", "plan/report.html", "rec/steps.parquet"} <= set(one)
    assert [name for name in one if one[name] != other.get(name)] == []
    assert set(one) == set(other)


def test_the_command_and_the_library_answer_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *FLAGS, "--policy", "fixed:3", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    single = simulate_one(make_scenario(dict(reversed(ASK.items())) | {"policy": "fixed:3"}))
    mine = json.loads(single.result.model_dump_json())
    assert {key: told[key] for key in mine} == mine
    assert (told["scenario_hash"], told["seed"]) == (single.scenario_hash, 5)


def test_three_workers_search_as_one_does() -> None:
    """The order in which trials are asked for is promised, not only their best: eight at a time, always."""
    asked = Asked(trials=9)
    one = optimize(make_scenario(ASK), asked)
    three = optimize(make_scenario(ASK), replace(asked, workers=3))
    assert three.trials == one.trials
    assert judge(three) == judge(one)


def test_the_order_of_policies_and_the_number_of_replications_move_no_run() -> None:
    """A run is its seed's alone: seed 5 first and alone, or second after 4, is the same."""
    alone = simulate_one(make_scenario(ASK | {"replications": 1, "requests": 80, "policy": "fixed:2"}))
    pair = simulate_one(
        make_scenario(ASK | {"replications": 2, "requests": 80, "seed": 4, "policy": "fixed:2"})
    )
    first = simulate_one(
        make_scenario(ASK | {"replications": 1, "requests": 80, "seed": 4, "policy": "fixed:2"})
    )
    assert pair.output_tokens == first.output_tokens + alone.output_tokens
    assert pair.steps == first.steps + alone.steps
