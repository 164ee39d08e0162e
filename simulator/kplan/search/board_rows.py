"""What a leaderboard says: a row for every policy in every cell, and a ranking over all cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan import metrics
from kplan.engine.state import W_BATCH, W_DECODES, W_K_SWITCHES, W_PROPOSED, W_STEPS, W_SWITCHES
from kplan.formats import KEY, LEADERBOARD
from kplan.provenance import digest, file_digest, versions
from kplan.search.board import Outcome, Played
from kplan.search.board_cells import OFF, Cell, Entry
from kplan.search.evaluate import overload, why_not_runnable

F64 = NDArray[np.float64]
Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Row:
    """One policy in one cell. What a saturated run would say of its TPOT is None, and so is what rests on it.

    Attributes:
        kind: "closed": ``load`` clients keep one request each in flight; "open": ``load`` requests/s arrive.
        policy: its name on the board; ``text``: what ``--policy`` takes to run it there.
        speedup: mean TPOT of no speculation over its own, with the paired interval ``ci95``.
        oracle_share: (speedup - 1) / (speedup of the cell's oracle - 1); None where the oracle's interval
            holds 1: there is no gain to have a share of.
        regret: mean TPOT over that of the cell's best policy that is no oracle, less 1, in percent.
        switches: steps of 1,000 that asked for another deepest K than the step before.
        proposer_switches: request-steps of 1,000 whose drafts came from another proposer than the last; None
            with one proposer.
        steady: False where the window still holds some of the warm-up.
        oracle: it looks at the future.
    """

    workload: str
    proposer: str
    kind: str
    load: float
    replicas: int
    policy: str
    text: str
    speedup: float | None
    ci95: Interval
    oracle_share: float | None
    oracle_share_ci95: Interval
    regret: float | None
    regret_ci95: Interval
    switches: float
    proposer_switches: float | None
    tpot_ms: float | None
    tok_s: float
    mean_batch: float
    mean_k: float
    saturated: bool
    steady: bool
    oracle: bool
    runnable: bool
    why_not: str


@dataclass(frozen=True)
class Standing:
    """One policy over all cells; shares and regrets are None where no cell has one.

    Attributes:
        cells: cells that it was run in.
        shares: of them, those with a share of the oracle's gain, which the mean is over.
        mean_oracle_share: with an interval over the seeds, for these cells as they are.
        fallen_behind: cells that it saturates, though no speculation keeps up there.
    """

    policy: str
    cells: int
    shares: int
    mean_oracle_share: float | None
    ci95: Interval
    worst_oracle_share: float | None
    mean_regret: float | None
    worst_regret: float | None
    fallen_behind: int
    oracle: bool
    runnable: bool


@dataclass(frozen=True)
class Board:
    """The rows cell after cell, and the standings, the best first."""

    rows: tuple[Row, ...]
    summary: tuple[Standing, ...]
    played: Played = field(repr=False)


@dataclass(frozen=True)
class _Judged:
    """A row, and its share of the oracle's gain by seed (None without one)."""

    row: Row
    shares: F64 | None
    off_saturated: bool


def judge(played: Played) -> Board:
    """Turn what was measured into rows and standings."""
    judged = [
        one
        for cell, outcomes in zip(played.cells, played.outcomes, strict=True)
        for one in _cell_rows(cell, outcomes)
    ]
    names = dict.fromkeys(one.row.policy for one in judged)
    summary = [_standing([one for one in judged if one.row.policy == name]) for name in names]
    return Board(tuple(one.row for one in judged), tuple(sorted(summary, key=_rank)), played)


def _cell_rows(cell: Cell, outcomes: Sequence[Sequence[Outcome]]) -> list[_Judged]:
    timed = [_Timed(cell, entry, runs) for entry, runs in zip(cell.entries, outcomes, strict=True)]
    by_name = {one.entry.name: one for one in timed}
    off, oracle = by_name[OFF], by_name[cell.oracle]
    rivals = [one for one in timed if not one.saturated and not one.entry.spec.info.needs_future]
    best = min(rivals, key=lambda one: one.tpot_s, default=None)
    return [one.judged(off, oracle, best) for one in timed]


class _Timed:
    """A policy's replications in one cell, and its TPOT over all of their requests."""

    def __init__(self, cell: Cell, entry: Entry, runs: Sequence[Outcome]) -> None:
        self.cell, self.entry, self.runs = cell, entry, runs
        limit = float(np.mean([run.limit_qps for run in runs]))
        self.saturated = overload(cell.setup, runs, limit) > 0
        self.tpots = np.array([run.tpot_s for run in runs])
        self.tpot_s = float(np.average(self.tpots, weights=[run.requests for run in runs]))
        self.sums: F64 = np.sum([run.sums for run in runs], axis=0)

    def faster(self, base: _Timed) -> tuple[float, F64] | None:
        """TPOT of ``base`` over its own: over all requests, and (R,) by seed; None if one is saturated."""
        if self.saturated or base.saturated:
            return None
        return base.tpot_s / self.tpot_s, base.tpots / self.tpots

    def judged(self, off: _Timed, oracle: _Timed, best: _Timed | None) -> _Judged:
        """Its row."""
        pair = self.faster(off)
        share = None if pair is None else _share(pair, oracle.faster(off))
        behind = (
            None if best is None or self.saturated else (self.tpot_s / best.tpot_s, self.tpots / best.tpots)
        )
        regret_ci95 = None if behind is None else metrics.mean_interval(behind[1], behind[0])
        steps, decodes = self.sums[W_STEPS], self.sums[W_DECODES]
        setup, spec, scenario = self.cell.setup, self.entry.spec, self.cell.setup.scenario
        bins = np.sum([run.bins for run in self.runs], axis=0)
        why_not = why_not_runnable(setup, spec)
        row = Row(
            workload=self.cell.workload,
            proposer=scenario.proposer,
            kind="closed" if self.cell.closed else "open",
            load=self.cell.load,
            replicas=self.cell.replicas,
            policy=self.entry.name,
            text=spec.text,
            speedup=None if pair is None else pair[0],
            ci95=None if pair is None else metrics.mean_interval(pair[1], pair[0]),
            oracle_share=None if share is None else share[0],
            oracle_share_ci95=None if share is None else metrics.interval(share[1], share[0]),
            regret=None if behind is None else 100 * (behind[0] - 1),
            regret_ci95=None
            if regret_ci95 is None
            else (100 * (regret_ci95[0] - 1), 100 * (regret_ci95[1] - 1)),
            switches=_per_1000(self.sums[W_K_SWITCHES], steps),
            proposer_switches=None if setup.mix is None else _per_1000(self.sums[W_SWITCHES], decodes),
            tpot_ms=None if self.saturated else 1e3 * self.tpot_s,
            tok_s=float(np.mean([run.tok_s for run in self.runs])),
            mean_batch=float(self.sums[W_BATCH] / steps),
            mean_k=float(self.sums[W_PROPOSED] / decodes),
            saturated=self.saturated,
            steady=self.saturated or metrics.steadiness(bins, sum(run.series for run in self.runs)).steady,
            oracle=spec.info.needs_future,
            runnable=not why_not,
            why_not=why_not,
        )
        return _Judged(row, None if share is None else share[1], off.saturated)


def _per_1000(count: float, of: float) -> float:
    return float(1000 * count / of) if of else 0.0


def _share(mine: tuple[float, F64], oracle: tuple[float, F64] | None) -> tuple[float, F64] | None:
    """Share of the oracle's gain, and (R,) by seed; None where the oracle's interval holds 1.

    By seed to first order, as the interval of a ratio of means takes it: a quotient of each seed would blow
    up where the oracle gains little.
    """
    if oracle is None:
        return None
    gain = oracle[0] - 1
    low, _ = metrics.interval(oracle[1], oracle[0]) or (oracle[0], oracle[0])
    if low <= 1:
        return None
    share = (mine[0] - 1) / gain
    return share, share + ((mine[1] - 1) - share * (oracle[1] - 1)) / gain


def _standing(judged: Sequence[_Judged]) -> Standing:
    """One policy over its cells."""
    rows = [one.row for one in judged]
    shares = [one.row.oracle_share for one in judged if one.row.oracle_share is not None]
    by_seed = [one.shares for one in judged if one.shares is not None]
    regrets = [row.regret for row in rows if row.regret is not None]
    mean = float(np.mean(shares)) if shares else None
    return Standing(
        policy=rows[0].policy,
        cells=len(rows),
        shares=len(shares),
        mean_oracle_share=mean,
        ci95=metrics.interval(np.mean(by_seed, axis=0), mean) if by_seed else None,
        worst_oracle_share=min(shares, default=None),
        mean_regret=float(np.mean(regrets)) if regrets else None,
        worst_regret=max(regrets, default=None),
        fallen_behind=sum(one.row.saturated and not one.off_saturated for one in judged),
        oracle=rows[0].oracle,
        runnable=all(row.runnable for row in rows),
    )


def _rank(one: Standing) -> tuple[int, float, float]:
    """Keeping up first, then the largest mean share, then the smallest worst regret."""
    share = float("-inf") if one.mean_oracle_share is None else one.mean_oracle_share
    regret = float("inf") if one.worst_regret is None else one.worst_regret
    return one.fallen_behind, -share, regret


@dataclass(frozen=True)
class Told:
    """What the page of a board shows; of one that was just played, or from its file."""

    rows: tuple[Row, ...]
    summary: tuple[Standing, ...]
    notes: tuple[str, ...]
    model: str
    hardware: str
    engine: str
    replications: int
    versions: dict[str, str] = field(default_factory=versions)


def told(board: Board) -> Told:
    """Of a board that was just played."""
    scenario = board.played.scenario
    return Told(
        board.rows, board.summary, board.played.notes, scenario.model, scenario.hardware, scenario.engine,
        scenario.replications,
    )  # fmt: skip


def record(board: Board) -> dict[str, Any]:
    """All of it as JSON; the same for any number of workers."""
    played = board.played
    scenario = played.scenario.model_dump(mode="json", exclude={"policy", "qps", "concurrency", "traces"})
    if played.scenario.traces is not None:
        path = played.scenario.traces
        scenario |= {"traces": path.name, "traces_hash": file_digest(path)}
    return {
        KEY: LEADERBOARD.version,
        "kind": "simulated",
        "rows": [asdict(row) for row in board.rows],
        "summary": [asdict(one) for one in board.summary],
        "notes": list(played.notes),
        "replications": played.scenario.replications,
        "seed": played.scenario.seed,
        "scenario": scenario,
        "scenario_hash": digest(scenario),
        "versions": versions(),
    }
