"""``kplan export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    plan: Annotated[Path, typer.Argument(help="plan.json written by kplan recommend --out")],
    out: Annotated[Path, typer.Option("--out", help="folder for the files")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout and nothing else")] = False,
) -> int:
    """Write the engine configs and the report of a plan."""
    from kplan.cli.files import read_plan, write_out
    from kplan.cli.output import print_json

    written = write_out(read_plan(plan), out)
    if json:
        print_json(written.record())
    else:
        print("\n".join(written.lines()))
    return 0
