"""``kplan report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kplan.cli import options as o


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
    """Draw the page of a run again, one HTML file that opens with the network off.

    A plan of an older release lacks what its pictures of other loads are drawn from: those are left out.
    """
    from kplan.cli.output import print_json, say
    from kplan.cli.paths import check_outputs
    from kplan.files import write_text

    source, page = _found(run)
    target = source.parent / page if out is None else out
    check_outputs({"--out": target}, [source])
    write_text(_drawn(source), target)
    if json:
        print_json({"files": [str(target)]})
    else:
        say(f"wrote {target}")
    return 0


PAGES = {"plan.json": "report.html", "leaderboard.json": "leaderboard.html"}
"""File of a run -> its page; of both in one folder, the first."""


def _found(run: Path) -> tuple[Path, str]:
    """The file of a run, and the name of its page. Raises InputError where a folder holds none."""
    from kplan.errors import InputError

    if not run.is_dir():
        return run, PAGES.get(run.name, "report.html")
    for name, page in PAGES.items():
        if (run / name).is_file():
            return run / name, page
    raise InputError(
        "RUN", str(run), f"the folder holds no {' or '.join(PAGES)}", "name one written with --out"
    )


def _drawn(source: Path) -> str:
    """The page of a file: of a board where its name begins so, else of a plan."""
    from kplan.report import render_leaderboard, render_report

    if source.name.startswith("leaderboard"):
        from kplan.search.board_file import read

        return render_leaderboard(read(source))
    from kplan.cli.files import read_plan

    return render_report(read_plan(source))
