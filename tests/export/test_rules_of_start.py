"""What would keep a server from starting as planned is refused or said, and every start has its command."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml
from hypothesis import given

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export import EngineExport, export_sglang, export_vllm, release_of
from kplan.export.choose import Ladder, Rule, choose
from tests.export.rules import vllm_k
from tests.export.sample import (
    DRAFTERS,
    MODEL,
    FakeModel,
    answered,
    drafter,
    make_plan,
    result,
    table_plans,
)

BY_CONTEXT = "context-table:1-32x0-2047=3,1-32x2048-=5,33-x0-=1"


def vllm(plan: Plan, proposer: str = "eagle3") -> EngineExport:
    return export_vllm(plan, MODEL, DRAFTERS[proposer])


@pytest.mark.parametrize(
    ("budget", "seats", "proposer", "needed"),
    [(255, 256, "eagle3", 256), (1, 1, "draft-model", 2), (3, 1, "pard", 4)],
)
def test_a_budget_that_vllm_does_not_start_with(budget: int, seats: int, proposer: str, needed: int) -> None:
    proposes = DRAFTERS.get(proposer) or drafter(proposer, "some/drafter", "draft_model", "")
    asked = answered("fixed:3", k=3, max_num_seqs=seats, max_num_batched_tokens=budget)
    with pytest.raises(InputError, match=f"must be at least {needed} "):
        export_vllm(asked, MODEL, proposes)
    enough = answered("fixed:3", k=3, max_num_seqs=seats, max_num_batched_tokens=needed)
    assert export_vllm(enough, MODEL, proposes).files


def test_a_context_above_the_models_is_refused_for_both() -> None:
    plan = answered("off", k=0, max_model_len=8193)
    for export in (export_vllm, export_sglang):
        with pytest.raises(InputError, match="has a context of 8192 tokens"):
            export(plan, FakeModel(max_context=8192), None)


def test_batches_without_a_captured_graph_are_named() -> None:
    """512 tokens a step: 102 requests at K = 4, 128 at 3, 256 at 1."""
    notes = vllm(make_plan()).notes
    assert not any("CUDA graphs are captured up to" in note for note in notes)
    (note,) = [note for note in vllm(answered("fixed:4", k=4)).notes if "captured up to" in note]
    assert "batches 103..256 (K = 4) run without one" in note
    eager = vllm(answered("fixed:4", k=4, enforce_eager=True)).notes
    assert not any("captured up to" in note for note in eager)


def test_the_memory_of_a_ladder_and_the_tax_of_a_table_are_said() -> None:
    sglang = export_sglang(make_plan(), MODEL, DRAFTERS["eagle3"]).notes
    assert any("a set of CUDA graphs" in note and "5 tokens a request" in note for note in sglang)
    fixed = export_sglang(answered("fixed:3", k=3), MODEL, DRAFTERS["eagle3"]).notes
    assert not any("a set of CUDA graphs" in note for note in fixed)
    assert any("piecewise" in note for note in vllm(make_plan()).notes)


def test_a_ladder_that_sglang_would_take_on_trust_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Rule("mine", Ladder({"1": {"candidate_steps": [1, 3], "ema_alpha": 5}}, 1))
    plan = answered("sglang-ema")
    chosen = choose(plan, lambda rule: "")
    monkeypatch.setattr(
        "kplan.export.sglang.choose", lambda *_: type(chosen)(bad, chosen.result, chosen.replaced)
    )
    with pytest.raises(InputError, match="ema_alpha 5"):
        export_sglang(plan, MODEL, DRAFTERS["eagle3"])


def test_a_policy_over_the_context_is_written_at_the_loads_mean() -> None:
    plan = answered(BY_CONTEXT)
    seen = result(BY_CONTEXT, 10.9, exportable=False, mean_context=3000.0)
    plan = plan.model_copy(update={"policies": (*plan.policies, seen)})
    export = vllm(plan)
    assert vllm_k(export.files["vllm.yaml"]) == [5] * 32 + [1] * 224
    assert any("mean context of 3,000 tokens" in note for note in export.notes)
    assert export.proposal == ((1, 32, 0, 2047, 3), (1, 32, 2048, None, 5), (33, None, 0, None, 1))
    comments = [line for line in export.files["vllm.yaml"].splitlines() if "#48944" in line]
    assert len(comments) == 1
    assert comments[0].startswith("# ")
    assert "[33, null, 0, null, 1]" in comments[0]
    assert vllm(make_plan()).proposal == ()


def test_a_policy_over_a_context_that_nobody_knows_is_refused() -> None:
    plan = answered(BY_CONTEXT).model_copy(update={"k_curve": ()})
    with pytest.raises(InputError, match="does not say the load's"):
        vllm(plan)


@given(plan=table_plans())
def test_the_command_line_says_what_the_file_says(plan: Plan) -> None:
    export = vllm(plan)
    content = yaml.safe_load(export.files["vllm.yaml"])
    words = shlex.split(export.command_line)
    assert words[:3] == ["vllm", "serve", content.pop("model")]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert set(options) == {f"--{key}" for key in content}
    for key, value in content.items():
        said = options[f"--{key}"]
        assert (json.loads(said) if isinstance(value, dict) else said) == (
            value if isinstance(value, dict) else str(value)
        )
    speculative = content.get("speculative-config")
    assert (None if export.speculative_json is None else json.loads(export.speculative_json)) == speculative
    assert f"# or, without this file: {export.command_line}" in export.files["vllm.yaml"]


def test_switches_have_no_value_on_a_command_line() -> None:
    plan = answered("fixed:2", k=2, prefix_caching=False, enforce_eager=True, async_scheduling=False)
    words = shlex.split(vllm(plan).command_line)
    assert {"--no-enable-prefix-caching", "--enforce-eager", "--no-async-scheduling"} <= set(words)
    sglang = shlex.split(export_sglang(plan, MODEL, DRAFTERS["eagle3"]).command_line)
    assert sglang[:3] == ["python", "-m", "sglang.launch_server"]
    assert "--disable-radix-cache" in sglang
    assert "True" not in sglang


def test_one_release_of_an_engine_is_known() -> None:
    assert str(release_of("vllm", "v0.32.0")) == "vLLM 0.32.0"
    with pytest.raises(InputError, match=re.escape("only the rules of vLLM 0.32.0 are known")):
        release_of("vllm", "0.31.0")
    with pytest.raises(InputError, match="known engines"):
        release_of("trtllm", "1.0")
