"""`kplan export --check` says of 45 vLLM files and 75 SGLang command lines what the released code said."""

from __future__ import annotations

import ast
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kplan.export.check import Case
from tests.live.install import Engine
from tests.live.verdicts import judge, judge_cases
from tests.live.walk import Pair

pytestmark = pytest.mark.shared


def recorded_stage(line: str) -> str:
    """The stage that one line of the recording of vLLM stands for."""
    _, _, said = line.partition(" -> ")
    if said.startswith("PARSER"):
        return "parser"
    if said.startswith("CONFIG"):
        return "config"
    return "start" if "ENGINE-START WOULD RAISE" in said else "ok"


def recorded_lookup(line: str) -> list[int] | None:
    """K at batch sizes 1..32 in that line; None without a table."""
    found = re.search(r"lookup=\[(.*?)\]", line)
    return None if found is None else [int(k) for k in found[1].split(", ")]


@pytest.fixture(scope="module")
def vllm_said(shared_dir: Path) -> dict[str, str]:
    """File name -> line of the recording."""
    text = (shared_dir / "engines" / "vllm_cpu" / "yaml" / "VERDICTS.txt").read_text(encoding="utf-8")
    return {line.partition(" -> ")[0]: line for line in text.splitlines() if " -> " in line}


@pytest.fixture(scope="module")
def vllm_says(
    vllm: Engine,
    pair: Pair,
    shared_dir: Path,
    vllm_said: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Any]]:
    """vLLM's word on every file of the recording, with folders of this machine for its placeholders."""
    folder = tmp_path_factory.mktemp("yaml")
    files = {}
    for name in vllm_said:
        text = (shared_dir / "engines" / "vllm_cpu" / "yaml" / name).read_text(encoding="utf-8")
        for placeholder, model in (("MODEL_DIR", "target"), ("DRAFT_DIR", "draft")):
            text = text.replace(placeholder, str(pair.folder / model))
        files[name] = folder / name
        files[name].write_text(text, encoding="utf-8")
    return judge(vllm, files)


def test_vllm_refuses_at_the_recorded_stage(
    vllm_said: dict[str, str], vllm_says: dict[str, dict[str, Any]]
) -> None:
    assert len(vllm_said) == 45
    recorded = {name: recorded_stage(line) for name, line in vllm_said.items()}
    assert {name: verdict["stage"] for name, verdict in vllm_says.items()} == recorded
    assert all(
        bool(verdict["error"]) == (verdict["stage"] != "ok") and "\n" not in verdict["error"]
        for verdict in vllm_says.values()
    )


def test_vllm_runs_the_recorded_k(vllm_said: dict[str, str], vllm_says: dict[str, dict[str, Any]]) -> None:
    tables = {name: ks for name, line in vllm_said.items() if (ks := recorded_lookup(line)) is not None}
    assert len(tables) >= 10
    assert {name: vllm_says[name]["k_by_batch"][1:33] for name in tables} == tables


@pytest.fixture(scope="module")
def sglang_said(shared_dir: Path) -> dict[str, str]:
    """Case name -> line of the recording of SGLang."""
    lines = (shared_dir / "engines" / "sglang_cpu" / "VERDICTS.txt").read_text(encoding="utf-8").splitlines()
    return {
        line.removeprefix("## ").strip(): said.strip()
        for line, said in pairwise(lines)
        if line.startswith("## ")
    }


def arguments_of(script: Path, model: Path) -> dict[str, list[str]]:
    """Case name -> argv, as the script that was recorded has them; nothing of it is run."""
    known: dict[str, Any] = {}

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return known[node.id]
        if isinstance(node, ast.BinOp):
            return value(node.left) + value(node.right)
        if isinstance(node, ast.Dict):
            return {value(key): value(each) for key, each in zip(node.keys, node.values, strict=True) if key}
        return ast.literal_eval(node)

    cases: dict[str, list[str]] = {}
    for statement in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in ("B", "D"):
                known[name] = value(statement.value)
            elif name == "cases":
                cases |= value(statement.value)
        elif isinstance(statement, ast.Expr) and "cases.update" in ast.unparse(statement):
            assert isinstance(statement.value, ast.Call)
            cases |= value(statement.value.args[0])
    return {name: [word.replace("MODEL_DIR", str(model)) for word in argv] for name, argv in cases.items()}


@pytest.fixture(scope="module")
def sglang_says(
    sglang: Engine, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """SGLang's word on every recorded case, in a folder that holds its YAML and JSON inputs."""
    folder, source = tmp_path_factory.mktemp("sglang"), shared_dir / "engines" / "sglang_cpu"
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text((source / "model_config.json").read_text(encoding="utf-8"))
    for file in (*source.glob("*.yaml"), *source.glob("adp_*.json")):
        (folder / file.name).write_text(
            file.read_text(encoding="utf-8").replace("MODEL_DIR", str(model)), encoding="utf-8"
        )
    cases = arguments_of(source / "cases.py", model)
    return judge_cases(sglang, [Case(name, tuple(argv), folder) for name, argv in cases.items()])


def recorded_gate(said: str) -> str:
    """The stage that a line of the recording of SGLang stands for."""
    if said.startswith("ARGPARSE"):
        return "parser"
    if said.startswith("REFUSED"):
        return "refused"
    return "ok" if "check:OK" in said else "start"


def test_sglang_refuses_at_the_recorded_stage(
    sglang_said: dict[str, str], sglang_says: dict[str, dict[str, Any]]
) -> None:
    """The recording does not tell its first two gates apart where an exception was raised."""
    assert len(sglang_said) >= 57
    assert set(sglang_said) == set(sglang_says)
    for name, said in sglang_said.items():
        verdict, gate = sglang_says[name], recorded_gate(said)
        assert verdict["stage"] in (("parser", "config") if gate == "refused" else (gate,)), (name, verdict)
        if gate == "refused":
            kind = re.match(r"REFUSED (\w+):", said)
            assert kind is not None
            assert verdict["error"].startswith(kind[1]), (name, verdict)


def test_sglang_runs_the_recorded_parameters(
    sglang_said: dict[str, str], sglang_says: dict[str, dict[str, Any]]
) -> None:
    shown = (
        *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
        *("speculative_num_draft_tokens", "speculative_adaptive", "max_running_requests"),
    )
    accepted = {name: said for name, said in sglang_said.items() if recorded_gate(said) == "ok"}
    assert len(accepted) >= 25
    for name, said in accepted.items():
        recorded = json.loads(
            re.search(r"OK (\[.*?\])", said)[1]  # type: ignore[index]  # every accepted line has it
            .replace("'", '"').replace("None", "null").replace("True", "true").replace("False", "false")
        )  # fmt: skip
        assert [sglang_says[name][key] for key in shown] == recorded[: len(shown)], name
