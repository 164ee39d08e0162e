"""Profiles whose figures contradict each other are refused, and the last ones that do not are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import kplan_profiles
from kplan.errors import InputError
from kplan.profiles import load_drafter, load_model

SHIPPED = Path(kplan_profiles.__file__).parent


def changed(kind: str, name: str, folder: Path, **changes: Any) -> Path:
    """A copy of what ships; a change of ``decoder`` is one of its entries."""
    record = yaml.safe_load((SHIPPED / kind / f"{name}.yaml").read_text(encoding="utf-8"))
    if "decoder" in changes:
        changes["decoder"] = record["decoder"] | changes["decoder"]
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(record | changes), encoding="utf-8")
    return path


def experts(**changes: int) -> dict[str, Any]:
    return {"moe": {"experts": 8, "active": 2, "intermediate": 14336} | changes}


@pytest.mark.parametrize(
    ("decoder", "told"),
    [
        ({"window": {"tokens": 4096, "layers": 33}}, "window.layers is 33, but there are 32 layers"),
        (experts(active=9), "moe.active is 9, but there are 8 experts"),
        (experts(dense_layers=32), "moe.dense_layers must leave a routed layer of 32"),
    ],
)
def test_a_model_with_more_of_a_thing_than_there_is(
    decoder: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        load_model(changed("models", "mixtral-8x7b", tmp_path, decoder=decoder))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "decoder",
    [{"window": {"tokens": 4096, "layers": 32}}, experts(active=8), experts(dense_layers=31)],
)
def test_a_model_with_all_of_it(decoder: dict[str, Any], tmp_path: Path) -> None:
    assert load_model(changed("models", "mixtral-8x7b", tmp_path, decoder=decoder)).decoder.layers == 32


def test_a_tree_verifies_no_more_nodes_than_it_drafts(tmp_path: Path) -> None:
    """2 children of the root, then 2 of each of the 2 kept, twice: 2 + 4 + 4 nodes."""
    model = load_model("qwen3-8b")
    most = {"depth": 3, "topk": 2, "verified": 10}
    tree = load_drafter("eagle-tree", model, str(changed("drafters", "eagle-tree", tmp_path, tree=most))).tree
    assert tree is not None
    assert tree.verified == 10
    one_more = changed("drafters", "eagle-tree", tmp_path, tree=most | {"verified": 11})
    with pytest.raises(InputError, match="11 verified of the 10 nodes that it drafts"):
        load_drafter("eagle-tree", model, str(one_more))


@pytest.mark.parametrize(("name", "budget"), [("self-kv", None), ("eagle", 512)])
def test_a_budget_of_kv_is_of_those_who_draft_for_themselves(
    name: str, budget: int | None, tmp_path: Path
) -> None:
    path = changed("drafters", name, tmp_path, kv_budget=budget)
    with pytest.raises(InputError, match="kv_budget goes with kind self"):
        load_drafter(name, load_model("qwen3-8b"), str(path))
