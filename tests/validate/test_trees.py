"""Trees: which drafter a row means, and what its speedup is made of."""

from __future__ import annotations

import pytest

from kplan.profiles import load_drafter, load_model
from kplan.validate.predict.steady import Stand
from kplan.validate.predict.trees import predict, tree_of
from kplan.validate.table import Metric, PublishedRow, PublishedTable, Trust


def make_table(*rows: dict[str, float | str]) -> PublishedTable:
    return PublishedTable(
        name="made",
        title="made",
        source="made",
        trust=Trust.DIRECT,
        metric=Metric.SPEEDUP,
        predictor="trees",
        settings={"scenario": {"prompt_tokens": 100, "output_tokens": 200, "engine": "sglang"}},
        rows=tuple(PublishedRow(measured=1.0, at={"proposer": "eagle"} | row) for row in rows),
    )


def test_a_tree_of_one_branch_is_a_chain() -> None:
    chain = load_drafter("eagle", load_model("llama-3.1-8b"))
    assert tree_of(chain, 3, 1) == chain
    tree = tree_of(chain, 3, 4).tree
    assert tree is not None
    assert (tree.depth, tree.topk) == (3, 4)


def test_the_acceptance_length_scales_the_speedup() -> None:
    """Without prompts to run, tokens per second are in proportion to the tokens of a step."""
    at = {"depth": 3, "topk": 1, "k": 3, "batch": 1}
    low, high = predict(make_table(at | {"emitted": 1.5}, at | {"emitted": 3.0}))
    assert high.value / low.value == pytest.approx(2.0, rel=0.02)
    stand = Stand(make_table(at | {"emitted": 1.5}))
    chain = stand.speedups(load_drafter("eagle", stand.model), stand.crowd(1), 3)
    assert low.value == pytest.approx(chain[0](1.5))


def test_more_nodes_cost_more_where_the_target_computes() -> None:
    """At equal acceptance 20 nodes lose to 5: little at one request, about half at 64.

    64 x 21 tokens take 2 x 8e9 x 1344 FLOP, 22 ms at the H100's peak; 64 x 6 a roofline minimum of 6 ms.
    """
    at = {"depth": 3, "topk": 4, "emitted": 2.5}
    ratio = {}
    for batch in (1, 64):
        small, large = predict(make_table(at | {"k": 5, "batch": batch}, at | {"k": 20, "batch": batch}))
        ratio[batch] = large.value / small.value
    assert 0.9 < ratio[1] <= 1.0
    assert 0.4 < ratio[64] < 0.6
