"""Trees: which drafter a row means, and what its speedup is made of."""

from __future__ import annotations

import pytest

from kplan.profiles import load_drafter, load_model
from kplan.validate.judge import judge
from kplan.validate.load import load_tables
from kplan.validate.predict.steady import Stand
from kplan.validate.predict.trees import predict, tree_of
from kplan.validate.table import Metric, PublishedRow, PublishedTable, Trust

SHIPPED = ("illusion-fig2-qwen3-8b", "illusion-fig2-llama-3-70b")


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
    assert tree_of(chain, 3, 1, 3) == chain
    tree = tree_of(chain, 3, 4, 20).tree
    assert tree is not None
    assert (tree.depth, tree.topk, tree.verified) == (3, 4, 20)


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


@pytest.mark.parametrize("name", SHIPPED)
def test_the_advantage_at_batch_1_is_lost_by_64(name: str) -> None:
    """Every speedup on the measured side of 1, trees above the chain at batch 1 and below it from 64 on."""
    (table,) = load_tables([name])
    judged = judge(table, predict(table))
    assert judged.sign_ok == 1.0
    at = {(row.row.at["batch"], row.row.at["k"]): row for row in judged.rows}
    for batch, above in ((1, True), (64, False), (128, False)):
        for nodes in (5, 20):
            chain, tree = at[batch, 3], at[batch, nodes]
            assert (tree.row.measured > chain.row.measured) is above
            assert (tree.prediction.value > chain.prediction.value) is above


@pytest.mark.parametrize("host_request_s", [0.0, 7e-6])
@pytest.mark.parametrize("name", SHIPPED)
def test_no_sign_rests_on_where_in_its_range_the_host_time_lies(name: str, host_request_s: float) -> None:
    (table,) = load_tables([name])
    moved = table.model_copy(update={"settings": {**table.settings, "host_request_s": host_request_s}})
    assert judge(moved, predict(moved)).sign_ok == 1.0


def test_host_time_per_request_shows_in_a_synchronous_step() -> None:
    """At batch 64 without overlap 10 us a request are 0.64 ms of every step that decodes."""
    settings = {"scenario": {"prompt_tokens": 1, "output_tokens": 200, "engine": "sglang"}}
    settings |= {"engine_traits": {"sync_methods": ["EAGLE"]}, "host_request_s": 0.0}
    free = make_table({"batch": 64.0}).model_copy(update={"settings": settings})
    paid = free.model_copy(update={"settings": settings | {"host_request_s": 1e-5}})
    step_s = []
    for table in (free, paid):
        stand = Stand(table)
        (latency, *_) = stand.latencies(load_drafter("eagle", stand.model), 3)
        step_s.append(float(latency.step_seconds(stand.crowd(64).decode(3)).total_s))
    assert step_s[1] - step_s[0] == pytest.approx(6.4e-4)
