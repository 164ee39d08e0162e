"""``kplan search``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.groups import LIMITS, LOAD, RUNS, SERVED, SLOS, Group, grouped, of
from kplan.cli.tables import Column

if TYPE_CHECKING:
    from kplan.cli.files import Written
    from kplan.search.found import Verdict
    from kplan.search.optimize import Found
    from kplan.search.score import Tried
    from kplan.telling import Tell

DEFAULT_REPLICATIONS = 5


_Workloads: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        autocompletion=complete.shipped("workloads"),
        help="workload profile, may be repeated: all count alike [sharegpt]",
    ),
]
_Replicas: TypeAlias = Annotated[str | None, typer.Option("--replicas", help="number of replicas [1]")]

_SERVED = of(SERVED, SLOS, RUNS, LIMITS, workload=_Workloads, replicas=_Replicas)


@grouped
def search(
    scenario: Annotated[Path | None, typer.Argument(help="scenario YAML; flags win over it")] = None,
    load: Group = LOAD,
    loads: Annotated[
        str | None,
        typer.Option("--loads", help="several requests/s at once: 4,8,64 (with --concurrency: clients)"),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family",
            autocompletion=complete.policies,
            help="policy to search, may be repeated: table, context-table, my.py:MyPolicy [table]",
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option("--objective", help="tpot, ttft, throughput or cost; two give a Pareto front [tpot]"),
    ] = None,
    trials: Annotated[int, typer.Option("--trials", help="policies tried in all")] = 100,
    width: Annotated[
        float | None,
        typer.Option("--width", help="stop when the best is known against the next best to this share"),
    ] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="tpe, nsga2, gp or cmaes [tpe; nsga2 of two objectives]")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="journal file or postgresql://... [runs/search/STUDY.journal]"),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", help="name of the study [made of what is searched]")
    ] = None,
    workers: o.Workers = None,
    cluster: o.Cluster = None,
    served: Group = _SERVED,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="folder for search.json, trials.parquet, and plan.json and configs of the best"
        ),
    ] = None,
    json: o.Json = False,
) -> int:
    """Search one or several policy families for the best one, over one load or many at once.

    A search that was stopped, however, goes on where it was when the same command is given again; given on
    several machines with one --storage postgresql://..., they share the trials.

    Exit code 1 when no policy keeps up and meets the SLOs at every load.
    """
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.paths import check_folder
    from kplan.cli.progress import progress
    from kplan.errors import InputError

    rates = () if loads is None else o.numbers("--loads", loads)
    workloads = served["workload"] or ()
    flags = {**load, **served, "workload": next(iter(workloads), None)}
    if rates and scenario is None and not any(load[name] is not None for name in o.LOADS):
        flags["qps"] = rates[0]
    if served["replicas"] == "auto":
        raise InputError(
            "--replicas", "auto", "policies are compared on a given number", "kplan recommend says how many"
        )
    question = o.scenario_of(scenario, flags, {"replications": DEFAULT_REPLICATIONS})
    if out is not None:
        check_folder("--out", out)
    with progress() as tell:
        from kplan.search.found import judge, record
        from kplan.search.optimize import FOLDER, Asked, optimize, study_name
        from kplan.simulate.parallel import cores

        asked = Asked(
            families=tuple(family or ["table"]),
            objectives=tuple(objective or ["tpot"]),
            loads=rates,
            workloads=tuple(workloads),
            trials=trials,
            width=width,
            sampler=sampler,
            storage=storage,
            study=study,
            workers=workers if workers is not None else cores(),
            cluster=cluster,
        )
        if storage is None:
            asked.check()
            FOLDER.mkdir(parents=True, exist_ok=True)
            asked = asked.stored(str(FOLDER / f"{study_name(question, asked)}.journal"))
        try:
            found = optimize(question, asked, tell, lambda text: prose(text, err=True))
        except (KeyboardInterrupt, SystemExit) as ended:
            where = "its database" if "://" in str(asked.storage) else asked.storage  # it may hold a password
            ended.add_note(f"the trials are in {where}; the same command goes on")
            raise
        verdict = judge(found)
        files = None if out is None else _write(found, verdict, out, tell)
    if json:
        print_json(record(found, verdict) | (files.record() if files else {"files": []}))
    else:
        _show(found, verdict)
        for line in files.lines() if files else ():
            say(line)
    return 0 if verdict.best is not None else 1


@dataclass(frozen=True)
class Files:
    """What was written: the search's own files, and those of a plan.

    Attributes:
        planned: the policy of the plan, None without one.
        note: why the best is not that policy, "" when it is.
        plan: its files, None without one.
    """

    paths: list[Path]
    planned: str | None
    note: str
    plan: Written | None

    def record(self) -> dict[str, Any]:
        """As JSON."""
        told: dict[str, Any] = {"files": [], "engines": {}, "refused": {}}
        told |= self.plan.record() if self.plan else {}
        told["files"] = [*map(str, self.paths), *told["files"]]
        return told | {"planned": self.planned, "plan_note": self.note}

    def lines(self) -> list[str]:
        """The same for a person."""
        lines = [f"wrote {path}" for path in self.paths]
        return lines + ([self.note] if self.note else []) + (self.plan.lines() if self.plan else [])


def _write(found: Found, verdict: Verdict, out: Path, tell: Tell) -> Files:
    """Write the search, and with it the plan of the best policy that the engine runs.

    Raises:
        InputError: its engine cannot be configured so (the search alone is written), or the folder cannot be
            written.
    """
    from kplan.cli.files import write_out
    from kplan.errors import InputError
    from kplan.files import made_folder, write_texts
    from kplan.search.found import contents, why_not
    from kplan.search.planned import plan_of

    own, best, chosen = contents(found, verdict), verdict.best, verdict.runnable
    paths = [out / name for name in own]

    def write_alone() -> None:
        with made_folder("--out", out):
            write_texts({out / name: content for name, content in own.items()})

    note = ""
    if best is not None and chosen is not best:
        note = f"{best.policy} is not exported: {why_not(found, best)}; "
        note += f"the plan is that of {chosen.policy}" if chosen else "nothing that it runs serves every load"
    if chosen is None:
        write_alone()
        return Files(paths, None, note or "no plan: no policy serves every load", None)
    tell("simulating the plan and writing its files")
    try:
        written = write_out(plan_of(found, chosen, tell), out, own)
    except InputError:
        write_alone()
        raise
    return Files(paths, chosen.policy, note, written)


COLUMNS = (
    "policy",
    "of greedy",
    Column("95%", spare=2),
    "TPOT ms",
    Column("TTFT ms", spare=1),
    "tok/s sustained",
    "mean K",
)


def _show(found: Found, verdict: Verdict) -> None:
    from kplan.cli.output import prose
    from kplan.cli.tables import print_table
    from kplan.search.found import against, gap, words

    prose(words(found, verdict), style="bold")
    trials = found.trials
    stopped = f", {len(trials.pruned)} stopped early" if trials.pruned else ""
    refused = f", {trials.refused} refused" if trials.refused else ""
    kept = "" if found.storage is None else f"; study {found.study} in {found.storage}"
    before = f" ({trials.found} of them found there)" if trials.found else ""
    prose(f"{trials.done} trials{before}{stopped}{refused} in {found.wall_s:.1f} s{kept}\n")
    shown = [one for one in (verdict.best, verdict.runnable, verdict.lowest) if one is not None]
    groups = (*shown, *verdict.front, *against(found))
    rows = {one.policy: _row(found, one) for one in groups}
    print_table(
        f"{'; '.join(case.name for case in found.cases.all)}; "
        f"{found.cases.replications} replications that no trial has seen",
        COLUMNS,
        list(rows.values()),
    )
    if verdict.front:
        prose("on the front: " + ", ".join(one.policy for one in verdict.front))
    chosen = verdict.runnable or verdict.best
    if chosen is not None:
        for objective in found.asked.objectives:
            told = [(gap(found, chosen, one), one) for one in against(found)]
            lines = [f"{one.policy} {told[objective]['verdict']}" for told, one in told if one is not chosen]
            prose(f"{objective} of {chosen.policy} against " + ", ".join(lines))
    if found.importances:
        told_shares = [f"{name} {share:.0%}" for name, share in list(found.importances.items())[:6]]
        prose(f"importance: {', '.join(told_shares)}")


def _row(found: Found, tried: Tried) -> list[str]:
    """One policy as a row of COLUMNS; its figures are means over the cases."""
    import numpy as np

    from kplan.search.score import ratio

    one = ratio(tried, found.greedy, found.asked.objectives[0])
    points = [point for row in tried.points for point in row]
    return [
        tried.policy
        + ("" if tried.feasible else " (saturated)" if tried.overload > 0 else " (misses the SLO)"),
        f"{one.mean:.4f}",
        f"{one.ci95[0]:.4f}..{one.ci95[1]:.4f}" if one.ci95 else "-",
        f"{np.mean([point.tpot_s for point in points]) * 1e3:.3f}",
        f"{np.mean([point.ttft_s for point in points]) * 1e3:.1f}",
        f"{np.mean([point.tok_s for point in points]):,.0f}",
        f"{tried.mean_k:.2f}",
    ]
