"""The exported sglang.yaml and its ladder pass SGLang's three gates and mean there what the plan says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplan.export import EngineExport, export_sglang
from tests.live.install import Engine
from tests.live.plans import drafter, plan, target
from tests.live.verdicts import judge

MAX_NUM_SEQS = 64
# Bounds that lie on captured graph sizes: SGLang pads a batch up before it looks up its steps.
TABLE = ((1, 4, 5), (5, 16, 3), (17, 32, 1), (33, None, 0))
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def _k_at(batch: int) -> int:
    (k,) = (k for start, end, k in TABLE if start <= batch and (end is None or batch <= end))
    return k


def _write(folder: Path, export: EngineExport) -> Path:
    folder.mkdir()
    for name, text in export.files.items():
        (folder / name).write_text(text)
    return folder / "sglang.yaml"


@pytest.fixture(scope="module")
def verdicts(sglang: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """SGLang's word on every case, one process for all."""
    folder = tmp_path_factory.mktemp("sglang")
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    plans = {
        "off": (plan(k=0, max_num_seqs=MAX_NUM_SEQS), None),
        "fixed eagle": (plan(k=3, max_num_seqs=MAX_NUM_SEQS), drafter("eagle", model)),
        "fixed draft model": (plan(k=2, max_num_seqs=MAX_NUM_SEQS), drafter("draft-model", model)),
        "fixed n-gram": (plan(k=4, max_num_seqs=MAX_NUM_SEQS), drafter("ngram", model)),
        "synchronous and eager": (
            plan(k=2, max_num_seqs=MAX_NUM_SEQS, async_scheduling=False, enforce_eager=True),
            drafter("eagle", model),
        ),
        "short context, no prefix cache": (
            plan(k=2, max_num_seqs=MAX_NUM_SEQS, max_model_len=512, prefix_caching=False),
            drafter("eagle", model),
        ),
        "table": (plan(ranges=TABLE, max_num_seqs=MAX_NUM_SEQS), drafter("eagle3", model)),
    }
    files = {
        name: _write(
            folder / name.replace(" ", "-").replace(",", ""), export_sglang(asked, target(model), draft)
        )
        for name, (asked, draft) in plans.items()
    }
    good = yaml.safe_load(files["table"].read_text())
    spoiled = {
        "underscored key": {**good, "speculative_num_steps": 3},
        "step outside the ladder": {**good, "speculative-num-steps": 2, "speculative-num-draft-tokens": 3},
    }
    for name, content in spoiled.items():
        files[name] = files["table"].with_name(f"{name.replace(' ', '-')}.yaml")
        files[name].write_text(yaml.safe_dump(content))
    return judge(sglang, files)


@pytest.mark.parametrize(
    ("name", "algorithm", "steps"),
    [("fixed eagle", "EAGLE", 3), ("fixed draft model", "STANDALONE", 2), ("table", "EAGLE3", None)],
)
def test_sglang_drafts_a_chain(
    name: str, algorithm: str, steps: int | None, verdicts: dict[str, dict[str, Any]]
) -> None:
    verdict = verdicts[name]
    assert verdict["stage"] == "ok", verdict["error"]
    assert verdict["speculative_algorithm"] == algorithm
    assert verdict["speculative_eagle_topk"] == 1
    assert verdict["speculative_num_draft_tokens"] == verdict["speculative_num_steps"] + 1
    assert verdict["max_running_requests"] == MAX_NUM_SEQS
    if steps is not None:
        assert verdict["speculative_num_steps"] == steps
        assert not verdict["speculative_adaptive"]


def test_off_leaves_speculation_off(verdicts: dict[str, dict[str, Any]]) -> None:
    assert verdicts["off"]["stage"] == "ok"
    assert verdicts["off"]["speculative_algorithm"] is None


@pytest.mark.parametrize(
    ("name", "context", "cached"),
    [("fixed eagle", None, True), ("short context, no prefix cache", 512, False)],
)
def test_sglang_serves_as_the_plan_says(
    name: str, context: int | None, cached: bool, verdicts: dict[str, dict[str, Any]]
) -> None:
    verdict = verdicts[name]
    assert verdict["stage"] == "ok", verdict["error"]
    assert verdict["context_length"] == context
    assert verdict["disable_radix_cache"] is not cached


def test_ngram_drafts_the_k_of_the_plan(verdicts: dict[str, dict[str, Any]]) -> None:
    """SGLang derives NGRAM's steps itself; a chain of K has K + 1 draft tokens and breadth 1."""
    verdict = verdicts["fixed n-gram"]
    assert verdict["stage"] == "ok", verdict["error"]
    assert verdict["speculative_algorithm"] == "NGRAM"
    assert verdict["speculative_eagle_topk"] == 1
    assert verdict["speculative_num_draft_tokens"] == 5


def test_the_ladder_runs_the_k_of_the_plan_at_every_batch_size(verdicts: dict[str, dict[str, Any]]) -> None:
    verdict = verdicts["table"]
    assert verdict["speculative_adaptive"]
    batches = range(1, MAX_NUM_SEQS + 1)
    assert verdict["steps_by_batch"][:MAX_NUM_SEQS] == [_k_at(batch) for batch in batches]


@pytest.mark.parametrize(
    ("how", "stage"), [("underscored key", "parser"), ("step outside the ladder", "config")]
)
def test_the_check_bites(how: str, stage: str, verdicts: dict[str, dict[str, Any]]) -> None:
    assert verdicts[how]["stage"] == stage
