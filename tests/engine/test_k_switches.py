"""Steps that ask for another K than the step before: counted as the step records and the answers have it."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.engine import Replica
from kplan.engine.state import W_K_SWITCHES, W_STEPS, Steps
from kplan.policy import StepView
from kplan_policies.table import BatchTable, Fixed
from tests.engine.scenes import bounds, make_load, price


class Says:
    """Says one K after the other, and keeps what it said."""

    def __init__(self, pattern: tuple[int, ...]) -> None:
        self.pattern, self.said = pattern, list[int]()

    def choose_k(self, step: StepView) -> int:
        self.said.append(self.pattern[len(self.said) % len(self.pattern)])
        return self.said[-1]


def test_every_answer_that_differs_from_the_last_counts() -> None:
    load, policy = make_load(60), Says((3, 3, 1, 2, 2))
    replica = Replica(load, bounds(load), price(), policy)
    replica.advance()
    sums = replica.machine.sums
    assert sums[W_STEPS] == len(policy.said) > 50
    assert sums[W_K_SWITCHES] == sum(a != b for a, b in zip(policy.said, policy.said[1:], strict=False))


@pytest.mark.parametrize("compiled", [True, False])
def test_a_table_counts_as_its_steps_are_recorded(compiled: bool) -> None:
    load, kept = make_load(60), list[Steps]()
    table = BatchTable([(1, 2, 3), (3, None, 1)])
    replica = Replica(load, bounds(load), price(), table, compiled=compiled, record=kept.append)
    replica.advance()
    replica.flush()
    k = np.concatenate(kept)["k"]
    assert replica.machine.sums[W_K_SWITCHES] == np.count_nonzero(np.diff(k)) > 0


def test_a_prefill_that_runs_alone_asks_for_nothing() -> None:
    load = make_load(60)
    replica = Replica(load, bounds(load, k_now=True, prefill_first=True), price(), Fixed(2))
    replica.advance()
    assert replica.machine.sums[W_STEPS] > 0
    assert replica.machine.sums[W_K_SWITCHES] == 0
