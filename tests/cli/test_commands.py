"""Every command as a user runs it: contracts, exit codes, one line on bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run

SMALL = ["--requests", "120", "--replications", "2", "--max-k", "4"]


def answer(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    assert run([*argv, "--json"]) == code, capsys.readouterr().err
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert isinstance(record, dict)
    return record


POLICY_KEYS = {
    "name", "exportable", "tpot_ms", "ttft_ms", "output_tok_s", "goodput_qps", "speedup_vs_off", "mean_batch",
    "mean_k", "acceptance_length", "saturated",
}  # fmt: skip


def test_recommend_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    plan = answer(capsys, "recommend", "--qps", "64", *SMALL)
    assert set(plan) >= {"question", "answer", "policies"}
    assert set(plan["answer"]) >= {"policy", "k", "table", "replicas", "saturated", "words", "max_qps"}
    names = [policy["name"] for policy in plan["policies"]]
    assert {"off", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "sglang-ema", "goodput", "oracle"} <= set(
        names
    )
    for policy in plan["policies"]:
        assert set(policy) >= POLICY_KEYS
        if not policy["saturated"]:
            assert set(policy["tpot_ms"]) == {"mean", "p50", "p99", "ci95"}
    exportable = {p["name"]: p["exportable"] for p in plan["policies"]}
    assert not exportable["oracle"]
    assert exportable[plan["answer"]["policy"]]


def test_a_policy_that_was_asked_for_is_planned_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    policy = "table:1-4=4,5-=1"
    plan = answer(capsys, "recommend", "--concurrency", "8", "--policy", policy, *SMALL)
    assert plan["answer"]["policy"] == policy
    assert plan["answer"]["table"] == [{"start": 1, "end": 4, "k": 4}, {"start": 5, "end": None, "k": 1}]
    assert f"{policy} was asked for with --policy." in plan["answer"]["why"]
    free = answer(capsys, "recommend", "--concurrency", "8", *SMALL)
    alike = {one["name"]: one["tpot_ms"] for one in free["policies"]}
    assert {one["name"]: one["tpot_ms"] for one in plan["policies"] if one["name"] in alike} == alike


def test_the_recommended_policy_is_the_fastest_that_can_run_or_ties_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = answer(
        capsys, "recommend", "--concurrency", "8", "--proposer", "eagle", "--workload", "gsm8k", *SMALL
    )
    can_run = [p for p in plan["policies"] if p["exportable"]]
    chosen = next(p for p in can_run if p["name"] == plan["answer"]["policy"])
    fastest = min(p["tpot_ms"]["mean"] for p in can_run)
    assert chosen["tpot_ms"]["mean"] <= fastest * 1.05
    oracle = next(p for p in plan["policies"] if p["name"] == "oracle")
    assert oracle["tpot_ms"]["mean"] <= fastest


def test_simulate_gives_the_same_bytes_twice_but_for_the_wall_clock(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["simulate", "--qps", "9", "--requests", "100", "--workload", "gsm8k", "--policy", "goodput"]
    one, two = answer(capsys, *argv), answer(capsys, *argv)
    assert one.pop("wall_s") > 0
    two.pop("wall_s")
    assert json.dumps(one) == json.dumps(two)
    assert {"requests", "steps", "output_tokens"} <= set(one)
    assert one["requests"] == 100


def test_a_policy_gets_the_k_it_names_and_says_where_acceptance_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["simulate", "--concurrency", "1", "--requests", "20", "--workload", "gsm8k", "--policy"]
    assert answer(capsys, *argv, "fixed:9")["mean_k"] == 9
    beyond = answer(capsys, *argv, "table:1-8=25,9-=1")
    assert beyond["mean_k"] == 25
    assert any("K = 20" in note and "lower bound" in note for note in beyond["notes"])
    assert not answer(capsys, *argv, "fixed:3")["notes"]


def test_seeds_differ(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (
        answer(capsys, "simulate", "--qps", "9", "--requests", "100", "--workload", "gsm8k", "--seed", seed)
        for seed in ("1", "2")
    )
    assert one["tpot_ms"] != two["tpot_ms"]


@pytest.mark.parametrize(
    ("concurrency", "low", "high"),
    [(1, 1.4, 1.8), (128, 0.80, 1.08)],  # published: 6.3 / 3.98 = 1.58 and 10.15 / 11.19 = 0.91 (PR #32374)
)
def test_the_crossover_comes_out_of_the_model(
    capsys: pytest.CaptureFixture[str], concurrency: int, low: float, high: float
) -> None:
    tpot = {}
    for policy in ("off", "fixed:3"):
        record = answer(
            capsys, "simulate", "--concurrency", str(concurrency), "--policy", policy,
            "--proposer", "eagle", "--workload", "mtbench",
        )  # fmt: skip
        tpot[policy] = record["tpot_ms"]["mean"]
    assert low <= tpot["off"] / tpot["fixed:3"] <= high


def test_recorded_traces_answer_too(capsys: pytest.CaptureFixture[str], shared_dir: Path) -> None:
    traces = shared_dir / "data/specdecode_bench/combined_gsm8k.jsonl"
    plan = answer(capsys, "recommend", "--qps", "64", "--traces", str(traces), "--proposer", "eagle3", *SMALL)
    assert plan["question"]["traces"] == "combined_gsm8k.jsonl"
    assert any("recorded requests" in row["value"] for row in plan["assumptions"])


def test_a_load_beyond_one_replica_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    load = [
        "--qps",
        "600",
        "--requests",
        "1500",
        "--replications",
        "1",
        "--max-k",
        "2",
        "--workload",
        "gsm8k",
    ]
    sized = answer(capsys, "recommend", *load)
    assert sized["answer"]["replicas"] > 1
    assert not sized["answer"]["saturated"]
    assert "exceeds what one replica sustains" in sized["answer"]["words"]
    alone = answer(capsys, "recommend", *load, "--replicas", "1", code=1)
    assert alone["answer"]["saturated"]
    assert all(p["tpot_ms"] is None for p in alone["policies"] if p["saturated"]), (
        "no mean over a growing queue"
    )
    assert alone["answer"]["max_qps"] < 600


def test_an_slo_that_nothing_meets_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", "--qps", "4", "--slo-tpot-ms", "0.5", *SMALL]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert "TPOT <= 0.5 ms" in captured.err


def test_out_and_export_write_the_same_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "plan", tmp_path / "again"
    assert run(["recommend", "--qps", "64", *SMALL, "--out", str(first)]) == 0
    assert run(["export", str(first / "plan.json"), "--out", str(second)]) == 0
    capsys.readouterr()
    names = sorted(path.name for path in first.iterdir())
    assert {"plan.json", "vllm.yaml", "sglang.yaml", "report.html"} <= set(names)
    assert names == sorted(path.name for path in second.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["recommend", "--qps", "64", "--model", "lama-3.1-8b"], ["lama-3.1-8b", "llama-3.1-8b"]),
        (["recommend", "--qps", "64", "--hardware", "h200x"], ["h200x", "h100-sxm"]),
        (["recommend", "--qps", "64", "--workload", "nope"], ["nope", "sharegpt"]),
        (["recommend", "--qps", "64", "--proposer", "eagle9"], ["eagle9", "eagle3"]),
        (["recommend", "--qps", "64", "--engine", "tgi"], ["tgi", "vllm"]),
        (["recommend", "--qps", "-3"], ["--qps", "-3"]),
        (["recommend", "--qps", "many"], ["--qps", "many"]),
        (["recommend"], ["qps", "concurrency"]),
        (["recommend", "--qps", "1", "--replicas", "some"], ["--replicas", "some", "auto"]),
        (["simulate", "--qps", "4", "--policy", "fixed:-1"], ["fixed:-1", "0"]),
        (["simulate", "--qps", "4", "--policy", "table:1-8=3,4-=1"], ["overlap", "4"]),
        (["simulate", "--qps", "4", "--policy", "fixd:3"], ["fixd", "fixed"]),
        (["simulate", "--qps", "4", "--proposer", "ngram", "--workload", "mtbench"], ["ngram", "mtbench"]),
        (["simulate", "nowhere.yaml"], ["nowhere.yaml"]),
        (["simulate", "--qps", "4", "--traces", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["simulate", "--qps", "4", "--prompt-tokens", "9000000"], ["9000000", "context of 131072"]),
        (
            ["simulate", "--qps", "4", "--prompt-tokens", "120000", "--gpu-memory-utilization", "0.3"],
            ["KV cache", "--tp", "--max-model-len"],
        ),
        (["export", "nowhere.json"], ["nowhere.json"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    argv: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    for part in named:
        assert part in lines[0]


def test_a_truncated_trace_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cut.jsonl"
    whole = {"id": "1", "prompt_token_ids": [1, 2, 3], "generated_token_ids": [4, 5, 6],
             "acc_eagle": {"20": [1, 2, 1]}, "acc_ngram": {"20": [1, 1, 1]}}  # fmt: skip
    file.write_text(json.dumps(whole) + "\n" + json.dumps(whole)[:60])
    assert run(["recommend", "--qps", "4", "--traces", str(file), "--proposer", "eagle"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "cut.jsonl" in lines[0]
    assert "2" in lines[0], "the line of the file"


def test_weights_that_do_not_fit_are_a_no_and_name_the_tp(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recommend", "--qps", "1", "--model", "llama-3-70b", "--proposer", "eagle"]) == 1
    line = capsys.readouterr().err.strip()
    assert "\n" not in line
    assert "--tp" in line


@pytest.mark.parametrize("command", ["profiles", "policies"])
def test_listings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, command)
    names = [row["name"] for listed in record.values() for row in listed]
    assert ("llama-3.1-8b" in names) == (command == "profiles")
    assert ("sglang-ema" in names) == (command == "policies")
    assert run([command]) == 0
    assert "error" not in capsys.readouterr().err


BAD_POLICIES = """
class Raises:
    def choose_k(self, step):
        raise ValueError("boom")

class Exits:
    def choose_k(self, step):
        raise SystemExit(0)

class Negative:
    def choose_k(self, step):
        return -1

class Fraction:
    def choose_k(self, step):
        return 2.5

class Truth:
    def choose_k(self, step):
        return True

class Nothing:
    def choose_k(self, step):
        return None

class Misshapen:
    def choose_k(self, step):
        return step.position[:0]

class Deaf:
    def choose_k(self, step):
        return 1
    def observe(self, outcome):
        return outcome.nonsense

class Talks:
    def choose_k(self, step):
        print("hello", step.batch)
        return 1
"""


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("Raises", ["choose_k at batch", "ValueError: boom"]),
        ("Exits", ["choose_k at batch", "SystemExit"]),
        ("Negative", ["-1", "0 or more"]),
        ("Fraction", ["2.5", "int"]),
        ("Truth", ["True", "int"]),
        ("Nothing", ["None", "int"]),
        ("Misshapen", ["shape", "int"]),
        ("Deaf", ["observe", "nonsense"]),
    ],
)
def test_a_faulty_policy_is_told_in_one_line(
    name: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BAD_POLICIES)
    assert run(["simulate", "--concurrency", "2", "--requests", "8", "--policy", f"{file}:{name}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    for part in [name, *named]:
        assert part in captured.err


def test_stdout_is_the_answer_s_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BAD_POLICIES)
    record = answer(capsys, "simulate", "--concurrency", "2", "--requests", "8", "--policy", f"{file}:Talks")
    assert record["mean_k"] == 1


def test_simulate_gives_an_interval_unless_the_requests_are_counted_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["simulate", "--concurrency", "2", "--workload", "gsm8k"]
    free, counted = answer(capsys, *argv), answer(capsys, *argv, "--requests", "30")
    low, high = free["tpot_ms"]["ci95"]
    assert low < free["tpot_ms"]["mean"] < high
    assert counted["requests"] == 30
    assert counted["tpot_ms"]["ci95"] is None
    assert counted["speedup_ci95"] is None


def test_an_honest_no_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, "recommend", "--qps", "4", "--slo-tpot-ms", "0.5", *SMALL, code=1)
    assert record["feasible"] is False
    assert "TPOT <= 0.5 ms" in record["words"]


def test_an_slo_that_more_replicas_meet_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    """90% within 4.6 ms holds at low batch alone: the load is spread until it does."""
    plan = answer(
        capsys, "recommend", "--qps", "40", "--workload", "gsm8k", "--slo-tpot-ms", "4.6",
        "--replications", "1", "--max-k", "3",
    )  # fmt: skip
    assert plan["answer"]["replicas"] > 1
    chosen = next(p for p in plan["policies"] if p["name"] == plan["answer"]["policy"])
    assert chosen["goodput_qps"] >= 0.88 * 40
    assert chosen["tpot_ms"]["ci95"] is None, "one replication has no interval"


def test_simulate_says_no_when_the_slo_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--concurrency", "2", "--requests", "20", "--workload", "gsm8k", "--slo-tpot-ms"]
    assert not answer(capsys, *argv, "0.1", code=1)["meets_slo"]
    assert answer(capsys, *argv, "100")["meets_slo"]


def test_what_shapes_the_result_shapes_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["recommend", "--concurrency", "2", "--requests", "10", "--replications", "1", "--max-k", "1"]
    more = [[], ["--prompt-tokens", "50"], ["--output-tokens", "50"], ["--gpu-memory-utilization", "0.5"]]
    hashes = {answer(capsys, *argv, *extra)["scenario_hash"] for extra in more}
    assert len(hashes) == 4


def test_a_policy_is_marked_for_the_engine_and_the_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang adapts EAGLE heads alone, and has no batch table."""
    argv = ["recommend", "--concurrency", "4", "--engine", "sglang", "--workload", "gsm8k", *SMALL]
    for proposer, adapts in (("eagle3", True), ("ngram", False)):
        plan = answer(capsys, *argv, "--proposer", proposer)
        marks = {p["name"].partition(":")[0]: p["exportable"] for p in plan["policies"]}
        assert marks["sglang-ema"] is adapts
        assert not marks.get("table", False)


@pytest.mark.parametrize(
    "argv",
    [["--concurrency", "2", "--replicas", "4"], ["--qps", "64", "--replicas", "64", "--requests", "10"]],
)
@pytest.mark.parametrize("command", ["simulate", "recommend"])
def test_more_replicas_than_work_is_refused(
    command: str, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, *argv]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_an_interrupt_is_told_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the simulation runs, records half-written."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kplan.search.single.compare", stopped)
    assert run(["simulate", "--qps", "1", *SMALL, "--records", str(tmp_path / "records")]) == 130
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "interrupted\n")
    assert not list(tmp_path.iterdir())
