"""``kplan profiles``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.provenance import Provenance


def profiles(
    kind: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete.kinds,
            help="hardware, models, drafters, calibrations, engines or workload [all]",
        ),
    ] = None,
    json: o.Json = False,
) -> int:
    """List the profiles that come with kplan and how each is known; of one kind with their sources."""
    from kplan.cli.output import print_json
    from kplan.cli.tables import print_table
    from kplan.errors import InputError
    from kplan.profiles import KINDS, available
    from kplan.workload import available_workloads

    kinds = [*KINDS, "workload"]
    if kind is not None and kind not in kinds:
        raise InputError("profile kind", kind, "is not known", f"one of {', '.join(kinds)}")
    found = {
        each: available_workloads() if each == "workload" else available(each)
        for each in ([kind] if kind else kinds)
    }
    if json:
        print_json(
            {
                kind: [
                    {"name": one.name, "summary": one.summary, "kind": one.provenance.kind,
                     "source": one.provenance.source}
                    for one in listed
                ]
                for kind, listed in found.items()
            },
            listing=True,
        )  # fmt: skip
        return 0
    if kind is not None:
        columns = ["name", "what", "known by", "source"]
        rows = [
            [one.name, one.summary, str(one.provenance.kind), _source(one.provenance)] for one in found[kind]
        ]
    else:
        columns = ["kind", "name", "what", "known by"]
        rows = [
            [each, one.name, one.summary, str(one.provenance.kind)]
            for each, listed in found.items()
            for one in listed
        ]
    print_table(kind or "profiles", columns, rows, left=4)
    return 0


def _source(provenance: Provenance) -> str:
    return "; ".join(filter(None, [provenance.source, provenance.note]))
