"""Data-parallel ranks that step together: each schedules for itself, the slowest sets the pace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kplan.engine.arrive import next_arrival
from kplan.engine.execute import commit
from kplan.engine.kernel import DONE, PAUSED
from kplan.engine.price import price
from kplan.engine.replica import Replica
from kplan.engine.schedule import schedule
from kplan.engine.state import ENDED, I64, PREEMPTED


class Group:
    """Ranks of one server. One without work waits through the step of the others, as its dummy batch would.

    Args:
        ranks: replicas that share their records and are handed their requests one by one.
    """

    def __init__(self, ranks: Sequence[Replica]) -> None:
        self.ranks = tuple(ranks)

    @property
    def clock_s(self) -> float:
        """Seconds at which the latest step ended."""
        return self.ranks[0].clock_s

    @property
    def ended(self) -> I64:
        """Numbers of the requests that finished in the latest step."""
        return np.concatenate([rank.ended for rank in self.ranks])

    def advance(self, steps: int = 1) -> int:
        """Run up to ``steps`` steps: PAUSED, or DONE when no rank has any work."""
        for _ in range(steps):
            if not self._step():
                return DONE
        return PAUSED

    def _step(self) -> bool:
        batches = self._build()
        if not any(batches):
            ahead = min(float(next_arrival(rank.records, rank.machine)) for rank in self.ranks)
            if not np.isfinite(ahead):
                return False
            for rank in self.ranks:
                rank.machine.clock[:] = max(rank.clock_s, ahead)
            batches = self._build()
        working = [
            (rank, rank.decide(batch)) for rank, batch in zip(self.ranks, batches, strict=True) if batch
        ]
        prices = [
            price(
                rank.records, rank.machine, rank.limits, rank.traces, rank.cost,
                choice.k, choice.each, rank.k_each,
            )
            for rank, choice in working
        ]  # fmt: skip
        slowest_s = max(map(sum, prices))
        start_s = self.clock_s
        for (rank, choice), parts in zip(working, prices, strict=True):
            step_s = commit(
                rank.records, rank.machine, rank.limits, rank.traces, parts, slowest_s - sum(parts),
                choice.k, choice.each, rank.k_each,
            )  # fmt: skip
            rank.learn(choice, float(step_s))
        for rank in self.ranks:
            rank.machine.clock[:] = start_s + slowest_s, start_s
        return True

    def _build(self) -> list[int]:
        """Build every rank's next step; batch sizes, 0 for a rank that has nothing to do."""
        batches = []
        for rank in self.ranks:
            rank.make_log_room()
            batch = int(schedule(rank.records, rank.machine, rank.limits))
            clock = rank.machine.clock
            while batch == 0 and (rank.machine.counters[PREEMPTED] > 0 or clock[1] < clock[0]):
                clock[1] = clock[0]  # as in next_batch: the last one preempted itself, or nothing was ahead
                batch = int(schedule(rank.records, rank.machine, rank.limits))
            if batch == 0:
                rank.machine.counters[ENDED] = 0  # of a step that it sits out
            batches.append(batch)
        return batches
