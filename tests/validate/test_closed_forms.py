"""The walk against Leviathan's formula, and against the table that the formula was published with."""

from __future__ import annotations

from importlib.resources import files
from itertools import product

import pytest
import yaml

from kplan.validate.predict.closed_forms import predict
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
