"""Models, GPUs, formats and drafters chosen on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import kplan_profiles
from kplan.cli.app import run
from tests.cli.test_commands import answer
from tests.profiles.test_hf_config import LLAMA, RELEASED, written

TINY = [
    "--requests",
    "40",
    "--replications",
    "1",
    "--max-k",
    "2",
    "--workload",
    "gsm8k",
    "--concurrency",
    "4",
]


def test_recommend_takes_a_config_any_gpu_and_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "mistral-7b", tmp_path / "out"
    folder.mkdir()
    path = written(folder, RELEASED["mistral-7b"][0])
    asked = ["--hardware", "l40s", "--quantization", "fp8", "--kv-cache-dtype", "fp8"]
    argv = ["recommend", "--model", str(path), *asked, "--proposer", "eagle3", *TINY]
    plan = answer(capsys, *argv, "--out", str(out))
    question = plan["question"]
    assert (question["model"], question["hardware"]) == (str(path), "l40s")
    assert (question["quantization"], question["kv_cache_dtype"]) == ("fp8", "fp8")
    told = "\n".join(plan["answer"]["why"])
    assert "l40s is not calibrated" in told
    assert "assumed to hold for mistral-7b" in told
    assumed = {row["name"]: row for row in plan["assumptions"]}
    assert "fp8, KV cache in fp8" in assumed["model mistral-7b"]["value"]
    assert assumed["drafter eagle3"]["kind"] == "assumed"
    steps = [row for name, row in assumed.items() if name.startswith("step time")]
    assert steps
    assert {row["kind"] for row in steps} == {"assumed"}
    # no head is known, so neither engine can be configured; the plan and its report are there
    assert {file.name for file in out.iterdir()} == {"plan.json", "report.html"}
    named = answer(capsys, *argv, "--drafter", "me/head", "--out", str(out))
    assert named["policies"] == plan["policies"]
    config = yaml.safe_load((out / "vllm.yaml").read_text())
    assert config["model"] == str(folder)
    assert config["quantization"] == config["kv-cache-dtype"] == "fp8"
    if "speculative-config" in config:
        assert config["speculative-config"]["model"] == "me/head"
    assert answer(capsys, "export", str(out / "plan.json"), "--out", str(tmp_path / "again"))["files"]


def test_fp8_weights_are_faster_and_leave_room(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--policy", "off", "--concurrency", "1", "--requests", "20", "--workload", "gsm8k"]
    bf16 = answer(capsys, *argv)["tpot_ms"]["mean"]
    fp8 = answer(capsys, *argv, "--quantization", "fp8")["tpot_ms"]["mean"]
    assert 0.45 < fp8 / bf16 < 0.85  # 8.03 GB instead of 15.0 GB are read a step, beside what stays
    assert run(["simulate", *argv[1:], "--model", "llama-3.1-70b", "--json"]) == 1
    capsys.readouterr()
    assert run(["simulate", *argv[1:], "--model", "llama-3.1-70b", "--quantization", "int4", "--json"]) == 0


def test_a_calibration_of_ones_own_takes_the_place_of_a_borrowed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(kplan_profiles.__file__).parent / "calibrations" / "h100-sxm.yaml"
    record = yaml.safe_load(shipped.read_text(encoding="utf-8")) | {"hardware": "h200"}
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump(record), encoding="utf-8")
    argv = ["simulate", "--hardware", "h200", "--policy", "off", *TINY]
    borrowed, own = answer(capsys, *argv), answer(capsys, *argv, "--calibration", str(mine))
    assert own["tpot_ms"] == borrowed["tpot_ms"], "the same figures"
    assert any("not calibrated" in note for note in borrowed["notes"])
    assert not any("not calibrated" in note for note in own["notes"])
    assert run([*argv, "--hardware", "l40s", "--calibration", str(mine)]) == 2
    assert "must be of l40s" in capsys.readouterr().err


def test_requests_beyond_the_context_of_the_model_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--model", "llama-3-70b", "--tp", "4", "--policy", "off", *TINY]
    fits = answer(capsys, *argv, "--prompt-tokens", "8000", "--output-tokens", "192")
    too_long = answer(capsys, *argv, "--prompt-tokens", "8000", "--output-tokens", "193")
    assert not any("tokens a request" in note for note in fits["notes"])
    told = "takes 8,192 tokens a request (the model's context): 100.0% of the requests end early."
    assert any(told in note for note in too_long["notes"])


def test_a_scenario_names_files_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "llama").mkdir()
    written(tmp_path / "llama", LLAMA)
    file = tmp_path / "s.yaml"
    file.write_text(
        "concurrency: 1\nrequests: 20\nworkload: gsm8k\npolicy: off\nmodel: llama/config.json\n"
        "quantization: bf16\nkv-cache-dtype: auto\n"
    )
    flags = ["--concurrency", "1", "--requests", "20", "--workload", "gsm8k", "--policy", "off"]
    by_file, by_flags = answer(capsys, "simulate", str(file)), answer(capsys, "simulate", *flags)
    assert by_file["tpot_ms"] == by_flags["tpot_ms"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--quantization", "fp16"], ["--quantization", "fp16", "bf16", "int4"]),
        (["--kv-cache-dtype", "int4"], ["--kv-cache-dtype", "int4", "fp8"]),
        (["--model", "lama-3.1-8b"], ["did you mean llama-3.1-8b"]),
        (["--model", "/no/such/config.json"], ["No such file"]),
        (["--hardware", "h100"], ["h100-sxm"]),
        (["--proposer", "mtp"], ["no multi-token-prediction layers"]),
        (["--proposer", "self-kv"], ["self-kv", "--traces"]),
        (["--proposer", "ngram", "--drafter", "a/b"], ["--drafter", "no weights"]),
    ],
)
def test_a_wrong_choice_is_one_line(
    argv: list[str], told: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["recommend", *TINY, *argv]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for text in told:
        assert text in message


def test_profiles_lists_every_kind_with_how_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    listed = answer(capsys, "profiles")
    hardware = {one["name"]: one for one in listed["hardware"]}
    assert "not calibrated" in hardware["mi300x"]["summary"]
    assert hardware["mi300x"]["kind"] == "published"
    drafters = {one["name"]: one for one in listed["drafters"]}
    assert drafters["eagle3"]["kind"] == "assumed"
    assert {"mtp", "eagle-tree", "pard-llama-3.2-1b", "self-kv"} <= set(drafters)
    assert answer(capsys, "profiles", "hardware") == {"hardware": listed["hardware"]}
    assert run(["profiles", "drafters"]) == 0
    assert "arXiv:2408.11049" in capsys.readouterr().out, "one kind is listed with its sources"
    assert run(["profiles", "hardwear"]) == 2
    assert "hardware, models" in capsys.readouterr().err


def test_a_tree_is_run_at_its_own_k_with_an_acceptance_that_is_assumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["simulate", "--engine", "sglang", "--proposer", "eagle3-tree", *TINY]
    done = answer(capsys, *argv, "--policy", "fixed:5")
    assert 1.0 < done["acceptance_length"] <= 4.0  # depth 3 and the bonus
    assert any("derived from the chain of eagle3" in note for note in done["notes"])
    assert not any("lower bound" in note for note in done["notes"])
    for policy in ("fixed:3", "goodput"):
        assert run([*argv, "--policy", policy]) == 2
        told = capsys.readouterr().err
        assert "verifies K = 5 at every step" in told
        assert len(told.splitlines()) == 1


def test_a_plan_with_a_tree_compares_its_k_with_off(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["recommend", "--engine", "sglang", "--proposer", "eagle3-tree", *TINY]
    plan = answer(capsys, *argv)
    assert [policy["name"] for policy in plan["policies"]] == ["off", "fixed:5"]
    assert [point["k"] for point in plan["k_curve"]] == [0, 5]
    assert plan["question"]["max_k"] == 5
    acceptance = next(row for row in plan["assumptions"] if row["name"] == "acceptance")
    assert acceptance["kind"] == "assumed"
    assert "0.682" in acceptance["source"]


def test_a_tree_is_derived_from_a_model_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = Path(kplan_profiles.__file__).parent / "workloads" / "gsm8k-eagle3.json"
    argv = ["traces", "tree", str(chain), "--proposer", "my-tree", "--out", str(tmp_path / "tree.json")]
    made = answer(capsys, *argv, "--tree", "4,2,7")
    assert (made["proposer"], made["tree"]) == ("my-tree", {"depth": 4, "topk": 2, "verified": 7})
    assert (tmp_path / "tree.json").is_file()
    (tmp_path / "tree.json").unlink()
    for tree, told in (("3,2", "DEPTH,TOPK,NODES"), ("3,2,0", "at least 1"), ("3,2,11", "drafts 10")):
        assert run([*argv, "--tree", tree]) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "tree.json").exists()
