"""The exporter's facts, the profiles and the policies speak of the same engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml

from kplan.errors import InputError
from kplan.export import SGLANG, VLLM, EngineVersion, export_engines, export_sglang, export_vllm
from kplan.profiles import (
    Drafter,
    DrafterKind,
    Dtype,
    Model,
    available,
    load_drafter,
    load_engine,
    load_model,
)
from tests.export.rules import sglang_config, vllm_k
from tests.export.sample import answered


@pytest.mark.parametrize("facts", [VLLM, SGLANG], ids=str)
def test_exporter_and_profile_are_of_one_release(facts: EngineVersion) -> None:
    profile = load_engine(facts.name)
    assert facts.version == profile.version
    assert set(profile.table_methods) <= facts.methods
    assert set(profile.table_methods).isdisjoint(facts.table_refused)
    if facts.graph_sizes:
        assert facts.graph_sizes == profile.graphs.sizes()


def test_every_shipped_drafter_exports_to_both_engines() -> None:
    exported = 0
    for model, drafter in shipped_pairs():
        if unnamed(drafter):
            continue
        plan = answered("fixed:3", k=3, model=model.name, proposer=drafter.proposer)
        assert vllm_k(export_vllm(plan, model, drafter).files["vllm.yaml"]) == [3] * 256
        config, _ = sglang_config(export_sglang(plan, model, drafter).files)
        assert config["speculative-num-steps"] == 3
        assert config["model-path"] == model.hf_id
        assert config.get("speculative-draft-model-path") == drafter.hf_id
        exported += 1
    assert exported >= 6


def test_a_layout_without_weights_is_refused_by_every_engine() -> None:
    """Planned for all the same: the refusal says how to name the head."""
    layouts = [(model, drafter) for model, drafter in shipped_pairs() if unnamed(drafter)]
    assert {drafter.proposer for _, drafter in layouts} == {"eagle", "eagle3"}
    for model, drafter in layouts:
        plan = answered("fixed:3", k=3, model=model.name, proposer=drafter.proposer)
        exports = export_engines(plan, model, drafter)
        assert not exports.engines
        assert set(exports.refused) == {"vllm", "sglang"}
        assert all(model.hf_id in why and "--drafter" in why for why in exports.refused.values())


def unnamed(drafter: Drafter) -> bool:
    """A head's layout that no checkpoint is known for."""
    return drafter.kind is DrafterKind.HEAD and drafter.hf_id is None


def test_mtp_needs_no_weights_of_its_own() -> None:
    model = load_model("glm-4.5-air")
    plan = answered("fixed:1", k=1, model=model.name, proposer="mtp")
    exports = export_engines(plan, model, load_drafter("mtp", model))
    vllm = yaml.safe_load(exports.files["vllm.yaml"])
    assert vllm["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 1}
    sglang, _ = sglang_config(exports.files)
    assert sglang["speculative-algorithm"] == "NEXTN"
    assert "speculative-draft-model-path" not in sglang


def test_a_tree_is_written_for_sglang_alone() -> None:
    """Depth 3, 2 branches: the tree of arXiv:2601.11580, whose 6 verified tokens count the root."""
    model = load_model("llama-3.1-8b")
    plan = answered("fixed:5", k=5, proposer="eagle3-tree", engine="sglang")
    drafter = load_drafter("eagle3-tree", model)
    exports = export_engines(plan, model, drafter)
    config = yaml.safe_load(exports.files["sglang.yaml"])
    assert config["speculative-algorithm"] == "EAGLE3"
    assert config["speculative-num-steps"] == 3
    assert config["speculative-eagle-topk"] == 2
    assert config["speculative-num-draft-tokens"] == 6
    assert "sglang_adaptive.json" not in exports.files
    assert "no such method" in exports.refused["vllm"]
    too_many = answered("fixed:11", k=11, proposer="eagle3-tree", engine="sglang", max_k=11)
    with pytest.raises(InputError, match="10 nodes"):
        export_sglang(too_many, model, drafter)


def test_parallel_drafts_are_written_for_vllm_alone() -> None:
    model = load_model("llama-3.1-8b")
    exports = export_engines(answered("fixed:3", k=3, proposer="pard"), model, load_drafter("pard", model))
    speculative = yaml.safe_load(exports.files["vllm.yaml"])["speculative-config"]
    assert speculative["parallel_drafting"] is True
    assert speculative["model"] == "amd/PARD-Llama-3.2-1B"
    assert "no such method" in exports.refused["sglang"]


@pytest.mark.parametrize(
    ("asked", "vllm", "sglang", "note"),
    [
        ({}, {}, {}, ""),
        ({"quantization": "bf16"}, {}, {}, ""),
        ({"quantization": "fp8"}, {"quantization": "fp8"}, {"quantization": "fp8"}, ""),
        ({"quantization": "int4"}, {}, {}, "int4 weights: put a checkpoint in that format"),
        ({"kv_cache_dtype": "fp8"}, {"kv-cache-dtype": "fp8"}, {"kv-cache-dtype": "fp8_e4m3"}, ""),
        ({"kv_cache_dtype": "bf16"}, {"kv-cache-dtype": "bfloat16"}, {"kv-cache-dtype": "bf16"}, ""),
        ({"async_scheduling": True}, {}, {}, ""),
        (
            {"async_scheduling": False},
            {"no-async-scheduling": True},
            {"disable-overlap-schedule": True},
            "",
        ),
        (
            {"enforce_eager": True},
            {"enforce-eager": True},
            {"cuda-graph-backend-decode": "disabled"},
            "",
        ),
    ],
)
def test_formats_and_scheduling_become_the_engines_own_flags(
    asked: dict[str, Any], vllm: dict[str, Any], sglang: dict[str, Any], note: str
) -> None:
    model = load_model("llama-3.1-8b")
    drafter = load_drafter("eagle3", model)
    exports = export_engines(answered("fixed:3", k=3, **asked), model, drafter)
    for name, expected in (("vllm", vllm), ("sglang", sglang)):
        text = exports.files[f"{name}.yaml"]
        config = yaml.safe_load(text)
        flags = ("quantization", "kv-cache-dtype", "no-async-scheduling", "disable-overlap-schedule")
        flags += ("enforce-eager", "cuda-graph-backend-decode")
        found = {key: config[key] for key in flags if key in config}
        assert found == expected
        assert note in text
        # the head was planned in bf16; SGLang would quantize it with the target
        assert ("unquant" in text) == (name == "sglang" and "quantization" in expected)


def test_a_quantized_checkpoint_keeps_its_own_format() -> None:
    model = load_model("llama-3.1-8b").stored(Dtype.FP8, Dtype.FP8)
    drafter = load_drafter("eagle3", model)
    config = yaml.safe_load(
        export_vllm(answered("fixed:3", k=3, quantization="fp8"), model, drafter).files["vllm.yaml"]
    )
    assert "quantization" not in config, "the engine reads it from the checkpoint"
    assert config["kv-cache-dtype"] == "fp8", "which it does not do for the KV cache"
    other = export_vllm(answered("fixed:3", k=3, quantization="bf16"), model, drafter)
    assert any("bf16 weights" in note for note in other.notes)


def shipped_pairs() -> Iterator[tuple[Model, Drafter]]:
    """Every shipped model with every proposer that it has a drafter for."""
    for line in available("models"):
        model = load_model(line.name)
        for proposer in ("ngram", "eagle", "eagle3", "draft-model"):
            with suppress(InputError):
                yield model, load_drafter(proposer, model)
