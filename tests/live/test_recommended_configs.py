"""What `kplan recommend --out` writes, but for local model folders, passes the own code of both engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.install import Engine
from tests.live.verdicts import judge
from tests.live.walk import Pair

KPLAN = Path(sys.executable).with_name("kplan")
SMALL = ("--requests", "150", "--replications", "1")
QUESTIONS = {
    "eagle3": ("--qps", "16", "--proposer", "eagle3"),
    "n-gram": ("--qps", "4", "--proposer", "ngram", "--workload", "instructcoder"),
    "eagle, two clients": ("--concurrency", "2", "--proposer", "eagle", "--workload", "mtbench"),
    "tensor parallel": ("--qps", "8", "--model", "llama-3-70b", "--tp", "4", "--proposer", "eagle"),
}
LOCAL = {"model": "target", "model-path": "target", "speculative-draft-model-path": "draft"}


def _localise(config: Path, pair: Pair) -> dict[str, Any]:
    """Point a written config at folders of this machine, and give back what it says."""
    content: dict[str, Any] = yaml.safe_load(config.read_text())
    content |= {key: str(pair.folder / folder) for key, folder in LOCAL.items() if key in content}
    if "model" in content.get("speculative-config", {}):
        content["speculative-config"]["model"] = str(pair.folder / "draft")
    config.write_text(yaml.safe_dump(content))
    return content


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder that each question was answered into."""
    folders = {}
    for name, question in QUESTIONS.items():
        folders[name] = tmp_path_factory.mktemp("plan")
        command = [str(KPLAN), "recommend", *question, *SMALL, "--out", str(folders[name]), "--json"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return folders


@pytest.fixture(scope="module")
def contents(plans: dict[str, Path], pair: Pair) -> dict[str, dict[str, dict[str, Any]]]:
    """Question -> engine -> the written config, now with local model folders."""
    return {
        name: {engine: _localise(folder / f"{engine}.yaml", pair) for engine in ("vllm", "sglang")}
        for name, folder in plans.items()
    }


@pytest.fixture(scope="module")
def vllm_verdicts(
    vllm: Engine, plans: dict[str, Path], contents: dict[str, dict[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """vLLM's word on every written config."""
    return judge(vllm, {name: plans[name] / "vllm.yaml" for name in contents})


@pytest.fixture(scope="module")
def sglang_verdicts(
    sglang: Engine, plans: dict[str, Path], contents: dict[str, dict[str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """SGLang's word on every written config."""
    return judge(sglang, {name: plans[name] / "sglang.yaml" for name in contents})


@pytest.mark.parametrize("name", QUESTIONS)
def test_vllm_takes_it(name: str, plans: dict[str, Path], vllm_verdicts: dict[str, dict[str, Any]]) -> None:
    verdict = vllm_verdicts[name]
    assert verdict["stage"] == "ok", verdict["error"]
    plan = json.loads((plans[name] / "plan.json").read_text())
    assert verdict["max_num_seqs"] == plan["question"]["max_num_seqs"]
    assert verdict["max_num_batched_tokens"] == plan["question"]["max_num_batched_tokens"]
    assert verdict["tensor_parallel_size"] == plan["question"]["tp"]
    if plan["answer"]["k"] is not None:
        assert verdict["k"] == plan["answer"]["k"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_sglang_takes_it(name: str, sglang_verdicts: dict[str, dict[str, Any]]) -> None:
    verdict = sglang_verdicts[name]
    assert verdict["stage"] == "ok", verdict["error"]
