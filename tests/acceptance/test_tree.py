"""Trees: closed forms, the published lengths, and what a derived model generates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.acceptance import cells, draft_tree, load_model, ratios_of, save_model, tree_model, walk
from kplan.acceptance.tree import rank_chances
from kplan.errors import InputError
from kplan.profiles import Tree, load_drafter
from kplan.profiles import load_model as load_target
from kplan.provenance import Kind
from kplan.workload import load_workload
from tests.acceptance.made import flat_model

CHAIN_3 = {2.25: 0.622139, 2.29: 0.633771}
"""Roots of 1 + a + a^2 + a^3 = length, the published chains of K = 3 with one hazard at every depth."""


def test_one_branch_is_the_chain() -> None:
    hazard = np.array([0.8, 0.5, 0.25])
    tree = draft_tree(hazard, 1, 3, ratios_of(1))
    assert tree.accepted == pytest.approx([0.8, 0.4, 0.1])
    assert tree.length == pytest.approx(2.3)
    assert tree.conditional(2, np.array([0.0, 0.3, 1.0])) == pytest.approx([0.0, 0.3, 1.0])


@pytest.mark.parametrize("topk", [2, 3, 5])
def test_independent_branches_miss_together(topk: int) -> None:
    """With every rank as good as the first all miss with (1 - p)^topk; a full second depth squares it."""
    p = 0.3
    ratios = ratios_of(topk, (1.0,))
    one = draft_tree(np.array([p]), topk, topk, ratios)
    assert one.accepted == pytest.approx([1 - (1 - p) ** topk])
    both = draft_tree(np.array([p, p]), topk, topk + topk**2, ratios)
    assert both.accepted == pytest.approx([1 - (1 - p) ** topk, (1 - (1 - p) ** topk) ** 2])
    assert both.conditional(2, np.array(0.5)) == pytest.approx(1 - 0.5**topk)


def test_a_tree_worked_out_by_hand() -> None:
    """Hazards of 1/2, rank 2 at half: 1/2 and 1/2 x 1/4 = 1/8; the paths 1/2, 1/4 and 1/8 are best."""
    tree = draft_tree(np.array([0.5, 0.5]), 2, 3, ratios_of(2, (0.5,)))
    assert tree.accepted == pytest.approx([5 / 8, 1 / 4])
    assert tree.children[0] == pytest.approx([0, 0, 1])  # the root has both children
    assert tree.children[1] == pytest.approx([1 / 5, 4 / 5, 0])  # the first has one, the second none
    assert tree.conditional(2, np.array(0.5)) == pytest.approx((1 / 4) / (5 / 8))
    assert tree.conditional(2, np.array(1.0)) == pytest.approx(4 / 5)


def test_only_the_best_paths_of_a_depth_grow() -> None:
    """Of 4 paths at depth 2 two grow: 4 nodes at depth 3, not 8, so 10 in all are drafted."""
    hazard, ratios = np.full(3, 0.5), ratios_of(2, (0.5,))
    tree = draft_tree(hazard, 2, 10, ratios)
    grown = 1 / 4 + 1 / 16  # 1/2 x 1/2, and the first of 1/2 x 1/8 and 1/8 x 1/2
    assert tree.accepted == pytest.approx([5 / 8, 25 / 64, grown * 5 / 8])
    with pytest.raises(InputError, match="nodes verified: got 11, a tree of depth 3 and topk 2 drafts 10"):
        draft_tree(hazard, 2, 11, ratios)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), st.integers(1, 4), st.floats(0.0, 1.0), st.data()
)
def test_more_nodes_accept_more_and_depths_less(
    hazards: list[float], topk: int, ratio: float, data: st.DataObject
) -> None:
    pool = Tree(len(hazards), topk, 1).nodes
    nodes = data.draw(st.integers(1, pool))
    ratios = ratios_of(topk, (ratio,))
    fewer, all_of_them = (draft_tree(np.array(hazards), topk, n, ratios) for n in (nodes, pool))
    assert fewer.length <= all_of_them.length + 1e-12
    for tree in (fewer, all_of_them):
        assert (np.diff([1.0, *tree.accepted]) <= 1e-12).all()
        assert tree.children.sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("chain", "topk", "nodes", "published", "within"),
    [
        (2.25, 2, 5, 2.51, 0.001),  # Qwen3-8B, GSM8K: the ratios were fitted on these two
        (2.25, 4, 20, 2.92, 0.001),
        (2.29, 2, 5, 2.55, 0.005),  # Llama3-70B, ShareGPT: not
        (2.29, 4, 20, 2.93, 0.015),
    ],
)
def test_published_lengths(chain: float, topk: int, nodes: int, published: float, within: float) -> None:
    """arXiv:2601.11580, trees of depth 3 at batch 1."""
    tree = draft_tree(np.full(3, CHAIN_3[chain]), topk, nodes, ratios_of(topk))
    assert tree.length == pytest.approx(published, rel=within)


def test_a_derived_model_of_one_branch_generates_the_chain() -> None:
    model = load_workload("gsm8k").model("eagle3")
    output_len = np.array([1, 50, 400])
    chain = model.generate(3, output_len)
    tree = tree_model(model, "eagle3", Tree(3, 1, 3)).generate(3, output_len)
    assert tree.recorded_k == 3
    assert np.array_equal(tree.acc, np.minimum(chain.acc, 4))


@pytest.mark.parametrize(("workload", "proposer"), [("gsm8k", "eagle3"), ("sharegpt", "eagle")])
@pytest.mark.parametrize(("tree", "gain"), [(Tree(3, 2, 5), 1.115), (Tree(3, 4, 20), 1.29)])
def test_derived_models_gain_over_their_chain_as_published(
    workload: str, proposer: str, tree: Tree, gain: float
) -> None:
    """2.51 / 2.25 and 2.55 / 2.29; 2.92 / 2.25 and 2.93 / 2.29, on other models."""
    source = load_workload(workload)
    model = source.model(proposer)
    _, output_len = source.sample_lengths(1, 1500)
    chain = walk(model.generate(0, output_len), 3).acceptance_length
    derived = tree_model(model, proposer, tree)
    trace = derived.generate(0, output_len)
    assert trace.acc.max() == 4
    assert walk(trace, tree.verified).acceptance_length / chain == pytest.approx(gain, rel=0.03)


def test_a_workload_derives_the_tree_of_a_head_that_it_knows() -> None:
    workload, target = load_workload("gsm8k"), load_target("llama-3.1-8b")
    drafter = load_drafter("eagle3-tree", target)
    made = workload.drafted_by(drafter).model("eagle3-tree")
    assert (made.proposer, made.known_k, made.provenance.kind) == ("eagle3-tree", 3, Kind.ASSUMED)
    assert made.facts["tree"] == {"depth": 3, "topk": 2, "verified": 5}
    assert workload.drafted_by(load_drafter("eagle3", target)) is workload
    with pytest.raises(InputError, match="eagle3-tree"):
        workload.model("eagle3-tree")


def test_a_model_of_another_tree_is_refused(tmp_path: Path) -> None:
    workload = load_workload("gsm8k")
    made = tree_model(workload.model("eagle3"), "eagle3-tree", Tree(3, 2, 7))
    save_model(made, tmp_path / "tree.json")
    own = replace(workload, models={**workload.models, "eagle3-tree": tmp_path / "tree.json"})
    drafter = load_drafter("eagle3-tree", load_target("llama-3.1-8b"))
    with pytest.raises(InputError, match=r"'verified': 7.*the tree served is .*'verified': 5"):
        own.drafted_by(drafter)
    assert own.drafted_by(replace(drafter, tree=Tree(3, 2, 7))) is own


def test_what_has_no_tree() -> None:
    workload = load_workload("gsm8k")
    with pytest.raises(InputError, match="a lookup drafts no tree"):
        tree_model(workload.model("ngram"), "x", Tree(3, 2, 5))
    known = replace(workload.model("eagle3"), known_k=2)
    with pytest.raises(InputError, match="tree depth: got 3, the acceptance of eagle3 is known up to K = 2"):
        tree_model(known, "x", Tree(3, 2, 5))
    with pytest.raises(InputError, match="hazards by depth"):
        draft_tree(np.array([1.5]), 1, 1, ratios_of(1))


def test_a_derived_model_is_read_as_written(tmp_path: Path) -> None:
    made = tree_model(load_workload("gsm8k").model("eagle3"), "eagle3-tree", Tree(3, 2, 5))
    save_model(made, tmp_path / "tree.json")
    read = load_model(tmp_path / "tree.json")
    assert (read.proposer, read.known_k, read.facts) == ("eagle3-tree", 3, made.facts)
    assert read.generate(1, np.array([80])).acc.max() == 4


def test_every_cell_has_the_tree_of_what_is_known_there() -> None:
    """Depth 2, two branches, 3 nodes, rank 2 at half of rank 1. Where a chain is 1/2, 1/2 the root has both
    branches (h + h/2 (1 - h)) and 4/5 of the accepted nodes one. Where the first draft was confirmed at .9
    the root has one and its node both. The first new draft is at 1/2 in the mean over the ages, .1 to .9."""
    model = flat_model([0.5])
    hazard = model.hazard[0]
    by_age = hazard[cells.FIRST : cells.CONFIRMED].reshape(cells.AGES, cells.OFFERS)
    by_age[:] = 0.05
    by_age[:, 5] = np.arange(1, 10) / 10
    hazard[cells.NEW] = 0.05  # never met: the first new draft has cells of its own
    hazard[cells.CONFIRMED] = 0.9
    hazard[cells.FAILED : cells.FAILED + 2] = [0.2, 0.3]
    wide = tree_model(model, "t", Tree(2, 2, 3), (0.5,)).hazard[0]

    def either(h: float) -> float:
        return h + h / 2 * (1 - h)

    first = wide[cells.FIRST : cells.CONFIRMED].reshape(cells.AGES, cells.OFFERS)
    np.testing.assert_allclose(first[:, 5], [either(h) for h in by_age[:, 5]])
    np.testing.assert_allclose(first[:, :5], either(0.05))
    assert wide[cells.NEW : cells.NEW + 2] == pytest.approx([either(0.5), 0.4])
    assert wide[cells.FAILED : cells.FAILED + 2] == pytest.approx([either(0.2), either(0.3)])
    assert wide[cells.UNSEEN : cells.UNSEEN + 2] == pytest.approx([either(0.5), either(0.5)])
    assert wide[cells.CONFIRMED : cells.CONFIRMED + 2] == pytest.approx([0.9, either(0.5)])
    deeper = [
        low + depth for low in (cells.CONFIRMED, cells.FAILED, cells.UNSEEN, cells.NEW) for depth in (2, 19)
    ]
    np.testing.assert_allclose(wide[[*deeper, cells.TAIL, *range(cells.FIRST)]], 0.5)
    assert hazard[cells.FAILED] == 0.2  # the chain's own stay


def test_the_last_ratio_stands_for_later_ranks() -> None:
    assert ratios_of(5, (0.6, 0.1)).tolist() == [0.6, 0.1, 0.1, 0.1]
    assert ratios_of(1, (0.6, 0.1)).tolist() == []
    assert ratios_of(3).tolist() == [0.682, 0.078]


def test_chances_of_ranks_exclude_each_other() -> None:
    """Of .5, and .4 and .3 of those before being wrong: .5, .2 and .09. A ratio above 2 is certain."""
    chances = rank_chances(np.array([0.5, 1.0]), np.array([0.8, 0.6]))
    np.testing.assert_allclose(chances, [[0.5, 1.0], [0.2, 0.0], [0.09, 0.0]])
    np.testing.assert_allclose(rank_chances(np.array(0.5), np.array([3.0])), [0.5, 0.5])


def test_a_tree_model_says_what_it_is_made_of() -> None:
    made = tree_model(replace(flat_model([0.5]), known_k=3), "t", Tree(3, 2, 5))
    assert (made.proposer, made.known_k, made.recorded_k, made.lookup) == ("t", 3, 20, None)
    assert made.facts == {
        "tree": {"depth": 3, "topk": 2, "verified": 5},
        "rank_ratios": [0.682, 0.078],
        "chain": "made",
    }
    assert "5 nodes (depth 3, topk 2)" in made.provenance.note
    assert "0.682, 0.078 times" in made.provenance.note


@pytest.mark.parametrize("nodes", [0, 4])
def test_nodes_that_are_not_drafted_cannot_be_verified(nodes: int) -> None:
    with pytest.raises(InputError, match=f"nodes verified: got {nodes}"):
        draft_tree(np.array([0.5]), 3, nodes, ratios_of(3))
    assert draft_tree(np.array([0.0, 1.0]), 3, 1, ratios_of(3)).accepted.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("hazard", [[], [[0.5]], [0.5, -0.1], [0.5, 1.1], [float("nan")]])
def test_hazards_that_are_none_are_refused(hazard: list[float]) -> None:
    with pytest.raises(InputError, match="hazards by depth"):
        draft_tree(np.array(hazard), 1, 1, ratios_of(1))
