"""`kplan import-config` and `kplan export --check` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplan.cli.app import run
from kplan.export import plan_json
from tests.export.sample import answered

SMALL = ["--requests", "120", "--replications", "2"]
VLLM = """model: meta-llama/Llama-3.1-8B-Instruct
max-num-seqs: 64
max-num-batched-tokens: 4096
speculative-config:
  method: eagle3
  model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
  num_speculative_tokens: 4
"""
TABLE = "  num_speculative_tokens_per_batch_size: [[1, 8, 4], [9, 64, 1]]\n"
TREE = """model-path: meta-llama/Llama-3.1-8B-Instruct
speculative-algorithm: EAGLE
speculative-draft-model-path: yuhuili/EAGLE-LLaMA3.1-Instruct-8B
"""
ACCEPTS = """#!/bin/sh
case "$1" in
  *which_engines.py) echo '{"vllm": "0.32.0"}' ;;
  *) echo '{"stage": "%s", "error": "%s", "stood_in": []}' ;;
esac
"""


def written(folder: Path, text: str, name: str = "engine.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def engine(folder: Path, stage: str, error: str = "") -> str:
    python = folder / "python"
    python.write_text(ACCEPTS % (stage, error))
    python.chmod(0o755)
    return str(python)


def record_of(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    assert run([*argv, "--json"]) == code, capsys.readouterr().err
    record = json.loads(capsys.readouterr().out)
    assert isinstance(record, dict)
    return record


def test_a_config_is_simulated_as_its_scenario_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scenario.yaml"
    file = written(tmp_path, VLLM + TABLE)
    record = record_of(capsys, "import-config", file, "--qps", "8", *SMALL, "--out", str(out))
    assert record["policy"] == "table:1-8=4,9-=1"
    assert record["settings"] == {"max_num_seqs": 64, "max_num_batched_tokens": 4096}
    assert (record["runs"], record["files"]) == (True, [str(out)])
    scenario = yaml.safe_load(out.read_text())
    assert (scenario["qps"], scenario["proposer"], scenario["policy"]) == (8.0, "eagle3", record["policy"])
    again = record_of(capsys, "simulate", str(out))
    assert record["current"] == {key: again[key] for key in record["current"]}
    assert record["off"]["name"] == "off"


def test_the_tree_that_sglang_takes_by_default_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """5 steps, topk 4, 8 draft tokens: 7 drafts are verified beside the token already decided."""
    out = tmp_path / "tree.yaml"
    file = written(tmp_path, TREE)
    record = record_of(capsys, "import-config", file, "--qps", "2", *SMALL, "--out", str(out))
    assert (record["policy"], record["proposer"]) == ("fixed:7", "eagle-tree")
    assert any("5 steps, topk 4 and 8 draft tokens" in one["text"] for one in record["findings"])
    assert record["current"]["mean_k"] == 7.0
    beside = yaml.safe_load((tmp_path / "current-drafter.yaml").read_text())
    assert beside["tree"] == {"depth": 5, "topk": 4, "verified": 7}
    again = record_of(capsys, "simulate", str(out))
    assert again["acceptance_length"] == record["current"]["acceptance_length"]


def test_recommend_stands_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, VLLM)
    record = record_of(capsys, "import-config", file, "--concurrency", "4", *SMALL, "--recommend")
    assert record["recommended"]["policy"]
    assert run(["import-config", file, "--concurrency", "4", *SMALL, "--recommend"]) == 0
    said = capsys.readouterr().out
    assert "recommended instead" in said
    assert "fixed:4" in said


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (VLLM.replace("tokens: 4\n", "tokens: 0\n"), "refused"),
        (VLLM.replace("eagle3\n", "suffix\n") + TABLE, "crash"),
        (VLLM.replace("eagle3\n", "draft_model\n  parallel_drafting: true\n") + TABLE, "corrupt"),
    ],
)
def test_what_cannot_run_is_exit_1_and_is_not_simulated(
    text: str, severity: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scenario.yaml"
    file = written(tmp_path, text)
    record = record_of(capsys, "import-config", file, "--qps", "8", "--out", str(out), code=1)
    assert record["findings"][0]["severity"] == severity
    assert "current" not in record
    assert not out.exists()
    assert run(["import-config", file]) == 1
    assert f"\n{severity}: " in capsys.readouterr().out


def test_findings_need_no_load_and_no_known_model(capsys: pytest.CaptureFixture[str]) -> None:
    command = (
        'vllm serve nobody/knows --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\''
    )
    assert record_of(capsys, "import-config", "--command", command)["policy"] == "fixed:3"
    assert run(["import-config", "--command", command, "--qps", "4"]) == 2
    assert "name it with --model" in capsys.readouterr().err
    record = record_of(
        capsys, "import-config", "--command", command, "--qps", "4", "--model", "llama-3.1-8b", *SMALL
    )
    assert record["current"]["name"] == "fixed:3"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "exactly one is read"),
        (["a.yaml", "--command", "vllm serve m"], "exactly one is read"),
        (["nowhere.yaml"], "cannot be read"),
        (["a.txt"], ".yaml and .yml alone"),
        (["--command", "ls -l"], "starts no engine"),
        (["--command", "vllm serve 'm"], "quote"),
        (["--command", "vllm serve m", "--engine", "trtllm"], "must be vllm, sglang or auto"),
        (["--command", "vllm serve m", "--recommend"], "give --qps"),
        (["--command", "vllm serve meta-llama/Llama-3.1-8B-Instruct -pp 2", "--qps", "1"], "pipeline"),
        (["--command", "vllm serve m", "--check", "nowhere"], "cannot be run"),
    ],
)
def test_bad_input_is_one_line(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import-config", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(("stage", "code"), [("ok", 0), ("start", 1)])
def test_the_engines_own_word_decides(
    stage: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = engine(tmp_path, stage, "" if stage == "ok" else "ValueError: no")
    file = written(tmp_path, VLLM)
    record = record_of(capsys, "import-config", file, "--check", python, code=code)
    assert record["check"]["stage"] == stage
    plan = tmp_path / "plan.json"
    plan.write_text(plan_json(answered("fixed:3", k=3)))
    argv = ["export", str(plan), "--out", str(tmp_path / "out"), "--check", python]
    record = record_of(capsys, *argv, code=code)
    assert record["check"]["stage"] == stage
    assert record["engines"]["vllm"]["speculative_config"].startswith('{"method":"eagle3"')
    assert run(argv) == code
    assert ("accepts" if stage == "ok" else "refuses") in capsys.readouterr().out


def test_another_release_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(plan_json(answered("fixed:3", k=3)))
    out = tmp_path / "out"
    assert run(["export", str(plan), "--out", str(out), "--engine-version", "0.31.0"]) == 2
    assert "only the rules of vLLM 0.32.0 are known" in capsys.readouterr().err
    assert not out.exists()
    assert run(["export", str(plan), "--out", str(out), "--engine-version", "0.32.0"]) == 0
