"""The whole loop on a real server: record, calibrate, plan a table, export, start with it, verify.

Recorded and calibrated are servers of before (:mod:`tests.live.calibrated`); nothing of the verified run was
known when the plan was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.calibrated import POLICIES, RECORDED_TOKENS, TABLES, Calibrated, K, kplan, served, started
from tests.live.install import Engine
from tests.live.walk import Pair, walk

pytestmark = pytest.mark.served

CLIENTS = 8


@pytest.fixture(scope="module")
def planned(calibrated: Calibrated, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan made from the recording and the calibration."""
    folder = tmp_path_factory.mktemp("planned")
    argv = ["traces", "workload", str(calibrated.recording), "--name", "pair", "--out", str(folder)]
    code, _ = kplan(argv, folder / "fitted.json")
    assert code == 0
    argv = ["recommend", "--concurrency", str(CLIENTS), *served(pair), "--max-num-seqs", "32"]
    argv += ["--workload", str(folder / "pair.yaml"), "--calibration", str(calibrated.calibration)]
    argv += ["--policy", POLICIES["table"], "--max-k", str(K), "--enforce-eager"]
    code, plan = kplan([*argv, "--out", str(folder / "plan")], folder / "plan.json")
    assert code == 0
    assert len(plan["answer"]["table"]) == len(TABLES["table"])
    return folder / "plan"


@pytest.fixture(scope="module")
def verified(
    logging_vllm: Engine, calibrated: Calibrated, planned: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What ``kplan verify`` says of a server that was started from the plan's own file."""
    folder = tmp_path_factory.mktemp("verified")
    config = yaml.safe_load((planned / "vllm.yaml").read_text())
    log = folder / "steps.jsonl"
    config["enable-logging-iteration-details"] = True
    with started(logging_vllm, config, log) as server:
        argv = ["verify", str(planned), "--url", server.url, "--engine-python", str(logging_vllm.python)]
        argv += ["--steplog", str(log), "--limit-s", "400", "--out", str(folder / "report")]
        code, found = kplan(argv, folder / "verified.json")
    assert code in (0, 1)
    assert (folder / "report" / "report.html").is_file()
    return found


def test_what_was_recorded_is_what_the_pair_accepts(calibrated: Calibrated, pair: Pair) -> None:
    told = kplan(
        ["traces", "describe", str(calibrated.recording)], calibrated.recording.with_suffix(".described.json")
    )[1]
    walks = [walk(pair, token, RECORDED_TOKENS, K) for token in pair.cycle[::64]]
    expected = len(walks) * (RECORDED_TOKENS - 1) / sum(one.drafts for one in walks)
    assert told["proposers"]["draft-model"]["step_mean"] == pytest.approx(expected, rel=0.02)


def test_the_plan_is_what_the_server_does(
    verified: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{verified['words']}")
        for one in verified["figures"]:
            print(f"{one['name']:<20}{one['predicted']:>12.4g}{one['measured']:>12.4g}  {one['verdict']}")
    figures = {one["name"]: one for one in verified["figures"]}
    length = figures["acceptance_length"]
    assert length["measured"] == pytest.approx(length["predicted"], rel=0.02)
    assert figures["drafted"]["measured"] == pytest.approx(figures["drafted"]["predicted"], rel=0.02)
    step = figures["step_median_ms"]
    assert step["measured"] == pytest.approx(step["predicted"], rel=0.25)
    assert "acceptance" not in verified["causes"]
