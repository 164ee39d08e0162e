"""``kplan validate``: predictions beside published measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli.options import Json
from kplan.cli.tables import Column

if TYPE_CHECKING:
    from kplan.validate.baseline import Baseline
    from kplan.validate.groups import JudgedGroup
    from kplan.validate.table import Judged, JudgedTable, Target

SHIPPED, NONE = "shipped", "none"
"""Values of --baseline that are no file."""
COLUMNS = (
    "table",
    Column("rows", spare=5),
    Column("counted", spare=3),
    "MAPE",
    Column("worst", spare=1),
    Column("bias", spare=4),
    Column("sign", spare=2),
    Column("regret", spare=2),
    Column("target", spare=1, folds=True),
    "passed",
)
ROW_COLUMNS = (
    "at", "measured", "predicted", Column("band", spare=1), "error", Column("counts", folds=True),
)  # fmt: skip


def validate(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete.shipped("published"),
            help="tables or groups of them by name, YAML files, folders [all shipped]",
        ),
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="every row, predicted beside measured")] = False,
    baseline: Annotated[
        str, typer.Option("--baseline", help="what nothing may be worse than: a file, shipped or none")
    ] = SHIPPED,
    write_baseline: Annotated[
        Path | None, typer.Option("--write-baseline", help="store these results as a baseline")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="HTML file with a plot of predicted against measured")
    ] = None,
    json: Json = False,
) -> int:
    """Predict published measurements and say how far off the predictions are.

    Errors are over the rows that count: none that a calibration or an acceptance was fitted on. Regret is
    what the K that kplan prefers was measured to lose against the best measured. Exit code 1 when a target is
    missed or a table is predicted worse than in the baseline.
    """
    from kplan.cli.output import print_json, tell_other_versions
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.files import write_texts
    from kplan.provenance import versions
    from kplan.validate import baseline as stored
    from kplan.validate.groups import judge_groups
    from kplan.validate.groups import record as group_record
    from kplan.validate.load import load_tables
    from kplan.validate.run import record
    from kplan.validate.run import validate as run

    check_outputs({"--write-baseline": write_baseline, "--report": report}, map(Path, tables or ()))
    before = _baseline(baseline)
    if before is not None:
        tell_other_versions("the baseline", before.versions)
    asked = load_tables(tables or ())
    with progress() as tell:
        judged = run(asked, tell, workers=min(os.cpu_count() or 1, len(asked)))
    groups = judge_groups(judged)
    worse = stored.regressions([*groups, *judged], before.tables) if before else []
    texts = {}
    if write_baseline is not None:
        texts[write_baseline] = stored.baseline_json([*groups, *judged])
    if report is not None:
        from kplan.report.parity import render_parity

        texts[report] = render_parity(judged)
    if texts:
        write_texts(texts)
    if json:
        found = [group_record(one) for one in groups] + [record(one, rows=rows) for one in judged]
        print_json({"tables": found, "regressions": worse, "versions": versions()})
    else:
        _print(judged, groups, worse, rows=rows)
    verdicts = [group.passed for group in groups] + [table.passed for table in judged]
    return 1 if worse or False in verdicts else 0


def _baseline(named: str) -> Baseline | None:
    from kplan.validate.baseline import load_baseline, shipped_baseline

    if named == NONE:
        return None
    return shipped_baseline() if named == SHIPPED else load_baseline(Path(named))


def _print(
    judged: tuple[JudgedTable, ...], groups: tuple[JudgedGroup, ...], worse: list[str], *, rows: bool
) -> None:
    from kplan.cli.output import prose
    from kplan.cli.tables import print_table

    if rows:
        for one in judged:
            print_table(f"{one.table.name}: {one.table.title}", ROW_COLUMNS, _rows(one))
            prose(f"{one.table.source}. {' '.join(one.table.note.split())}\n")
    lines = [_group_line(one) for one in groups] + [_line(one) for one in judged]
    print_table("predicted / measured - 1, over the rows that count", COLUMNS, lines)
    for sentence in worse:
        prose(f"worse than the baseline: {sentence}")


def _line(judged: JudgedTable) -> list[str]:
    return _cells(judged.table.name, judged.table.target, judged)


def _group_line(judged: JudgedGroup) -> list[str]:
    return _cells(f"{judged.group.name}-* together", judged.group.target, judged)


def _cells(name: str, target: Target, judged: Judged) -> list[str]:
    asked = target.model_dump(exclude_none=True)
    bounds = [f"{what} {'>=' if what == 'sign' else '<='} {bound:.0%}" for what, bound in asked.items()]
    return [
        name,
        str(len(judged.rows)),
        str(sum(row.counts for row in judged.rows)),
        _percent(judged.mape),
        _percent(judged.worst),
        _percent(judged.bias, sign="+"),
        _percent(judged.sign_ok),
        _percent(judged.best_k_regret),
        ", ".join(bounds) or "-",
        {True: "yes", False: "NO", None: "-"}[judged.passed],
    ]


def _rows(judged: JudgedTable) -> list[list[str]]:
    found = []
    for one in judged.rows:
        said = one.prediction
        why = "used in fit" if one.used_in_fit else one.row.why_not
        found.append(
            [
                ", ".join(f"{name} {_short(value)}" for name, value in one.row.at.items()),
                f"{one.row.measured:.4g}",
                f"{said.value:.4g}",
                f"{said.low:.4g}..{said.high:.4g}" if said.low < said.high else "-",
                f"{one.error:+.1%}",
                "yes" if one.counts else f"no: {why}",
            ]
        )
    return found


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{share:{sign}.1%}"
