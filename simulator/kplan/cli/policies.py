"""``kplan policies``: list them, hold one against the laws, begin one of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o

app = typer.Typer(
    help="List the policies; check one; begin one of your own.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def policies(ctx: typer.Context, json: o.Json = False) -> int:
    """List the policies, what they do, and which engines can run them; --json adds where each is from."""
    if ctx.invoked_subcommand is not None:
        return 0
    from kplan.cli.output import print_json
    from kplan.cli.tables import print_table
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
            },
            listing=True,
        )  # fmt: skip
        return 0
    rows = [[name, info.summary, ", ".join(info.engines) or f"none: {info.why_not}"] for name, info in found]
    print_table("policies", ["name", "what", "engines"], rows, left=3)
    return 0


@app.command("check")
def check(
    policy: Annotated[
        str,
        typer.Argument(
            autocompletion=complete.policies, help="policy text: a name, pkg.module:Class or file.py:Class"
        ),
    ],
    json: o.Json = False,
) -> int:
    """Hold a policy against the laws that every policy must keep; exit 1 when it breaks one."""
    from kplan.cli.output import print_json, prose
    from kplan.cli.progress import progress
    from kplan.testing import LAWS, find, spec_of, steps_per_s

    spec = spec_of(policy)
    with progress() as tell:
        findings = []
        for i, law in enumerate(LAWS):
            tell(law.says, i, len(LAWS))
            findings.append(find(law, spec))
        passed = all(finding.passed for finding in findings)
        speed = steps_per_s(spec) if passed else None
    if json:
        print_json(
            {
                "policy": spec.text,
                "passed": passed,
                "laws": [
                    {"law": one.law.name, "says": one.law.says, "passed": one.passed, "broken": one.broken}
                    for one in findings
                ],
                "steps_per_s": speed,
            }
        )
        return 0 if passed else 1
    for one in findings:
        prose(f"ok    {one.law}: {one.law.says}" if one.passed else f"FAIL  {one.broken}")
    if passed:
        told = "" if speed is None else f"; {speed:,.0f} engine steps/s here at batch 64"
        prose(f"{spec.text} keeps all {len(findings)} laws{told}")
    return 0 if passed else 1


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="name of the policy: calm-at-load")],
    folder: Annotated[Path, typer.Option("--dir", help="where the two files go")] = Path(),
    json: o.Json = False,
) -> int:
    """Write a small policy with search ranges, and a test that holds it against the laws."""
    from kplan.cli.output import print_json, say
    from kplan.cli.policy_files import write_policy

    made = write_policy(name, folder)
    if json:
        print_json({"policy": made.text, "files": [str(made.policy), str(made.test)]})
        return 0
    say(f"wrote {made.policy} and {made.test}; try")
    say(f"  kplan policies check {made.text}")
    say(f"  kplan simulate --qps 16 --policy {made.text}")
    return 0
