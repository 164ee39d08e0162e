"""A scheduler that runs a step ahead sees an arrival a step later.

Read from the released loops: vLLM's ``EngineCore.step_with_batch_queue`` schedules the next batch before it
waits for the last one, SGLang's ``Scheduler.event_loop_overlap`` launches one before it processes the last.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kplan.engine import Load, Replica
from tests.engine.scenes import bounds, make_load, price


class One:
    def choose_k(self, step: object) -> int:
        return 1

    def table(self, max_batch: int) -> np.ndarray:
        return np.ones(max_batch + 1, np.int64)


def served(load: Load, overlap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Admissions of the requests, and the start of every step."""
    starts: list[np.ndarray] = []
    replica = Replica(
        load,
        bounds(load, overlap=overlap),
        price(),
        One(),
        record=lambda steps: starts.append(steps["start_s"]),
    )
    replica.advance()
    replica.flush()
    return replica.requests.admitted_s, np.concatenate(starts)


def test_an_arrival_joins_the_step_after_the_next_one_under_overlap() -> None:
    """The first request runs alone; the second arrives in the middle of its step 3 (numbered from 0)."""
    load = make_load(2, output=(50, 50))
    load = replace(load, arrival_s=np.array([0.0, 1e6]))
    _, starts = served(load, overlap=False)
    middle = (starts[3] + starts[4]) / 2
    load = replace(load, arrival_s=np.array([0.0, middle]))
    for overlap, joins in ((False, 4), (True, 5)):
        admitted, steps = served(load, overlap=overlap)
        assert admitted[1] == steps[joins]
        np.testing.assert_array_equal(steps[: joins + 1], starts[: joins + 1])


def test_an_idle_server_takes_an_arrival_at_once() -> None:
    load = replace(make_load(2, output=(5, 5)), arrival_s=np.array([1.0, 1e6]))
    admitted, _ = served(load, overlap=True)
    np.testing.assert_array_equal(admitted, load.arrival_s)


def test_a_server_that_ran_dry_takes_who_arrived_during_its_last_step() -> None:
    """Nothing was scheduled ahead, so nothing was missed: admitted at the end of the only step."""
    load = replace(make_load(2, output=(1, 1)), arrival_s=np.array([0.0, 1e-6]))
    admitted, steps = served(load, overlap=True)
    assert admitted[1] == steps[1]
    assert steps[1] > load.arrival_s[1]
