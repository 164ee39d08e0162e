"""`kplan export --check` and `kplan import-config --check` with the python of a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.export import plan_json
from tests.export.sample import TABLE, TABLE_TEXT, answered
from tests.live.install import Engine


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    """A plan that answers with a table, by the names of models that this machine does not have."""
    file = tmp_path / "plan.json"
    file.write_text(plan_json(answered(TABLE_TEXT, table=TABLE)))
    return str(file)


def test_vllm_accepts_what_is_exported(
    vllm: Engine, plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", plan_file, "--out", str(out), "--check", str(vllm.python), "--json"]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)["check"]
    assert (record["engine"], record["stage"]) == ("vllm", "ok")
    assert "meta-llama/Llama-3.1-8B-Instruct" in record["stood_in"]
    assert "WARNING" not in captured.err
    overlapping = (out / "vllm.yaml").read_text().replace("[17, 64, 3]", "[16, 64, 3]")
    (out / "vllm.yaml").write_text(overlapping)
    assert run(["import-config", str(out / "vllm.yaml"), "--check", str(vllm.python), "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["check"]["stage"] == "start"
    assert any("overlap at batch 16" in one["text"] for one in record["findings"])


def test_sglang_accepts_what_is_exported(
    sglang: Engine, plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", plan_file, "--out", str(out), "--check", str(sglang.python)]) == 0
    assert f"SGLang {sglang.version} accepts {out / 'sglang.yaml'}" in capsys.readouterr().out
