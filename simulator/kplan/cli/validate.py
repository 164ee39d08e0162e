"""``kplan validate``: predictions beside published measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli.options import Json

if TYPE_CHECKING:
    from kplan.validate.baseline import Baseline
    from kplan.validate.table import JudgedTable

SHIPPED, NONE = "shipped", "none"
"""Values of --baseline that are no file."""
COLUMNS = ("table", "rows", "counted", "MAPE", "worst", "bias", "sign", "regret", "target", "passed")
ROW_COLUMNS = ("at", "measured", "predicted", "band", "error", "counts")


def validate(
    tables: Annotated[
        list[str] | None, typer.Argument(help="tables by name, YAML files or folders of them [all shipped]")
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
    from kplan.acceptance.files import write_text
    from kplan.cli.output import print_json, progress
    from kplan.cli.paths import check_outputs
    from kplan.provenance import versions
    from kplan.validate import baseline as stored
    from kplan.validate.load import load_tables
    from kplan.validate.run import record
    from kplan.validate.run import validate as run

    check_outputs({"--write-baseline": write_baseline, "--report": report}, map(Path, tables or ()))
    before = _baseline(baseline)
    asked = load_tables(tables or ())
    with progress(json) as tell:
        judged = run(asked, tell, workers=min(os.cpu_count() or 1, len(asked)))
    worse = stored.regressions(judged, before.tables) if before else []
    if write_baseline is not None:
        stored.write_baseline(judged, write_baseline)
    if report is not None:
        from kplan.report.parity import render_parity

        write_text(render_parity(judged), report)
    if json:
        found = [record(one, rows=rows) for one in judged]
        print_json({"tables": found, "regressions": worse, "versions": versions()})
    else:
        _print(judged, worse, rows=rows)
    return 1 if worse or any(one.passed is False for one in judged) else 0


def _baseline(named: str) -> Baseline | None:
    from kplan.validate.baseline import load_baseline, shipped_baseline

    if named == NONE:
        return None
    return shipped_baseline() if named == SHIPPED else load_baseline(Path(named))


def _print(judged: tuple[JudgedTable, ...], worse: list[str], *, rows: bool) -> None:
    from kplan.cli.output import print_table

    if rows:
        for one in judged:
            print_table(f"{one.table.name}: {one.table.title}", ROW_COLUMNS, _rows(one))
            print(f"{one.table.source}. {' '.join(one.table.note.split())}\n")
    print_table("predicted / measured - 1, over the rows that count", COLUMNS, [_line(one) for one in judged])
    for sentence in worse:
        print(f"worse than the baseline: {sentence}")


def _line(judged: JudgedTable) -> list[str]:
    target = judged.table.target.model_dump(exclude_none=True)
    bounds = [f"{name} {'>=' if name == 'sign' else '<='} {bound:.0%}" for name, bound in target.items()]
    return [
        judged.table.name,
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
