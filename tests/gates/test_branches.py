"""What coverage's JSON says, counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gates.branches import Counts, below, by_file, packages, table


def summary(branches: int, taken: int, lines: int, run: int) -> dict[str, Any]:
    counted = {
        "num_branches": branches,
        "covered_branches": taken,
        "num_statements": lines,
        "covered_lines": run,
    }
    return {"summary": counted}


TOLD = {
    "files": {
        "simulator/kplan/rng.py": summary(0, 0, 10, 10),
        "/elsewhere/simulator/kplan/engine/price.py": summary(40, 30, 100, 100),
        "simulator/kplan/engine/load.py": summary(60, 60, 50, 50),
        "policies/kplan_policies/table.py": summary(10, 9, 20, 20),
        "tests/gates/branches.py": summary(99, 0, 99, 0),
    }
}


def test_branches_are_counted_apart_from_lines_and_by_package() -> None:
    sums = packages(by_file(TOLD))
    assert list(sums) == [
        "policies/kplan_policies",
        "simulator/kplan/engine",
        "simulator/kplan",
        "simulator/",
        "policies/",
    ]
    assert sums["simulator/kplan/engine"] == Counts(100, 90, 150, 150)
    assert sums["simulator/"] == Counts(100, 90, 160, 160)
    assert sums["simulator/"].share == 0.9
    assert sums["simulator/"].mixed == pytest.approx(250 / 260)
    assert sums["simulator/kplan"].share == 1.0  # no branch, none missed
    assert "simulator/kplan/engine/price.py" in "\n".join(table(sums, by_file(TOLD)))


def test_each_tree_must_reach_its_share_of_branches_not_of_lines() -> None:
    assert below({"simulator/": Counts(10, 9, 1, 0), "policies/": Counts(10, 9, 1, 0)}) == []
    assert below({"simulator/": Counts(1000, 899, 9000, 9000), "policies/": Counts(10, 10, 1, 1)}) == [
        "coverage: simulator/ takes 89.9% of its branches, 90% is asked for"
    ]


def test_a_tree_that_was_not_measured_falls_short() -> None:
    assert below({"simulator/": Counts(), "policies/": Counts(10, 9, 1, 1)}) == [
        "coverage: nothing of simulator/ was measured"
    ]
