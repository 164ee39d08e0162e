"""SGLang configs: three flags always, ladders that the rule reads as the plan's table."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given

from kplan.config.plan import BatchRange, Plan
from kplan.errors import InputError
from kplan.export import EngineExport, export_sglang
from tests.export.rules import padded, planned_k, sglang_config, sglang_slot
from tests.export.sample import DRAFTERS, MODEL, answered, drafter, make_plan, question, table_plans


def export(plan: Plan, proposer: str = "eagle3") -> EngineExport:
    return export_sglang(plan, MODEL, DRAFTERS[proposer])


def test_table_is_written_in_the_accepted_form_key_for_key() -> None:
    files = export(make_plan()).files
    assert yaml.safe_load(files["sglang.yaml"]) == {
        "model-path": "meta-llama/Llama-3.1-8B-Instruct",
        "max-running-requests": 256,
        "speculative-algorithm": "EAGLE3",
        "speculative-draft-model-path": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "speculative-num-steps": 4,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 5,
        "speculative-adaptive": True,
        "speculative-adaptive-config": "sglang_adaptive.json",
    }
    assert json.loads(files["sglang_adaptive.json"]) == {
        "1": {"candidate_steps": [4]},
        "17": {"candidate_steps": [3]},
        "65": {"candidate_steps": [1]},
    }


@given(plan=table_plans())
def test_any_table_gives_its_k_at_every_batch_that_is_not_padded_over_a_boundary(plan: Plan) -> None:
    table = plan.answer.table
    assert table is not None
    exported = export(plan)
    config, ladder = sglang_config(exported.files)
    noted = " ".join(note for note in exported.notes if "padded" in note)
    for batch in range(1, plan.question.max_num_seqs + 1):
        if ladder is None:
            k = config.get("speculative-num-steps", 0)
        else:
            (k,) = sglang_slot(ladder, batch)
        wanted = planned_k(table, batch)
        if padded(batch) == batch or wanted == planned_k(
            table, min(padded(batch), plan.question.max_num_seqs)
        ):
            assert k == wanted
        else:
            assert k != wanted
            assert any(
                f"{start}..{end}" in noted for start in range(1, batch + 1) for end in range(batch, batch + 8)
            )


def test_batches_padded_over_a_boundary_are_named() -> None:
    table = (BatchRange(start=1, end=36, k=5), BatchRange(start=37, end=None, k=1))
    notes = export(answered("table:1-36=5,37-=1", table=table)).notes
    assert sum("padded" in note for note in notes) == 1
    assert any("batches 33..36 are padded" in note and "K = 1" in note for note in notes)


def test_fixed_k_is_static_and_its_ladder_is_ready_but_unused() -> None:
    exported = export(answered("fixed:3", k=3, tp=2))
    config, ladder = sglang_config(exported.files)
    assert ladder is None
    assert (config["tp-size"], config["speculative-num-steps"]) == (2, 3)
    assert json.loads(exported.files["sglang_adaptive.json"]) == {"1": {"candidate_steps": [3]}}


def test_ema_is_written_with_sglangs_own_default_ladder() -> None:
    config, ladder = sglang_config(export(answered("sglang-ema")).files)
    assert ladder is not None
    # adaptive_spec_params.py of SGLang 0.5.23; its start is the middle of the candidates 0, 1, 3, 5, 7.
    assert config["speculative-num-steps"] == 3
    slots = {key: slot for key, slot in ladder.items() if key.isdigit()}
    assert {key: slot["candidate_steps"] for key, slot in slots.items()} == {
        "1": [1, 3, 5, 7],
        "8": [0, 1, 3],
        "32": [0, 1],
        "64": [0],
    }
    down = {
        key: slot.get("down_hysteresis", ladder.get("down_hysteresis", -0.25)) for key, slot in slots.items()
    }
    assert down == {"1": -0.25, "8": 0.0, "32": 0.0, "64": 0.0}


@pytest.mark.parametrize(("proposer", "algorithm"), [("ngram", "NGRAM"), ("draft-model", "STANDALONE")])
def test_what_sglang_does_not_adapt_falls_back_to_a_fixed_k_and_says_so(
    proposer: str, algorithm: str
) -> None:
    for plan in (make_plan(), answered("sglang-ema")):
        exported = export(plan, proposer)
        config, ladder = sglang_config(exported.files)
        assert ladder is None
        assert "sglang_adaptive.json" not in exported.files
        assert config["speculative-algorithm"] == algorithm
        assert config["speculative-num-steps"] == 3  # fixed:3, 11.6 ms, is the best fixed K of the plan
        assert any("is not written" in note and "EAGLE3 only" in note for note in exported.notes)


def test_ngram_is_a_chain_and_its_other_rule_is_named() -> None:
    exported = export(answered("fixed:5", k=5), "ngram")
    config, _ = sglang_config(exported.files)
    assert config["speculative-ngram-max-bfs-breadth"] == 1
    assert "speculative-draft-model-path" not in config
    assert any("trie" in note for note in exported.notes)


def test_off_has_no_speculative_key() -> None:
    config, ladder = sglang_config(export_sglang(answered("off", k=0), MODEL, None).files)
    assert ladder is None
    assert set(config) == {"model-path", "max-running-requests"}


def test_replicas_and_another_engine_are_noted() -> None:
    plan = make_plan(question=question(engine="vllm"))
    plan = plan.model_copy(update={"answer": plan.answer.model_copy(update={"replicas": 3})})
    notes = "\n".join(export(plan).notes)
    assert "start 3 servers" in notes
    assert "simulated for vllm" in notes


def test_context_and_prefix_cache_of_the_plan_are_written() -> None:
    config, _ = sglang_config(
        export_sglang(answered("off", k=0, max_model_len=4096, prefix_caching=False), MODEL, None).files
    )
    assert config["context-length"] == 4096
    assert config["disable-radix-cache"] is True


def test_ranks_are_refused_whatever_the_policy() -> None:
    with pytest.raises(InputError, match=r"--dp.*no such ranks.*plan with --replicas"):
        export(answered("fixed:3", k=3, dp=2))


def test_proposer_that_sglang_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"suffix.*no such method"):
        export_sglang(make_plan(), MODEL, drafter("suffix", None, "suffix", ""))
