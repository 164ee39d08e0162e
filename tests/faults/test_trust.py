"""What a file of another may not do: run code, or lead out of the folder that it stands in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.workload import load_workload
from kplan.workload.build import write_workload
from kplan.workload.pairs import add_pairs
from tests.acceptance.made import flat_model
from tests.faults.seeds import SHIPPED, plan


@pytest.fixture
def trap(tmp_path: Path) -> tuple[str, Path]:
    """The text of a policy that leaves a mark when it is loaded, and the mark."""
    mark = tmp_path / "ran"
    code = tmp_path / "evil.py"
    code.write_text(
        f"open({str(mark)!r}, 'w').close()\nclass Evil:\n    def choose_k(self, step):\n        return 1\n",
        encoding="utf-8",
    )
    return f"{code}:Evil", mark


def test_the_trap_works(trap: tuple[str, Path]) -> None:
    text, mark = trap
    assert parse_policy(text).text == text
    assert mark.exists()


@pytest.mark.parametrize("command", ["export", "report", "verify"])
@pytest.mark.parametrize("place", ["answer", "policies"])
def test_a_plan_runs_no_code(
    command: str, place: str, trap: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, mark = trap
    record = json.loads(plan())
    if place == "answer":
        record["answer"] |= {"policy": text, "table": None, "k": None}
    else:
        record["policies"][0] |= {"name": text, "exportable": True}
        record["answer"] |= {"policy": "sglang-ema", "table": None, "k": None}  # vLLM looks for another
    file, out = tmp_path / "plan.json", tmp_path / "out"
    file.write_text(json.dumps(record), encoding="utf-8")
    where = [] if command == "verify" else ["--out", str(out)]
    address = ["--url", "http://127.0.0.1:9"] if command == "verify" else []
    code = run([command, str(file), *where, *address])
    assert not mark.exists()
    assert code in (0, 2)
    if command == "export" and place == "answer":
        assert "is code, which only --policy and --family may name" in capsys.readouterr().err


@pytest.mark.parametrize("module", [False, True])
def test_a_scenario_runs_no_code(
    module: bool, trap: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, mark = trap
    file = tmp_path / "s.yaml"
    file.write_text(
        yaml.safe_dump({"qps": 4, "policy": "antigravity:Evil" if module else text}), encoding="utf-8"
    )
    assert run(["simulate", str(file), "--requests", "2"]) == 2
    assert not mark.exists()
    assert "is code, which only --policy and --family may name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../x.json", "/etc/passwd", "a/../../x.json", "..", "", "a\\..\\x"])
def test_a_workload_names_files_beside_itself(name: str, tmp_path: Path) -> None:
    record = yaml.safe_load((SHIPPED / "workloads" / "mtbench.yaml").read_text(encoding="utf-8"))
    record["models"] = {"eagle3": name}
    file = tmp_path / "w.yaml"
    file.write_text(yaml.safe_dump(record), encoding="utf-8")
    with pytest.raises(InputError, match=r"models\.eagle3"):
        load_workload(file)


@pytest.mark.parametrize("bad", ["../x", "a/b", "..", "", "a\\b", "a\x00b"])
@pytest.mark.parametrize("of", ["name", "proposer"])
def test_names_out_of_a_file_are_no_paths(bad: str, of: str, tmp_path: Path) -> None:
    from dataclasses import replace

    workload, model = load_workload("mtbench"), flat_model([0.5])
    name, proposer = (bad, "eagle3") if of == "name" else ("mine", bad)
    (tmp_path / "in").mkdir()
    with pytest.raises(InputError, match="a file is named by it"):
        write_workload(replace(workload, name=name), {proposer: model}, tmp_path / "in")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in"]


def test_a_pair_is_written_beside_its_workload(tmp_path: Path) -> None:
    """A profile that calls itself ../x would have its pair written into the folder above."""
    from kplan.acceptance.joint_file import load_pair

    inside = tmp_path / "in"
    inside.mkdir()
    for one in (SHIPPED / "workloads").glob("gsm8k*"):
        (inside / one.name).write_bytes(one.read_bytes())
    file = inside / "gsm8k.yaml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("name: gsm8k", "name: ../x", 1), encoding="utf-8"
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="a file is named by it"):
        add_pairs(file, [load_pair(inside / "gsm8k-ngram+eagle3.json")])
    assert sorted(tmp_path.rglob("*")) == before


def test_an_error_holds_no_commands_to_a_terminal() -> None:
    told = str(InputError("x\x1b[2J", "v\x07", "b\x9b31m", "f\u202e\ud800"))
    assert told == r"x\x1b[2J: got 'v\x07', b\x9b31m; f\u202e\ud800"
    assert str(InputError("n", 10**5000, "is large")).startswith("n: got a value (int) that is too long")
