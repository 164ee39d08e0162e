"""``kplan recommend``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.groups import LIMITS, LOAD, RUNS, SERVED, SLOS, Group, grouped, of

if TYPE_CHECKING:
    from kplan.config.plan import Plan

_SERVED = of(SERVED, SLOS, RUNS, LIMITS, without="switch_us", proposer=o.Proposer)


@grouped
def recommend(
    load: Group = LOAD,
    served: Group = _SERVED,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            autocompletion=complete.policies,
            help="plan for this one instead of the best, as table:1-4=3,5-=1",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for plan.json, configs and report")
    ] = None,
    json: o.Json = False,
) -> int:
    """Say which K (or table of K by batch size) to run at a load, what it gives, and why.

    Exit code 1 when the load cannot be served as asked.
    """
    from kplan.cli.output import print_json
    from kplan.cli.paths import check_folder
    from kplan.cli.progress import progress
    from kplan.registry import parse_policy

    scenario = o.scenario_of(None, {**load, **served}, {"replications": 5})
    if out is not None:
        check_folder("--out", out)
    with progress() as tell:
        from kplan.search.recommend import Wanted, plan_for
        from kplan.search.recommend import recommend as answer

        if policy is None:
            plan = answer(scenario, tell)
        else:
            wanted = Wanted(parse_policy(policy), f"{policy} was asked for with --policy.")
            plan = plan_for(scenario, wanted, tell)
        written: list[str] = []
        if out is not None:
            from kplan.cli.files import write_out

            tell("writing the plan, the configs and the report")
            written = write_out(plan, out).lines()
    if json:
        print_json(plan)
    else:
        _show(plan, written)
    return 0 if plan.answer.feasible else 1


def _show(plan: Plan, written: list[str]) -> None:
    from kplan.cli.output import prose, say
    from kplan.cli.policy_table import POLICY_COLUMNS, policy_row
    from kplan.cli.tables import print_table
    from kplan.config.loads import load_words, ranks_words, requests_words

    prose(plan.answer.words, style="bold")
    for reason in plan.answer.why:
        prose(f"- {reason}")
    say()
    rows = [policy_row(result) for result in plan.policies]
    q = plan.question
    where = f"{plan.answer.replicas} x ({ranks_words(q)} {q.hardware})"
    print_table(
        f"{q.model}, {q.proposer}, {requests_words(q)}, {where}, {load_words(q)}, "
        f"{q.replications} x {q.requests} requests simulated",
        POLICY_COLUMNS,
        rows,
        marked=next((i for i, one in enumerate(plan.policies) if one.name == plan.answer.policy), None),
    )
    if any(not result.exportable for result in plan.policies):
        say(f"* not runnable on {q.engine} today")
    for line in written:
        say(line)
