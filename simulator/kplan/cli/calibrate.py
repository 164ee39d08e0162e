"""``kplan calibrate``: fit a calibration from kernel tables, step logs and end-to-end measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.latency.fit_report import FitReport


def calibrate(
    out: Annotated[Path, typer.Option(help="calibration YAML to write")],
    tables: Annotated[
        Path | None,
        typer.Option(help="folder with kernel tables (*_gemm_*.parquet, *_allreduce_vllm*.csv ...)"),
    ] = None,
    steps: Annotated[
        list[Path] | None,
        typer.Option(help="step log, JSON Lines (step_s, decode_requests, ...); repeatable"),
    ] = None,
    tpot: Annotated[
        list[Path] | None,
        typer.Option(help="CSV of runs at a fixed concurrency (concurrency, tpot_ms, k, ...); repeatable"),
    ] = None,
    hardware: Annotated[str, typer.Option(help="hardware profile or YAML that was measured")] = "h100-sxm",
    model: Annotated[str, typer.Option(help="model that --steps and --tpot served")] = "llama-3.1-8b",
    engine: Annotated[str, typer.Option(help="engine that served it")] = "vllm",
    async_scheduling: o.AsyncScheduling = None,
    tp: Annotated[int, typer.Option(help="tensor-parallel GPUs it was served on")] = 1,
    base: Annotated[
        str | None,
        typer.Option(help="calibration for what is not fitted [the hardware's own, else borrowed]"),
    ] = None,
    timings: Annotated[
        Path | None, typer.Option(help="published host timings, used with --tables [those shipped]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="figure that --steps and --tpot may change, as host.request_s; repeatable [all]"),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="keep the base's figures where the rows identify none")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="residual report to write, one HTML file")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object on stdout and nothing else")
    ] = False,
) -> None:
    """Fit the latency model to measurements; every figure keeps its source and standard error."""
    # Imported here: scipy and pandas would slow down every other command's --help.
    from kplan.cli.output import print_json
    from kplan.cli.paths import check_outputs
    from kplan.errors import InputError
    from kplan.files import write_text
    from kplan.latency.fit import Measured, base_calibration, fit_calibration
    from kplan.latency.fit_figures import write_calibration
    from kplan.latency.fit_steps import read_steps
    from kplan.latency.fit_tpot import read_tpot
    from kplan.latency.observed import Served
    from kplan.latency.published import load_host_timings
    from kplan.profiles import load_engine, load_hardware, load_model
    from kplan.report import render_residuals

    if tables is not None and not tables.is_dir():
        raise InputError(
            "--tables", str(tables), "must be an existing folder", "give the folder of the tables"
        )
    if timings is not None and tables is None:
        raise InputError("--timings", str(timings), "is used with --tables only", "give --tables too")
    named = [Path(one) for one in (base, timings, model, hardware, engine) if one]
    check_outputs({"--out": out, "--report": report}, [*(steps or []), *(tpot or []), *named])
    measured_on, served_by = load_hardware(hardware), load_engine(engine)
    if async_scheduling is not None:
        served_by = replace(served_by, async_scheduling=async_scheduling)
    rows = [row for path in steps or [] for row in read_steps(path)]
    rows += [row for path in tpot or [] for row in read_tpot(path)]
    fit = fit_calibration(
        measured_on,
        base_calibration(measured_on, base),
        tables=tables,
        timings=load_host_timings(timings),
        measured=Measured(Served(measured_on, load_model(model), served_by, tp), rows) if rows else None,
        only=only or (),
        partial=partial,
    )
    page = None if report is None else render_residuals(fit)
    write_calibration(fit.calibration, out)
    if report is not None and page is not None:
        write_text(page, report)
    if as_json:
        print_json(_record(fit, out, report))
        return
    typer.echo(f"{'fit':<40}{'rows':>7}{'mean error':>12}", err=True)
    for line in fit.fits:
        typer.echo(f"{line.name:<40}{line.rows:>7}{line.mape:>11.1%} ", err=True)
    for note in fit.notes:
        typer.echo(f"note: {note}", err=True)
    for path in (out, report):
        if path is not None:
            typer.echo(f"wrote {path}", err=True)


def _record(fit: FitReport, out: Path, report: Path | None) -> dict[str, Any]:
    """What was fitted, as JSON."""
    from kplan.latency.fit_figures import figures_of

    figures = figures_of(fit.calibration)
    return {
        "out": str(out),
        "report": None if report is None else str(report),
        "fits": {line.name: {"rows": line.rows, "mape": line.mape} for line in fit.fits},
        "fitted": {
            path: {"value": figures[path].value, "stderr": figures[path].stderr} for path in sorted(fit.paths)
        },
        "notes": list(fit.notes),
    }
