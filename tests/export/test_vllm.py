"""vLLM configs: they read back to the plan, and what vLLM would break on is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given

from kplan.config.plan import BatchRange, Plan
from kplan.errors import InputError
from kplan.export import export_vllm
from tests.export.rules import planned_k, vllm_k, vllm_lookup
from tests.export.sample import (
    DRAFTERS,
    MODEL,
    TABLE,
    TABLE_TEXT,
    FakeModel,
    answered,
    drafter,
    make_plan,
    result,
    table_plans,
)


def ranges(*rows: tuple[int, int | None, int]) -> tuple[BatchRange, ...]:
    return tuple(BatchRange(start=start, end=end, k=k) for start, end, k in rows)


def yaml_of(plan: Plan, proposer: str = "eagle3") -> str:
    return export_vllm(plan, MODEL, DRAFTERS[proposer]).files["vllm.yaml"]


def test_table_is_written_in_the_accepted_form_key_for_key() -> None:
    assert yaml.safe_load(yaml_of(make_plan())) == {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "max-num-seqs": 256,
        "max-num-batched-tokens": 8192,
        "speculative-config": {
            "method": "eagle3",
            "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
            "num_speculative_tokens": 4,
            "num_speculative_tokens_per_batch_size": [[1, 16, 4], [17, 64, 3], [65, 256, 1]],
        },
    }


def test_fixed_k_is_static() -> None:
    spoken = yaml.safe_load(yaml_of(answered("fixed:3", k=3, tp=4), "draft-model"))
    assert spoken["tensor-parallel-size"] == 4
    assert spoken["speculative-config"] == {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 3,
    }


def test_ngram_looks_up_with_the_window_it_was_recorded_with() -> None:
    spoken = yaml.safe_load(yaml_of(answered("fixed:5", k=5), "ngram"))
    assert spoken["speculative-config"] == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 3,
        "prompt_lookup_max": 7,
    }


@given(plan=table_plans())
def test_any_table_reads_back_to_the_same_k_at_every_batch(plan: Plan) -> None:
    table = plan.answer.table
    assert table is not None
    batches = range(1, plan.question.max_num_seqs + 1)
    assert vllm_k(yaml_of(plan)) == [planned_k(table, batch) for batch in batches]


@given(plan=table_plans())
def test_comments_stay_comments_whatever_the_plan_says(plan: Plan) -> None:
    plain = plan.model_copy(
        update={
            "question": plan.question.model_copy(update={"workload": "x", "hardware": "x"}),
            "scenario_hash": "x",
        }
    )
    assert yaml.safe_load(yaml_of(plan)) == yaml.safe_load(yaml_of(plain))


@pytest.mark.parametrize(
    "plan",
    [
        answered("off", k=0),
        answered("fixed:0", k=0),
        answered("table:1-=0", table=ranges((1, None, 0))),
        answered("table:1-8=0,9-=0", table=ranges((1, 8, 0), (9, None, 0))),
    ],
)  # fmt: skip
def test_no_draft_at_any_batch_means_no_speculative_config(plan: Plan) -> None:
    assert "speculative-config" not in yaml.safe_load(export_vllm(plan, MODEL, None).files["vllm.yaml"])


def test_header_says_plan_load_prediction_and_engine_version() -> None:
    comments = [line for line in yaml_of(make_plan()).splitlines() if line.startswith("#")]
    text = "\n".join(comments)
    for part in ("vLLM 0.32.0", "0123456789abcdef", "64 requests/s", "TPOT 11.20 ms", "13890 output tok/s"):
        assert part in text


def test_header_names_the_traces_that_stood_in_for_the_workload() -> None:
    load = next(
        line for line in yaml_of(answered("off", k=0, traces="mine.jsonl")).splitlines() if "load" in line
    )
    assert "mine.jsonl" in load
    assert "sharegpt" not in load


def test_header_names_the_log_and_the_workload_that_lends_its_acceptance() -> None:
    text = yaml_of(answered("off", k=0, qps=None, replay="day.csv"))
    assert "# load: the pace of day.csv, acceptance of workload sharegpt\n" in text


def test_policy_that_vllm_lacks_is_replaced_by_the_best_it_has_and_said() -> None:
    export = export_vllm(answered("sglang-ema"), MODEL, DRAFTERS["eagle3"])
    assert export.policy == "table:1-16=4,17-64=3,65-=1"  # 11.2 ms, the lowest of those that vLLM runs
    assert vllm_k(export.files["vllm.yaml"]) == [planned_k(TABLE, b) for b in range(1, 257)]
    assert any("sglang-ema is not written" in note for note in export.notes)
    assert "sglang-ema is not written" in export.files["vllm.yaml"]


def test_replacement_prefers_policies_that_keep_up() -> None:
    plan = answered("sglang-ema").model_copy(
        update={
            "policies": (
                result("off", 30.0),
                result("fixed:5", 9.0, saturated=True),
                result("fixed:2", 8.0, goodput_qps=20.0),
                result("goodput", 7.0),
                result("fixed:1", 25.0),
                result("sglang-ema", 6.0),
            )
        }
    )
    assert export_vllm(plan, MODEL, DRAFTERS["eagle3"]).policy == "fixed:1"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (ranges((2, 4, 4)), "must start at 1"),
        (ranges((0, 4, 4)), "must start at 1"),
        (ranges((1, 4, 4), (9, 12, 2)), "add a range for batch sizes 5..8"),
        (ranges((1, 4, 4), (4, 8, 2)), "must start at 5"),
        (ranges((1, 4, 4), (5, 2, 2)), "ends before it starts"),
        (ranges((1, None, 4), (5, 8, 2)), "only the last range may be open"),
        (ranges((1, 32, -1)), "K must be 0..7"),
        (ranges((1, 32, 9)), "K must be 0..7"),
        ((), "at least one"),
    ],
)
def test_tables_that_vllm_would_refuse_clamp_or_guess_at(table: tuple[BatchRange, ...], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        yaml_of(answered("table:x", table=table))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("proposer", "method", "says"),
    [
        ("suffix", "suffix", "crashes"),
        ("medusa", "medusa", "crashes"),
        ("ngram-gpu", "ngram_gpu", "crashes"),
        ("custom", "custom_class", "ignores the table"),
        ("pard", "draft_model", "wrong tokens"),
    ],
)
def test_table_with_a_method_that_breaks_is_refused_and_its_fixed_k_is_not(
    proposer: str, method: str, says: str
) -> None:
    proposes = drafter(proposer, "some/drafter", method, "EAGLE")
    with pytest.raises(InputError, match=f"{says}.*fixed:4"):
        export_vllm(make_plan(), MODEL, proposes)
    text = export_vllm(answered("fixed:4", k=4), MODEL, proposes).files["vllm.yaml"]
    assert yaml.safe_load(text)["speculative-config"]["num_speculative_tokens"] == 4


def test_pard_asks_for_parallel_drafting() -> None:
    text = export_vllm(
        answered("fixed:4", k=4), MODEL, drafter("pard", "some/drafter", "draft_model", "")
    ).files["vllm.yaml"]
    assert yaml.safe_load(text)["speculative-config"]["parallel_drafting"] is True


def test_ranks_of_the_plan_are_asked_for_and_drop_a_table() -> None:
    with pytest.raises(InputError, match="drops the table and drafts 4 always"):
        yaml_of(answered(TABLE_TEXT, table=TABLE, dp=2))
    export = export_vllm(answered("fixed:3", k=3, dp=2, tp=4), MODEL, DRAFTERS["eagle3"])
    content = yaml.safe_load(export.files["vllm.yaml"])
    assert (content["data-parallel-size"], content["tensor-parallel-size"]) == (2, 4)
    assert "on h100-sxm, TP 4 x DP 2," in export.files["vllm.yaml"]
    assert "data-parallel-size" not in yaml.safe_load(yaml_of(answered("fixed:3", k=3)))


def test_servers_are_counted_with_all_their_gpus_and_their_router() -> None:
    plan = answered("fixed:3", k=3, dp=2, tp=4, router="least-outstanding")
    plan = plan.model_copy(update={"answer": plan.answer.model_copy(update={"replicas": 3})})
    (note,) = [note for note in export_vllm(plan, MODEL, DRAFTERS["eagle3"]).notes if "servers" in note]
    assert note.startswith("start 3 servers from this file, 8 GPUs each")
    assert note.endswith("to the one with the fewest unfinished")


@pytest.mark.parametrize(
    ("kv_tokens", "asked", "written"),
    [
        (None, None, None),
        (40_960, None, None),
        (40_959, None, "auto"),
        (30_000, 8192, 8192),
        (8000, 8192, "auto"),
    ],
)
def test_a_context_that_the_kv_cache_cannot_hold_is_left_to_what_fits(
    kv_tokens: int | None, asked: int | None, written: int | str | None
) -> None:
    plan = answered("off", k=0, max_model_len=asked)
    plan = plan.model_copy(update={"answer": plan.answer.model_copy(update={"kv_tokens": kv_tokens})})
    export = export_vllm(plan, FakeModel(max_context=40_960), None)
    assert yaml.safe_load(export.files["vllm.yaml"]).get("max-model-len") == written
    assert any("vLLM would not start" in note for note in export.notes) == (written == "auto")


def test_a_plan_without_prefix_cache_switches_it_off() -> None:
    content = yaml.safe_load(yaml_of(answered("off", k=0, prefix_caching=False)))
    assert content["enable-prefix-caching"] is False
    assert "enable-prefix-caching" not in yaml.safe_load(yaml_of(answered("off", k=0)))


def test_mtp_needs_layers_and_a_multiple_of_them() -> None:
    mtp = drafter("mtp", None, "mtp", "NEXTN")
    with pytest.raises(InputError, match="no MTP layers"):
        export_vllm(answered("fixed:3", k=3), MODEL, mtp)
    with pytest.raises(InputError, match="multiple"):
        export_vllm(answered("fixed:3", k=3), FakeModel(mtp_layers=2), mtp)
    spoken = yaml.safe_load(
        export_vllm(answered("fixed:4", k=4), FakeModel(mtp_layers=2), mtp).files["vllm.yaml"]
    )
    assert spoken["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 4}


def test_oracle_and_unknown_methods_are_refused() -> None:
    with pytest.raises(InputError, match="no engine can run it"):
        yaml_of(answered("oracle"))
    with pytest.raises(InputError, match="no such method"):
        export_vllm(make_plan(), MODEL, drafter("tree", "x/y", "tree_attention", ""))
    with pytest.raises(InputError, match="needs a drafter"):
        export_vllm(make_plan(), MODEL, None)
    with pytest.raises(InputError, match=re.escape("must be 0..7")):
        yaml_of(answered("fixed:9", k=9))


def test_the_expansion_that_these_tests_trust_is_the_real_engines(shared_dir: Path) -> None:
    verdicts = shared_dir / "engines" / "vllm_cpu" / "yaml" / "VERDICTS.txt"
    checked = 0
    for line in verdicts.read_text(encoding="utf-8").splitlines():
        table = re.search(r"table=\[(.*?)\] \|", line)
        if table is None:
            continue
        rows = [tuple(map(int, row.split(", "))) for row in re.findall(r"\((.*?)\)", table[1])]
        static_k = int(re.search(r"num_spec_tokens=(\d+)", line)[1])  # type: ignore[index]  # every OK line has it
        lookup = re.search(r"lookup=\[(.*?)\]", line)
        if lookup is None:
            with pytest.raises(ValueError, match=r"range|values|positive"):
                vllm_lookup(rows, 32, static_k)
        else:
            assert vllm_lookup(rows, 32, static_k) == [int(k) for k in lookup[1].split(", ")], line
        checked += 1
    assert checked >= 10
