"""``kplan leaderboard``: every policy on every workload, proposer and load, all on the same requests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.config.scenario import Scenario
from kplan.errors import InputError
from kplan.search.board_cells import Asked, Cell, lay_out
from kplan.search.executor import open_workers
from kplan.simulate import run_policy, sustained_qps
from kplan.telling import Tell, counted, silent


@dataclass(frozen=True)
class Task:
    """One policy on one replication of one cell, by their numbers."""

    cell: int
    entry: int
    replication: int


@dataclass(frozen=True)
class Outcome:
    """What one task measured.

    Attributes:
        tpot_s: mean over the ``requests`` of its window that have one.
        tok_s: output tokens/s of all replicas.
        limit_qps: requests/s that all replicas sustain; infinite in a closed loop.
        saturated: the backlog grew, by more than chance explains.
        sums: (SUMS,) window sums (see kplan.engine.state).
        bins: (BINS, 3) the window in slices, of so many ``series``.
    """

    tpot_s: float
    requests: int
    tok_s: float
    limit_qps: float
    saturated: bool
    sums: NDArray[np.float64]
    bins: NDArray[np.float64]
    series: int


@dataclass(frozen=True)
class Cells:
    """The job of a leaderboard: every cell, ``run`` one task at a time."""

    all: tuple[Cell, ...]

    def tasks(self) -> Iterator[Task]:
        """Every policy on every replication, cell after cell."""
        for number, cell in enumerate(self.all):
            for entry in range(len(cell.entries)):
                for replication in range(len(cell.drawn)):
                    yield Task(number, entry, replication)

    def run(self, task: Task) -> Outcome:
        """Simulate one policy on the requests of one cell and seed."""
        cell = self.all[task.cell]
        setup, spec, drawn = cell.setup, cell.entries[task.entry].spec, cell.drawn[task.replication]
        run = run_policy(setup, spec, drawn, replicas=cell.replicas)
        if not run.mean_tpot_s > 0:
            raise InputError(
                "requests", run.requests, f"too few to measure {cell.workload}", "give more with --requests"
            )
        limit = math.inf if setup.rate is None else sustained_qps(setup, spec, drawn) * cell.replicas
        return Outcome(
            tpot_s=run.mean_tpot_s,
            requests=int(np.isfinite(run.tpot_s).sum()),
            tok_s=run.output_tok_s,
            limit_qps=limit,
            saturated=run.saturated,
            sums=run.sums,
            bins=run.bins,
            series=len(run.window_s),
        )


@dataclass(frozen=True)
class Played:
    """Every cell with what its policies measured.

    Attributes:
        outcomes: by cell, entry and replication.
        notes: what was left out or runs as something else.
    """

    scenario: Scenario
    cells: tuple[Cell, ...]
    outcomes: tuple[tuple[tuple[Outcome, ...], ...], ...]
    notes: tuple[str, ...]


def play(scenario: Scenario, asked: Asked, tell: Tell = silent) -> Played:
    """Run every policy in every cell.

    The same arguments give the same outcomes, whatever the workers. A script that calls this needs the usual
    ``if __name__ == "__main__":``, for local workers import it.

    Args:
        tell: told how many runs are done, of how many.

    Raises:
        InputError: a name, a load or a combination that no profile covers; a policy that joins no cell.
    """
    cells, notes = lay_out(scenario, asked)
    job = Cells(cells)
    tasks = list(job.tasks())
    count = counted(tell, "simulating every policy", len(tasks))
    with open_workers(job, asked.workers, asked.cluster) as workers:
        found = iter(workers.map(tasks, count))
    outcomes = tuple(tuple(tuple(next(found) for _ in cell.drawn) for _ in cell.entries) for cell in job.all)
    return Played(scenario, job.all, outcomes, notes)
