"""Drafters of models that have none of their own: layouts, trees, MTP, and those that a user names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kplan.errors import InputError
from kplan.profiles import Dtype, Tree, load_drafter, load_model
from tests.profiles.test_hf_config import DEEPSEEK_V3, LLAMA, written


def test_layouts_reproduce_the_released_heads() -> None:
    """Built at the width of Llama 3.1 8B they are the heads whose memory SpecDecode-Bench measured."""
    model = load_model("llama-3.1-8b")
    stranger = load_model("mixtral-8x7b")  # same width, heads and MLP, another vocabulary
    for proposer in ("eagle", "eagle3"):
        released, built = load_drafter(proposer, model), load_drafter(proposer, stranger)
        assert released.hf_id is not None
        assert built.hf_id is None
        assert built.params == released.params
        assert (built.own_head, built.fused_hidden) == (released.own_head, released.fused_hidden)
    eagle3 = load_drafter("eagle3", stranger).decoder
    assert eagle3 is not None
    assert (eagle3.vocab, eagle3.moe, eagle3.layers) == (32000, None, 1)


def test_an_mtp_layer_is_a_layer_of_the_target(tmp_path: Path) -> None:
    """DeepSeek-V3's MTP module has 11.5B parameters of its own, in fp8 like the target's."""
    model = load_model(written(tmp_path, DEEPSEEK_V3))
    mtp = load_drafter("mtp", model)
    assert mtp.params / 1e9 == pytest.approx(11.5, rel=0.01)
    assert mtp.weight_dtype is Dtype.FP8
    assert mtp.kv_bytes_per_token() == (512 + 64) * 2
    assert mtp.decoder is not None
    assert mtp.decoder.vocab == 129280


@pytest.mark.parametrize(("layers", "told"), [(0, "no multi-token"), (3, "3 multi-token")])
def test_mtp_is_refused_with_the_reason(layers: int, told: str, tmp_path: Path) -> None:
    model = load_model(written(tmp_path, DEEPSEEK_V3 | {"num_nextn_predict_layers": layers}))
    with pytest.raises(InputError, match=told):
        load_drafter("mtp", model)


@pytest.mark.parametrize(
    ("proposer", "tree", "nodes"),
    [("eagle-tree", Tree(3, 2, 5), 10), ("eagle3-tree4", Tree(3, 4, 20), 36)],
)
def test_a_tree_uses_the_head_of_its_model(proposer: str, tree: Tree, nodes: int) -> None:
    model = load_model("llama-3.1-8b")
    drafter = load_drafter(proposer, model)
    head = load_drafter(proposer.partition("-")[0], model)
    assert (drafter.tree, drafter.tree.nodes if drafter.tree else 0) == (tree, nodes)
    assert (drafter.hf_id, drafter.params, drafter.decoder) == (head.hf_id, head.params, head.decoder)
    assert drafter.one_k
    assert not head.one_k


def test_a_parallel_drafter_and_self_speculation() -> None:
    model = load_model("llama-3.1-8b")
    assert load_drafter("pard", model).one_k
    own = load_drafter("self-kv", model)
    assert (own.params, own.kv_bytes_per_token(), own.kv_budget) == (0, 0.0, 512)
    assert own.engine_methods == {}


def test_a_draft_model_is_named_by_any_model(tmp_path: Path) -> None:
    target = load_model("qwen3-32b")
    drafter = load_drafter("draft-model", target, "Qwen/Qwen3-0.6B")
    shipped = load_drafter("draft-model", load_model("qwen3-8b"))
    assert (drafter.hf_id, drafter.params, drafter.engine_methods) == (
        shipped.hf_id,
        shipped.params,
        shipped.engine_methods,
    )
    path = written(tmp_path, LLAMA | {"vocab_size": 151936, "num_hidden_layers": 2})
    from_file = load_drafter("draft-model", target, str(path))
    assert from_file.hf_id == str(tmp_path)
    assert from_file.own_head
    with pytest.raises(InputError, match="vocabulary of 128256"):
        load_drafter("draft-model", target, "llama-3.2-1b")


def test_a_head_is_named_by_its_repository_or_folder(tmp_path: Path) -> None:
    model = load_model("qwen3-32b")
    assert load_drafter("eagle3", model, "some/eagle3-head").hf_id == "some/eagle3-head"
    (tmp_path / "config.json").write_text(json.dumps({}), encoding="utf-8")
    assert load_drafter("eagle3", model, str(tmp_path)).hf_id == str(tmp_path)


def test_a_drafter_of_ones_own(tmp_path: Path) -> None:
    record = {
        "name": "mine", "proposer": "eagle3", "kind": "head", "targets": ["qwen3-32b"], "summary": "mine",
        "engine_methods": {"vllm": "eagle3"}, "layer": {"attention_inputs": 2, "vocab": 16000},
        "fused_hidden": 3, "own_head": True, "hf_id": "me/mine",
        "provenance": {"kind": "assumed", "source": "me"},
    }  # fmt: skip
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(record), encoding="utf-8")
    model = load_model("qwen3-32b")
    drafter = load_drafter("eagle3", model, str(path))
    assert drafter.decoder is not None
    assert (drafter.hf_id, drafter.decoder.vocab, drafter.decoder.hidden) == ("me/mine", 16000, 5120)
    with pytest.raises(InputError, match="is of proposer eagle3"):
        load_drafter("eagle", model, str(path))
    with pytest.raises(InputError, match="add qwen3-8b to its targets"):
        load_drafter("eagle3", load_model("qwen3-8b"), str(path))
    path.write_text(yaml.safe_dump(record | {"head": "eagle"}), encoding="utf-8")
    with pytest.raises(InputError, match="exactly one of decoder, layer and head"):
        load_drafter("eagle3", model, str(path))


@pytest.mark.parametrize(
    ("proposer", "named", "told"),
    [
        ("ngram", "some/thing", "no weights of its own"),
        ("self-kv", "some/thing", "no weights of its own"),
        ("eagle3", "head", "ORG/NAME"),
        ("eagle3", "no/such.yaml", "no such file"),
        ("draft-model", "qwen3-0.7b", "did you mean qwen3-0.6b"),
        ("draft-model", None, "--drafter"),
    ],
)
def test_a_name_that_fits_no_drafter_is_refused(proposer: str, named: str | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_drafter(proposer, load_model("qwen3-32b"), named)
