"""``kplan report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.config.plan import Plan


def report(
    run: Annotated[
        Path,
        typer.Argument(help="plan.json or leaderboard.json, or the folder that one was written to"),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="page to write [report.html or leaderboard.html beside RUN's file]"),
    ] = None,
    json: o.Json = False,
) -> int:
    """Draw the page of a run again, one HTML file that opens with the network off, and say what would change
    the answer of a plan.

    A plan of an older release lacks what its pictures of other loads are drawn from: those are left out.
    """
    from kplan.cli.files import read_plan
    from kplan.cli.output import print_json, say
    from kplan.cli.paths import check_outputs
    from kplan.files import write_text
    from kplan.report import render_report

    source, page = _found(run)
    target = source.parent / page if out is None else out
    check_outputs({"--out": target}, [source])
    plan = None if source.name.startswith("leaderboard") else read_plan(source)
    write_text(_board(source) if plan is None else render_report(plan), target)
    if json:
        print_json({"files": [str(target)]})
        return 0
    if plan is not None:
        _print_changes(plan)
    say(f"wrote {target}")
    return 0


PAGES = {"plan.json": "report.html", "leaderboard.json": "leaderboard.html"}
"""File of a run -> its page; of both in one folder, the first."""


def _found(run: Path) -> tuple[Path, str]:
    """The file of a run, and the name of its page. Raises InputError where a folder holds none."""
    from kplan.errors import InputError
    from kplan.files import check_not_cut

    if not run.is_dir():
        return run, PAGES.get(run.name, "report.html")
    for name, page in PAGES.items():
        if (run / name).is_file():
            return run / name, page
    for name in PAGES:
        check_not_cut("RUN", run / name)
    raise InputError(
        "RUN", str(run), f"the folder holds no {' or '.join(PAGES)}", "name one written with --out"
    )


def _print_changes(plan: Plan) -> None:
    """What would change the answer of a plan, where the plan knows: a line for every input changed."""
    from kplan.cli.tables import print_table

    found = plan.evidence.sensitivity if plan.evidence else None
    if found is None:
        return
    rows = []
    for one in found.changes:
        kept = one.tpot_ms[one.kept_k]
        best = None if one.best_k is None else one.tpot_ms[one.best_k]
        rows.append(
            [
                one.name,
                str(one.kept_k),
                "saturated" if kept is None else f"{kept:.2f}",
                "-" if one.best_k is None else str(one.best_k),
                "saturated" if best is None else f"{best:.2f}",
                "-" if one.loss is None else f"{one.loss:.1%}",
            ]
        )
    columns = ("what would change the answer", "K run", "TPOT ms", "best K", "TPOT ms", "slower by")
    print_table("as asked: simulated; the others change it by a closed form", columns, rows)


def _board(source: Path) -> str:
    """The page of a leaderboard."""
    from kplan.cli.output import tell_other_versions
    from kplan.report import render_leaderboard
    from kplan.search.board_file import read

    board = read(source)
    tell_other_versions(source.name, board.versions)
    return render_leaderboard(board)
