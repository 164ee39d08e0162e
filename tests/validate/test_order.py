"""Policies ranked on a recording and on a model of its other half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kplan.acceptance import load_traces
from kplan.errors import InputError
from kplan.validate.order import POLICIES, differing, judge_order
from tests.acceptance.made import flat_model, set_of


@pytest.mark.parametrize(
    ("other", "pairs"),
    [
        ({"a": 10.0, "b": 10.5, "c": 9.0}, []),
        ({"a": 10.0, "b": 10.2, "c": 9.0}, []),
        ({"a": 10.5, "b": 10.0, "c": 9.0}, [("a", "b")]),
        ({"a": 10.0, "b": 10.05, "c": 9.0}, [("a", "b")]),
        ({"a": 10.0, "b": 10.5, "c": 10.45}, [("a", "c"), ("b", "c")]),
    ],
)
def test_pairs_that_rank_otherwise(other: dict[str, float], pairs: list[tuple[str, str]]) -> None:
    assert differing({"a": 10.0, "b": 10.3, "c": 9.0}, other) == pairs


def test_a_tie_at_its_very_edge_is_no_difference() -> None:
    assert differing({"a": 1.009, "b": 1.0}, {"a": 1.012, "b": 1.0}) == []
    assert differing({"a": 1.009, "b": 1.0}, {"a": 1.021, "b": 1.0}) == [("a", "b")]


def test_a_proposer_that_was_not_recorded_is_named() -> None:
    with pytest.raises(InputError, match="it has: made"):
        judge_order(set_of(flat_model([0.5]).generate(0, np.full(60, 30))), "eagle3")


@pytest.mark.shared
def test_a_model_ranks_the_policies_as_the_half_it_has_not_seen(shared_dir: Path) -> None:
    """One of nine, at two of three batches; ``kplan traces fit --judge-order`` has them all."""
    traces = load_traces(shared_dir / "data/acceptance_traces.parquet", "gsm8k")
    for order in judge_order(traces, "eagle3", batches=(1, 32)):
        assert list(order.recorded) == list(POLICIES)
        assert order.model_differs == []
        assert order.recorded["oracle"] < order.recorded["fixed:3"] < order.recorded["off"]
