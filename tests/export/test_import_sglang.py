"""An SGLang config reads as SGLang runs it: against the recording of 75 cases, and back from the export."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given

from kplan.config.plan import Plan
from kplan.export import CurrentConfig, Severity, export_sglang, source_of_command, source_of_file
from kplan.export.ladder import problems
from kplan.profiles import Tree
from kplan.registry import parse_policy
from tests.export.rules import padded, planned_k
from tests.export.sample import DRAFTERS, MODEL, answered, table_plans
from tests.export.test_import_vllm import ks, said

START = "python -m sglang.launch_server --model-path meta-llama/x --speculative-draft-model-path d/e "

# What only the list of all options, a GPU, or the files of a model can tell.
OUT_OF_REACH = {
    *("static topk1 dt8", "yaml bool false", "yaml bad", "yaml --config=", "yaml json ext", "uno"),
    *(
        "dflash conflict",
        "rejection+thresh",
        "rejection topk4",
        "X topk4 trtllm_mha",
        "X adaptive trtllm_mha",
    ),
    *("X sink no window", "X blockverif auto-params", "X bad attn mode", "X bad match", "X corpus nobudget"),
    *("adaptive tbo", "yaml underscore"),
}


def recorded_cases(script: Path) -> dict[str, list[str]]:
    """Case name -> argv out of the text of the recorded script, in which B and D stand for two lists."""
    base = ["--model-path", "MODEL_DIR", "--device", "cuda"]
    draft = ["--speculative-draft-model-path", "MODEL_DIR"]
    cases = {}
    for name, sums, listed in re.findall(
        r'^"([^"]+)":((?:[BD]\+)*)(\[.*\]),?$', script.read_text(), re.MULTILINE
    ):
        argv = (base if "B" in sums else []) + (draft if "D" in sums else [])
        cases[name] = argv + list(ast.literal_eval(listed))
    return cases


def test_what_sglang_refused_is_found_and_what_it_ran_reads_the_same(
    shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shared_dir / "engines" / "sglang_cpu"
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text((source / "model_config.json").read_text())
    for file in (*source.glob("*.yaml"), *source.glob("adp_*.json")):
        (tmp_path / file.name).write_text(file.read_text().replace("MODEL_DIR", str(model)))
    monkeypatch.chdir(tmp_path)
    lines = (source / "VERDICTS.txt").read_text().splitlines()
    verdicts = {line[3:].strip(): lines[i + 1].strip() for i, line in enumerate(lines) if line[:3] == "## "}
    cases = recorded_cases(source / "cases.py")
    assert set(verdicts) == set(cases)
    judged = 0
    for name, argv in cases.items():
        if name in OUT_OF_REACH:
            continue
        words = [word.replace("MODEL_DIR", str(model)) for word in argv]
        config = source_of_command(f"sglang serve {shlex.join(words)}", None).read()
        verdict = verdicts[name]
        accepted = verdict.startswith("OK") and "check:OK" in verdict
        refused = said(config, Severity.REFUSED)
        assert (not refused) == accepted, (name, verdict, refused)
        if accepted and "EAGLE" in verdict and name not in ("static steps-1", "adaptive junk keys"):
            check_counts(config, verdict)
        judged += 1
    assert judged >= 55


def check_counts(config: CurrentConfig, verdict: str) -> None:
    """Steps, topk and draft tokens of the recording are the policy's."""
    _, steps, topk, tokens, adaptive, *_ = ast.literal_eval(verdict[3 : verdict.index("]") + 1])
    if adaptive:
        policy = parse_policy(config.policy).build()
        assert getattr(policy, "initial_k", None) == steps or config.policy == f"fixed:{steps}"
    elif topk == 1:
        assert config.policy == (f"fixed:{steps}" if steps > 0 else "off")
    elif tokens is not None:
        assert config.tree == Tree(depth=steps, topk=topk, verified=tokens - 1)


@pytest.mark.parametrize(
    ("options", "severity", "says"),
    [
        ("--speculative-algorithm EAGLE", Severity.CHANGED, "takes 5 steps, topk 4 and 8 draft tokens"),
        ("--speculative-algorithm STANDALONE", Severity.CHANGED, "takes 3 steps, topk 1 and 4 draft tokens"),
        ("--speculative-algorithm EAGLE", Severity.CHANGED, "max-running-requests is not set"),
        ("--speculative-algorithm MTP", Severity.REFUSED, "unknown"),
        ("--speculative-num-steps 3", Severity.IGNORED, "nothing is drafted"),
        ("--speculative-algorithm EAGLE --speculative-num-steps 3", Severity.REFUSED, "TypeError"),
        ("--speculative-algorithm EAGLE --speculative-eagle-topk 1", Severity.REFUSED, "AssertionError"),
        (
            "--speculative-algorithm STANDALONE --speculative-adaptive",
            Severity.IGNORED,
            "switches itself off",
        ),
        (
            "--speculative-algorithm EAGLE --speculative-adaptive --enable-lora",
            Severity.REFUSED,
            "LoRA does not go with",
        ),
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 2 "
            "--speculative-num-draft-tokens 1000",
            Severity.WARNING,
            "no check says so",
        ),
        (
            "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 8",
            Severity.CHANGED,
            "becomes 4",
        ),
        ("--cuda-graph-max-bs 8", Severity.REFUSED, "ambiguous"),
    ],
)
def test_what_sglang_does_in_silence_is_said(options: str, severity: Severity, says: str) -> None:
    config = source_of_command(START.replace("x ", "Llama-3 ") + options, None).read()
    assert any(says in text for text in said(config, severity)), config.findings


@pytest.mark.parametrize(
    ("ladder", "refused", "says"),
    [
        ([1], True, "must be an object"),
        ({"candidate_steps": [1, 3]}, True, "no batch-size key"),
        ({"1": {"up_hysteresis": 0.0}}, True, "candidate_steps"),
        ({"1": {"candidate_steps": [-1, 3]}}, True, "candidate_steps"),
        ({"1": {"candidate_steps": [True]}}, True, "candidate_steps"),
        ({"1": {"candidate_steps": [10**30]}}, True, "no server"),
        ({"1": {"candidate_steps": [3, 1]}}, False, "do not ascend"),
        ({"1": {"candidate_steps": [1], "ema_alpha": 5}}, False, "outside 0.001..1"),
        ({"1": {"candidate_steps": [1]}, "comment": "x"}, False, "ignores it"),
        ({"1": {"candidate_steps": [1]}, "01": {"candidate_steps": [2]}}, False, "same number"),
    ],
)
def test_ladders_are_checked_where_sglang_does_not(ladder: object, refused: bool, says: str) -> None:
    found = problems(ladder)
    assert any(one.refused == refused and says in one.text for one in found), found


def test_a_table_runs_padded_to_captured_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps({"1": {"candidate_steps": [5]}, "37": {"candidate_steps": [1]}})
    )
    file = tmp_path / "sglang.yaml"
    file.write_text(
        "model-path: m\nspeculative-algorithm: EAGLE3\nspeculative-draft-model-path: d\n"
        "speculative-adaptive: true\nspeculative-adaptive-config: a.json\n"
    )
    config = source_of_file(file, None).read()
    assert config.policy == "table:1-32=5,33-=1"
    assert any("table:1-36=5,37-=1 runs as" in text for text in said(config, Severity.CHANGED))


@given(plan=table_plans())
def test_what_is_exported_reads_back_the_same(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    table, seats = plan.answer.table, plan.question.max_num_seqs
    assert table is not None
    export = export_sglang(plan, MODEL, DRAFTERS["eagle3"])
    folder = tmp_path_factory.mktemp("back")
    for name, text in export.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    config = source_of_file(folder / "sglang.yaml", None).read()
    assert config.engine == "sglang"
    assert config.runs, config.findings
    wanted = [planned_k(table, min(padded(batch), seats)) for batch in range(1, seats + 1)]
    assert ks(config.policy, seats) == wanted
    assert config.settings["max_num_seqs"] == seats
    assert config.settings.get("tp", 1) == plan.question.tp
    if any(planned_k(table, batch) for batch in range(1, seats + 1)):
        assert (config.proposer, config.drafter) == ("eagle3", DRAFTERS["eagle3"].hf_id)


@pytest.mark.parametrize(
    ("policy", "proposer", "back"),
    [("fixed:3", "eagle", "fixed:3"), ("fixed:4", "ngram", "fixed:4"), ("fixed:2", "draft-model", "fixed:2")],
)
def test_a_fixed_k_reads_back(policy: str, proposer: str, back: str) -> None:
    plan = answered(policy, k=int(policy[-1]), proposer=proposer, engine="sglang", async_scheduling=False)
    config = source_of_command(export_sglang(plan, MODEL, DRAFTERS[proposer]).command_line, None).read()
    assert (config.policy, config.proposer) == (back, proposer)
    assert config.settings["async_scheduling"] is False


def test_the_shipped_ladder_reads_back(tmp_path: Path) -> None:
    export = export_sglang(answered("sglang-ema"), MODEL, DRAFTERS["eagle3"])
    for name, text in export.files.items():
        (tmp_path / name).write_text(text)
    config = source_of_file(tmp_path / "sglang.yaml", None).read()
    assert config.policy.startswith("sglang-ema:ladder=")
    ours, back = parse_policy("sglang-ema").build(), parse_policy(config.policy).build()
    assert getattr(back, "config")() == getattr(ours, "config")()  # noqa: B009 - of this policy alone
