"""``kplan calibrate``: fit a calibration from kernel tables and published host timings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    tables: Annotated[Path, typer.Option(help="Folder with the kernel tables (h100_*.parquet, *.csv).")],
    out: Annotated[Path, typer.Option(help="Calibration YAML to write.")],
    hardware: Annotated[str, typer.Option(help="Hardware profile the tables were measured on.")] = "h100-sxm",
    timings: Annotated[
        Path | None, typer.Option(help="Published step timings; the shipped ones if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")] = False,
) -> None:
    """Fit the latency model's coefficients and write them with their sources and standard errors."""
    # Imported here: scipy and pandas would slow down every other command's --help.
    from kplan.errors import InputError
    from kplan.latency.fit import fit_calibration, write_calibration
    from kplan.latency.published import load_host_timings
    from kplan.profiles import load_hardware

    if not tables.is_dir():
        raise InputError(
            "--tables", str(tables), "must be an existing folder", "give the folder of the tables"
        )
    if not out.parent.is_dir():
        raise InputError("--out", str(out), "its folder must exist", f"create {out.parent} first")
    report = fit_calibration(tables, load_hardware(hardware), load_host_timings(timings))
    write_calibration(report.document, out)
    if as_json:
        fits = {name: {"rows": rows, "mape": mape} for name, (rows, mape) in report.groups.items()}
        typer.echo(json.dumps({"out": str(out), "fits": fits}))
        return
    typer.echo(f"{'fit':<22}{'rows':>7}{'mean error':>12}", err=True)
    for name, (rows, mape) in report.groups.items():
        typer.echo(f"{name:<22}{rows:>7}{mape:>11.1%} ", err=True)
    typer.echo(f"wrote {out}", err=True)
