"""The walk against Leviathan's formula, and against the table that the formula was published with."""

from __future__ import annotations

from importlib.resources import files
from itertools import product

import numpy as np
import pytest
import yaml

from kplan.latency import StepShape, StepTime
from kplan.search.candidates import greedy_table, rates, walk_curve
from kplan.validate.predict.closed_forms import iid_trace, predict
from kplan.validate.table import PublishedTable

HALF_DIGIT = 0.005


def formula(alpha: float, gamma: int, c: float) -> float:
    """Leviathan et al. 2023, Theorem 3.8."""
    return (1 - alpha ** (gamma + 1)) / ((1 - alpha) * (gamma * c + 1))


@pytest.fixture(scope="module")
def table() -> PublishedTable:
    text = (files("kplan_profiles") / "published/leviathan-expected.yaml").read_text()
    return PublishedTable.model_validate(yaml.safe_load(text))


def test_the_walk_gives_leviathans_speedup(table: PublishedTable) -> None:
    """Within 1% of the formula, at every alpha, gamma and c of the paper's table."""
    assert len(table.rows) == 12
    for row, found in zip(table.rows, predict(table), strict=True):
        at = row.at
        expected = formula(float(at["alpha"]), int(at["gamma"]), float(at["c"]))
        assert found.value == pytest.approx(expected, rel=0.005)


def test_the_published_speedups_are_the_formulas_within_their_rounding(table: PublishedTable) -> None:
    """alpha and c are given to two decimals, the speedup to one."""
    for row in table.rows:
        alpha, gamma, c = float(row.at["alpha"]), int(row.at["gamma"]), float(row.at["c"])
        corners = [
            formula(alpha + da, gamma, c + dc)
            for da, dc in product((-HALF_DIGIT, HALF_DIGIT), (-HALF_DIGIT, HALF_DIGIT))
        ]
        assert min(corners) - 0.05 <= row.measured <= max(corners) + 0.05


class EightTokensAtOnce:
    """A machine that works on eight tokens in one unit of time, and drafts for nothing."""

    def step_seconds(self, shape: StepShape) -> StepTime:
        zero = np.zeros(np.shape(shape.decode_tokens))
        return StepTime(np.ceil(np.asarray(shape.decode_tokens) / 8), zero, zero, zero)


def test_the_machine_that_fits_eight_tokens() -> None:
    """Drafts accepted at 0.7. One request with K = 3: 1 + 0.7 + 0.49 + 0.343 = 2.533 tokens in one unit.

    Eight requests fill it without drafts, one unit a token each; K = 3 takes 4 / 2.533 = 1.58, K = 1 takes
    2 / 1.7 = 1.18. So drafting pays for one request and not for eight.
    """
    curve = walk_curve(iid_trace(0.7), 3)
    rate = rates(EightTokensAtOnce(), curve, 8, 100.0)  # type: ignore[arg-type]  # only step_seconds is used
    assert rate[0, 3] / rate[0, 0] == pytest.approx(2.533, rel=0.01)
    assert 8 / rate[7] == pytest.approx([1.0, 2 / 1.7, 3 / 2.19, 4 / 2.533], rel=0.01)
    table = greedy_table(rate)
    assert (table[0].k, table[-1].k) == (3, 0)
