"""``kplan profiles`` and ``kplan policies``."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="one JSON object on stdout and nothing else")]


def profiles(json: Json = False) -> int:
    """List the profiles that come with kplan and how each is known."""
    from kplan.cli.output import print_json, print_table
    from kplan.profiles import KINDS, available
    from kplan.workload import available_workloads

    found = {kind: available(kind) for kind in KINDS} | {"workload": available_workloads()}
    if json:
        print_json(
            {
                kind: [
                    {"name": one.name, "summary": one.summary, "kind": one.provenance.kind,
                     "source": one.provenance.source}
                    for one in listed
                ]
                for kind, listed in found.items()
            }
        )  # fmt: skip
        return 0
    rows = [
        [kind, one.name, one.summary, str(one.provenance.kind)]
        for kind, listed in found.items()
        for one in listed
    ]
    print_table("profiles", ["kind", "name", "what", "known by"], rows, left=4)
    return 0


def policies(json: Json = False) -> int:
    """List the policies, the texts that name them, and which engines can run them."""
    from kplan.cli.output import print_json, print_table
    from kplan.registry import list_policies

    found = list_policies()
    if json:
        print_json(
            {
                "policies": [
                    {"name": name, "summary": info.summary, "source": info.source,
                     "engines": list(info.engines), "why_not": info.why_not,
                     "needs_future": info.needs_future}
                    for name, info in found
                ]
            }
        )  # fmt: skip
        return 0
    rows = [
        [name, info.summary, ", ".join(info.engines) or f"none: {info.why_not}", info.source]
        for name, info in found
    ]
    print_table("policies", ["name", "what", "engines", "source"], rows, left=4)
    return 0
