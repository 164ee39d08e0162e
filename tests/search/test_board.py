"""The leaderboard: figures of two runs of simulate, shares and regrets by hand, the same whoever works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.search.board import Outcome, Played, play
from kplan.search.board_cells import Asked, Cell, lay_out
from kplan.search.board_file import write
from kplan.search.board_rows import Board, Row, judge, record
from kplan.search.single import simulate_one
from tests.search.servers import dask_cluster

VALUES = {
    "qps": 4.0,
    "workload": "gsm8k",
    "max_k": 2,
    "max_num_seqs": 32,
    "requests": 120,
    "replications": 3,
    "seed": 5,
}
ASKED = Asked(batches=(4,), rates=(4.0,), only=("fixed", "greedy-table", "ucb"))

CALM = """
class CalmAtLoad:
    def __init__(self, k: int = 2, calm: int = 3) -> None:
        self.k, self.calm = k, calm

    def choose_k(self, step) -> int:
        print("a user's policy may print")
        return self.k if step.batch <= self.calm else 1


class Turns:
    def __init__(self) -> None:
        self.calls = 0

    def choose_k(self, step) -> int:
        self.calls += 1
        return 1 + self.calls // 3 % 2
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return make_scenario(VALUES)


@pytest.fixture(scope="module")
def played(scenario: Scenario) -> Played:
    return play(scenario, ASKED)


@pytest.fixture(scope="module")
def board(played: Played) -> Board:
    return judge(played)


def row(board: Board, policy: str, kind: str = "closed") -> Row:
    return next(one for one in board.rows if (one.policy, one.kind) == (policy, kind))


@pytest.mark.parametrize("load", [{"concurrency": 4}, {"qps": 4.0}])
def test_a_speedup_is_that_of_two_runs_of_simulate(board: Board, load: dict[str, float]) -> None:
    kept = {key: value for key, value in VALUES.items() if key != "qps"}
    one = simulate_one(make_scenario(kept | load | {"policy": "fixed:2"}))
    mine = row(board, "fixed:2", "open" if "qps" in load else "closed")
    assert one.result.tpot_ms is not None
    assert one.off.tpot_ms is not None
    assert mine.speedup == pytest.approx(one.off.tpot_ms.mean / one.result.tpot_ms.mean, rel=1e-12)
    assert mine.ci95 == pytest.approx(one.result.speedup_ci95, rel=1e-9)
    assert mine.tpot_ms == pytest.approx(one.result.tpot_ms.mean, rel=1e-12)
    assert mine.mean_k == pytest.approx(one.result.mean_k, rel=1e-12)
    assert mine.saturated is one.result.saturated is False


def test_shares_regrets_and_switches_by_hand(board: Board) -> None:
    for kind in ("closed", "open"):
        oracle, off, two = (row(board, name, kind) for name in ("oracle", "off", "fixed:2"))
        assert oracle.speedup is not None
        assert oracle.speedup > 1
        assert (oracle.oracle_share, oracle.oracle_share_ci95) == (1.0, pytest.approx((1.0, 1.0)))
        assert (off.oracle_share, off.oracle_share_ci95) == (0.0, pytest.approx((0.0, 0.0)))
        assert (off.speedup, off.switches) == (1.0, 0.0)
        assert two.speedup is not None
        assert two.oracle_share == pytest.approx((two.speedup - 1) / (oracle.speedup - 1))
        rivals = [one for one in board.rows if one.kind == kind and not one.oracle]
        best = min(one.tpot_ms for one in rivals if one.tpot_ms is not None)
        assert {one.policy for one in rivals if one.regret == 0} == {
            one.policy for one in rivals if one.tpot_ms == best
        }
        assert off.regret == pytest.approx(100 * (off.tpot_ms / best - 1) if off.tpot_ms else None)
        assert two.switches == row(board, "fixed:1", kind).switches == 0.0
        assert two.proposer_switches is None


def test_the_interval_of_a_share_is_that_of_a_ratio_of_means(played: Played, board: Board) -> None:
    cell, outcomes = played.cells[0], played.outcomes[0]
    at = {entry.name: i for i, entry in enumerate(cell.entries)}
    off, two, oracle = (
        np.array([one.tpot_s for one in outcomes[at[name]]]) for name in ("off", "fixed:2", "oracle")
    )
    mine = row(board, "fixed:2")
    assert mine.oracle_share is not None
    assert mine.oracle_share_ci95 is not None
    top, bottom = off / two - 1, off / oracle - 1
    bound = row(board, "oracle").speedup
    assert bound is not None
    spread = np.std(top - mine.oracle_share * bottom, ddof=1) / (bound - 1) / np.sqrt(3)
    low, high = mine.oracle_share_ci95
    assert (high - low) / 2 == pytest.approx(4.302652729911275 * spread)  # Student's t, 2 degrees of freedom
    assert (high + low) / 2 == pytest.approx(mine.oracle_share)


def test_one_and_two_workers_write_the_same_bytes(scenario: Scenario, board: Board, tmp_path: Path) -> None:
    again = judge(play(scenario, replace(ASKED, workers=2)))
    assert record(again) == record(board)
    for folder, one in (("one", board), ("two", again)):
        write(one, "<p>", tmp_path / folder)
    for name in ("leaderboard.parquet", "leaderboard.json", "leaderboard.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_workers_of_a_dask_cluster_give_the_same_board(
    scenario: Scenario, board: Board, tmp_path: Path
) -> None:
    with dask_cluster(tmp_path, 2) as dask:
        again = judge(play(scenario, replace(ASKED, cluster=dask.address)))
    assert record(again) == record(board)


def test_policies_of_a_users_file_join_and_changes_of_k_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CALM)
    texts = (f"{file}:CalmAtLoad", f"{file}:Turns")
    # of 39 requests nothing is left out: the window holds every step
    few = make_scenario(VALUES | {"requests": 39, "replications": 1})
    found = play(few, Asked(batches=(3,), policies=texts, only=texts))
    board = judge(found)
    assert [one.policy for one in board.rows] == ["off", "oracle", *texts]
    calm, turns = (row(board, text) for text in texts)
    assert calm.text == texts[0]
    assert (calm.switches, calm.mean_k) == (0.0, pytest.approx(row_of_two(few), rel=1e-12))
    # calls 1, 2 say K = 1, then three say 2, three 1 ...: the step of every third call differs
    steps = steps_of(found, 3)
    assert turns.switches == pytest.approx(1000 * (steps // 3) / steps)
    assert calm.ci95 is None
    assert (calm.runnable, calm.why_not) == (False, "its class declares no engine that runs it")


def row_of_two(scenario: Scenario) -> float:
    """Mean K of fixed:2, which CalmAtLoad is where no batch is above 3."""
    return row(judge(play(scenario, Asked(batches=(3,), only=("fixed:2",)))), "fixed:2").mean_k


def steps_of(played: Played, entry: int) -> int:
    return int(played.outcomes[0][entry][0].sums[4])  # W_STEPS


def changed(played: Played, policy: str, kind: str, **values: object) -> Board:
    """The board when one policy had measured something else in one cell."""

    def of(cell: Cell, number: int, runs: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        if cell.entries[number].name != policy or cell.closed is not (kind == "closed"):
            return runs
        return tuple(replace(one, **values) for one in runs)  # type: ignore[arg-type]

    outcomes = tuple(
        tuple(of(cell, number, runs) for number, runs in enumerate(all_runs))
        for cell, all_runs in zip(played.cells, played.outcomes, strict=True)
    )
    return judge(replace(played, outcomes=outcomes))


def test_a_saturated_policy_says_nothing_and_comes_last(played: Played, board: Board) -> None:
    found = changed(played, "greedy-table", "open", limit_qps=3.9)
    mine = row(found, "greedy-table", "open")
    assert mine.saturated
    none = (mine.speedup, mine.ci95, mine.oracle_share, mine.oracle_share_ci95, mine.regret, mine.tpot_ms)
    assert none == (None,) * 6
    assert (found.summary[-1].policy, found.summary[-1].fallen_behind) == ("greedy-table", 1)
    assert found.summary[-1].shares == found.summary[0].shares - 1
    assert all(one.fallen_behind == 0 for one in board.summary)


def test_where_no_speculation_saturates_regrets_remain(played: Played) -> None:
    found = changed(played, "off", "open", limit_qps=3.9)
    two = row(found, "fixed:2", "open")
    assert two.speedup is two.oracle_share is None
    assert two.regret is not None
    assert all(one.fallen_behind == 0 for one in found.summary)


def test_no_share_of_a_gain_that_is_none(played: Played) -> None:
    slow = max(one.tpot_s for runs in played.outcomes[0] for one in runs)
    found = changed(played, "oracle", "closed", tpot_s=slow)
    assert all(one.oracle_share is None for one in found.rows if one.kind == "closed")
    assert all(one.oracle_share is not None for one in found.rows if one.kind == "open")
    assert all(one.shares == 1 for one in found.summary)


def test_the_standing_is_the_mean_over_the_cells(board: Board) -> None:
    one = next(one for one in board.summary if one.policy == "fixed:1")
    shares = [found.oracle_share for found in board.rows if found.policy == "fixed:1"]
    regrets = [found.regret for found in board.rows if found.policy == "fixed:1"]
    assert None not in shares + regrets
    assert one.mean_oracle_share == pytest.approx(sum(one or 0.0 for one in shares) / 2)
    assert one.worst_regret == max(one or 0.0 for one in regrets)
    means = [one.mean_oracle_share for one in board.summary]
    assert means == sorted(means, key=lambda one: -(one or 0.0))


def test_the_table_has_a_column_for_every_figure(board: Board, tmp_path: Path) -> None:
    write(board, "<p>page", tmp_path)
    table = pq.read_table(tmp_path / "leaderboard.parquet")
    told = json.loads((tmp_path / "leaderboard.json").read_text())
    assert table.num_rows == len(told["rows"]) == 12
    for name, kind in {
        "workload": pa.string(), "proposer": pa.string(), "kind": pa.string(), "load": pa.float64(),
        "policy": pa.string(), "speedup": pa.float64(), "ci95_low": pa.float64(), "ci95_high": pa.float64(),
        "oracle_share": pa.float64(), "regret": pa.float64(), "switches": pa.float64(),
        "proposer_switches": pa.float64(), "saturated": pa.bool_(),
    }.items():  # fmt: skip
        assert table.schema.field(name).type == kind, name
    for made, said in zip(table.to_pylist(), told["rows"], strict=True):
        assert (made["ci95_low"], made["ci95_high"]) == tuple(said["ci95"])
        assert made["speedup"] == said["speedup"]
        assert made["proposer_switches"] is said["proposer_switches"] is None
    assert json.loads(table.schema.metadata[b"scenario_hash"]) == told["scenario_hash"]


def test_an_open_loop_gets_the_replicas_that_no_speculation_needs(scenario: Scenario, played: Played) -> None:
    limit = float(np.mean([one.limit_qps for one in played.outcomes[1][0]]))  # of off on one replica
    found = judge(play(scenario, Asked(batches=(2,), rates=(1.5 * limit,), only=("fixed:2",))))
    assert [row(found, "off", kind).replicas for kind in ("closed", "open")] == [1, 2]
    assert not row(found, "off", "open").saturated
    alone = scenario.model_copy(update={"replicas": 1})
    found = judge(play(alone, Asked(rates=(1.5 * limit,), only=("fixed:2",))))
    assert [one.replicas for one in found.rows] == [1] * 3
    assert row(found, "off", "open").saturated


@pytest.mark.parametrize(
    ("only", "told"), [((), True), (("fixed",), False), (("fixed", "context-table"), False)]
)
def test_who_is_left_out_is_told_where_it_was_to_be_shown(
    only: tuple[str, ...], told: bool, scenario: Scenario
) -> None:
    policies = ("context-table:1-32x0-2047=2,1-32x2048-=1",) if "context-table" in only else ()
    _, notes = lay_out(scenario, Asked(batches=(2,), only=only, policies=policies))
    assert any("context-table is left out" in note for note in notes) == told


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asked(batches=(2,), policies=("match-else",)), "no --proposer joins several"),
        (Asked(batches=(2,), policies=("fixed:3",)), "give --max-k 3"),
        (Asked(batches=(2,), only=("nobody",)), "is not on the board"),
        (Asked(batches=(121,)), "cannot keep 121 clients busy"),
        (Asked(workloads=("nowhere",)), "nowhere"),
        (Asked(batches=(2,), workers=0), "must be at least 1"),
    ],
)
def test_refusals_are_one_line(scenario: Scenario, asked: Asked, told: str) -> None:
    with pytest.raises(InputError, match=told):
        play(scenario, asked)


@pytest.mark.shared
def test_recorded_traces_by_data_set_with_two_proposers(shared_dir: Path) -> None:
    values = VALUES | {"traces": shared_dir / "data" / "acceptance_traces.parquet", "workload": "sharegpt"}
    asked = Asked(
        batches=(2,),
        workloads=("instructcoder", "gsm8k"),
        proposers=("eagle", "ngram+eagle"),
        only=("match-else",),
    )
    board = judge(play(make_scenario(values | {"requests": 60, "replications": 2, "max_k": 7}), asked))
    cells = list(dict.fromkeys((one.workload, one.proposer) for one in board.rows))
    assert cells == [(one, two) for one in asked.workloads for two in asked.proposers]
    assert [one.policy for one in board.rows if one.proposer == "eagle"] == ["off", "oracle"] * 2
    joint = [one for one in board.rows if one.proposer == "ngram+eagle" and one.workload == "instructcoder"]
    assert [one.policy for one in joint] == ["off", "combined-oracle", "match-else"]
    assert (joint[1].oracle_share, joint[0].proposer_switches) == (1.0, 0.0)
    assert joint[2].proposer_switches is not None
    assert joint[2].proposer_switches > 0
