"""``kplan leaderboard``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.groups import LIMITS, RUNS, SERVED, Group, grouped, of
from kplan.cli.tables import Column

if TYPE_CHECKING:
    from kplan.search.board_rows import Board, Row, Standing

DEFAULT_REPLICATIONS = 5
BEST_FEW = 3
"""Policies of each cell that are shown, beside its oracle."""

Repeated = list[str] | None

_SERVED = of(SERVED, RUNS, LIMITS, without="proposer workload traces dataset")


@grouped
def leaderboard(
    batch: Annotated[
        str | None,
        typer.Option("--batch", help="clients of closed loops: 1,8,32,128 [1,8,32,128 without --qps]"),
    ] = None,
    qps: Annotated[
        str | None,
        typer.Option("--qps", help="requests/s of open loops: 8,32,64 [8,32,64 without --batch]"),
    ] = None,
    workload: Annotated[
        Repeated,
        typer.Option(
            "--workload",
            autocompletion=complete.shipped("workloads"),
            help="workload profile, may be repeated [sharegpt]",
        ),
    ] = None,
    traces: o.Traces = None,
    dataset: Annotated[
        Repeated,
        typer.Option(
            "--dataset", help="data set of --traces that hold several, may be repeated [all in one]"
        ),
    ] = None,
    proposer: Annotated[
        Repeated,
        typer.Option(
            "--proposer",
            autocompletion=complete.proposers,
            help="eagle3, ngram, ngram+eagle3 ..., may be repeated [eagle3]",
        ),
    ] = None,
    policy: Annotated[
        Repeated,
        typer.Option(
            "--policy",
            autocompletion=complete.policies,
            help="one more policy, may be repeated: table:1-64=3,65-=1, my.py:MyPolicy ...",
        ),
    ] = None,
    only: Annotated[
        Repeated,
        typer.Option(
            "--only",
            autocompletion=complete.policies,
            help="these alone, with no speculation and the oracle; may be repeated: fixed, ucb ...",
        ),
    ] = None,
    workers: o.Workers = None,
    cluster: o.Cluster = None,
    served: Group = _SERVED,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder for leaderboard.parquet, leaderboard.json and leaderboard.html"),
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="print every row")] = False,
    json: o.Json = False,
) -> int:
    """Hold every policy against every other: speedup, share of the oracle's gain, regret and switches of K.

    On the board are no speculation, every fixed K, the greedy table, every registered policy that needs no
    argument, and those of --policy; policies that choose the proposer where --proposer joins several. An open
    loop is served by as many replicas as no speculation needs to keep up, unless --replicas says.
    """
    from kplan.cli.output import print_json, say
    from kplan.cli.paths import check_folder
    from kplan.cli.progress import progress
    from kplan.errors import InputError

    batches, rates = (
        () if text is None else o.numbers(name, text) for name, text in (("--batch", batch), ("--qps", qps))
    )
    if bad := [one for one in batches if one != int(one) or one < 1]:
        raise InputError("--batch", f"{bad[0]:g}", "clients are counted", "give whole numbers from 1")
    if traces is not None and workload:
        raise InputError("--workload", workload[0], "does not go with --traces", "leave one out")
    if dataset and traces is None:
        raise InputError("--dataset", dataset[0], "is one of recorded traces", "give --traces FILE")
    first = {"concurrency": int(batches[0])} if batches else {"qps": rates[0] if rates else 1.0}
    flags = {**served, **first, "traces": traces, "proposer": proposer[0] if proposer else None}
    question = o.scenario_of(None, flags, {"replications": DEFAULT_REPLICATIONS})
    from kplan.report import render_leaderboard
    from kplan.search.board import play
    from kplan.search.board_cells import Asked
    from kplan.search.board_file import write
    from kplan.search.board_rows import judge, record, told
    from kplan.simulate.parallel import cores

    if out is not None:
        check_folder("--out", out)
    asked = Asked(
        batches=tuple(int(one) for one in batches),
        rates=rates,
        workloads=tuple((dataset if traces else workload) or ()),
        proposers=tuple(proposer or ()),
        policies=tuple(policy or ()),
        only=tuple(only or ()),
        workers=cores() if workers is None else workers,
        cluster=cluster,
    )
    with progress() as tell:
        board = judge(play(question, asked, tell))
    written = [] if out is None else write(board, render_leaderboard(told(board)), out)
    if json:
        print_json(record(board) | {"files": [str(path) for path in written]})
        return 0
    _show(board, all_rows=all_rows)
    for path in written:
        say(f"wrote {path}")
    return 0


STANDING_COLUMNS = (
    "policy",
    "oracle share",
    Column("95%", spare=2),
    "worst",
    "worst regret %",
    Column("cells", spare=1),
    "falls behind",
)
ROW_COLUMNS = (
    "policy",
    "speedup",
    Column("95%", spare=3),
    "oracle share",
    Column("95%", spare=4),
    "regret %",
    Column("switches", spare=2),
    "K",
    Column("TPOT ms", spare=1),
)


def _show(board: Board, *, all_rows: bool) -> None:
    from kplan.cli.output import prose, say
    from kplan.cli.tables import print_table

    seeds = board.played.scenario.replications
    cells = len(board.played.cells)
    print_table(
        f"ranking over {cells} cells, {seeds} seeds each (* not run by the engine today)",
        STANDING_COLUMNS,
        [_standing(one) for one in board.summary],
    )
    for cell in board.played.cells:
        at = (cell.workload, cell.proposer, cell.closed, cell.load)
        rows = [
            row for row in board.rows if (row.workload, row.proposer, row.kind == "closed", row.load) == at
        ]
        words = f"batch {cell.load:g}" if cell.closed else f"{cell.load:g} QPS"
        words += f" on {cell.replicas} replicas" if cell.replicas > 1 else ""
        shown = rows if all_rows else _best(rows)
        say()
        print_table(f"{cell.workload}, {cell.proposer}, {words}", ROW_COLUMNS, [_row(one) for one in shown])
    for note in board.played.notes:
        prose(f"note: {note}")


def _best(rows: Sequence[Row]) -> list[Row]:
    """The oracle, and the policies of least regret; where all saturate, those of the most tokens."""
    rivals = [row for row in rows if not row.oracle]
    kept = [row for row in rivals if row.regret is not None]
    best = sorted(kept, key=lambda row: row.regret or 0.0) or sorted(rivals, key=lambda row: -row.tok_s)
    return [*(row for row in rows if row.oracle), *best[:BEST_FEW]]


def _standing(one: Standing) -> list[str]:
    return [
        one.policy + ("" if one.runnable else " *"),
        _figure(one.mean_oracle_share, ".3f"),
        _interval(one.ci95, ".3f"),
        _figure(one.worst_oracle_share, ".3f"),
        _figure(one.worst_regret, ".1f"),
        f"{one.cells}",
        f"{one.fallen_behind}" if one.fallen_behind else "-",
    ]


def _row(row: Row) -> list[str]:
    return [
        row.policy + ("" if row.runnable else " *"),
        "saturated" if row.saturated else _figure(row.speedup, ".3f") + ("" if row.steady else " ?"),
        _interval(row.ci95, ".3f"),
        _figure(row.oracle_share, ".3f"),
        _interval(row.oracle_share_ci95, ".3f"),
        _figure(row.regret, ".1f"),
        f"{row.switches:.1f}",
        f"{row.mean_k:.2f}",
        _figure(row.tpot_ms, ".3f"),
    ]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _interval(ci95: tuple[float, float] | None, form: str) -> str:
    return "-" if ci95 is None else f"{ci95[0]:{form}}..{ci95[1]:{form}}"
