"""``kplan calibrate``: fit a calibration from a running server, kernel tables, step logs, measured loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplan.cli import complete
from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.latency.fit_report import FitReport
    from kplan.latency.observed import Served
    from kplan.live.calibrate import RowError, Seen
    from kplan.live.server import Server


def calibrate(
    out: Annotated[Path, typer.Option(help="calibration YAML to write")],
    url: Annotated[
        str | None, typer.Option(help="running server to drive and time: http://HOST:PORT")
    ] = None,
    steplog: Annotated[
        Path | None,
        typer.Option(help="its step log (kplan steplog), or its own log [by the times of the requests]"),
    ] = None,
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
    hardware: Annotated[
        str,
        typer.Option(
            autocompletion=complete.shipped("hardware"), help="hardware profile or YAML that was measured"
        ),
    ] = "h100-sxm",
    model: Annotated[
        str,
        typer.Option(
            autocompletion=complete.shipped("models"),
            help="model that was served: profile, or folder with config.json",
        ),
    ] = "llama-3.1-8b",
    proposer: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.proposers, help="what the server drafts with, where its log does not tell"
        ),
    ] = None,
    drafter: o.Drafter = None,
    engine: Annotated[
        str, typer.Option(autocompletion=complete.shipped("engines"), help="engine that served it")
    ] = "vllm",
    async_scheduling: o.AsyncScheduling = None,
    enforce_eager: o.EnforceEager = None,
    tp: Annotated[int, typer.Option(min=1, help="tensor-parallel GPUs it was served on")] = 1,
    base: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.shipped("calibrations"),
            help="calibration for what is not fitted [the hardware's own, else borrowed]",
        ),
    ] = None,
    timings: Annotated[
        Path | None, typer.Option(help="published host timings, used with --tables [those shipped]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="figure that measured rows may change, as host.request_s; repeatable [all]"),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="keep the base's figures where the rows identify none")
    ] = False,
    batches: Annotated[
        str, typer.Option(help="--url: requests in flight, one setting each")
    ] = "1,2,4,8,16,32",
    hold_out: Annotated[
        str | None,
        typer.Option(help="--url: batches to test on instead of fitting, or none [every third]"),
    ] = None,
    prompt_tokens: Annotated[
        str, typer.Option(help="--url: prompt lengths; every batch is run with each")
    ] = "32,256",
    output_tokens: Annotated[int, typer.Option(help="--url: output of every request")] = 128,
    repeats: Annotated[
        int, typer.Option(min=1, max=100, help="--url: times each setting is run; the fastest counts")
    ] = 1,
    limit_s: Annotated[float, typer.Option(help="--url: time limit; settings left by then are cut")] = 300.0,
    api_key_env: o.ApiKeyEnv = None,
    save_steps: Annotated[
        Path | None, typer.Option(help="--url: rows measured, to be given to a later call as --steps")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="residual report to write, one HTML file")] = None,
    as_json: o.Json = False,
) -> None:
    """Fit the latency model to measurements; every figure keeps its source and standard error.

    With --url, a running server is driven through closed loops of several sizes; a part of them is held out
    of the fit and tells its error. What speculation costs shows between a server that speculates and one that
    does not: save the rows of one with --save-steps, and add them to the fit on the other with --steps.
    """
    # Imported here: scipy and pandas would slow down every other command's --help.
    from kplan.cli.calibrate_print import print_fit
    from kplan.cli.output import print_json, say
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.errors import InputError
    from kplan.files import write_texts
    from kplan.latency.fit import Measured, base_calibration, fit_calibration
    from kplan.latency.fit_figures import calibration_yaml
    from kplan.latency.fit_steps import read_steps
    from kplan.latency.fit_tpot import read_tpot
    from kplan.latency.observed import Served
    from kplan.latency.published import load_host_timings
    from kplan.live.calibrate import errors
    from kplan.live.server import Server
    from kplan.profiles import load_engine, load_hardware, load_model
    from kplan.report import render_residuals

    if tables is not None and not tables.is_dir():
        raise InputError(
            "--tables", str(tables), "must be an existing folder", "give the folder of the tables"
        )
    for option, value, needed, other in (
        ("--timings", timings, tables, "--tables"),
        ("--steplog", steplog, url, "--url"),
        ("--save-steps", save_steps, url, "--url"),
    ):
        if value is not None and needed is None:
            raise InputError(option, str(value), f"is used with {other} only", f"give {other} too")
    named = [Path(one) for one in (base, timings, model, hardware, engine, drafter, steplog) if one]
    outputs = {"--out": out, "--report": report, "--save-steps": save_steps}
    check_outputs(outputs, [*(steps or []), *(tpot or []), *named])
    measured_on, served_by = load_hardware(hardware), load_engine(engine)
    if async_scheduling is not None:
        served_by = replace(served_by, async_scheduling=async_scheduling)
    if enforce_eager:
        served_by = served_by.eager()
    served = Served(measured_on, load_model(model), served_by, tp, drafter)
    served.drafter(proposer)  # a proposer that the model cannot have is told before anything is measured
    rows = [row for path in steps or [] for row in read_steps(path, proposer=proposer)]
    rows += [row for path in tpot or [] for row in read_tpot(path)]
    start = base_calibration(measured_on, base)
    seen = None
    if url is not None:
        with progress() as tell, Server(url, o.api_key(api_key_env)) as server:
            seen = _drive(
                server, served, batches, hold_out, prompt_tokens, output_tokens, repeats, limit_s, steplog,
                proposer, save_steps, tell,
            )  # fmt: skip
        rows += seen.fitted
    fit = fit_calibration(
        measured_on,
        start,
        tables=tables,
        timings=load_host_timings(timings),
        measured=Measured(served, rows) if rows else None,
        only=only or (),
        partial=partial,
    )
    tested = [] if seen is None else errors(served, seen, fit.calibration)
    if seen is not None:
        fit = replace(fit, notes=(*seen.notes, *fit.notes))
    texts = {out: calibration_yaml(fit.calibration)}
    write_texts(texts if report is None else texts | {report: render_residuals(fit)})
    written = [path for path in (out, save_steps, report) if path is not None]
    if as_json:
        print_json(_record(fit, tested, written, out, report))
        return
    print_fit(fit, tested)
    for path in written:
        say(f"wrote {path}", err=True)


def _drive(
    server: Server,
    served: Served,
    batches: str,
    hold_out: str | None,
    prompt_tokens: str,
    output_tokens: int,
    repeats: int,
    limit_s: float,
    steplog: Path | None,
    proposer: str | None,
    save_steps: Path | None,
    tell: Any,
) -> Seen:
    """Measure the server."""
    from kplan.errors import InputError
    from kplan.live.calibrate import Plan, default_held_out, measure

    sizes = _numbers("--batches", batches)
    held = default_held_out(sizes) if hold_out is None else frozenset(_numbers("--hold-out", hold_out))
    if stray := held - set(sizes):
        raise InputError("--hold-out", min(stray), f"is not among --batches {batches}", "add it there")
    if held >= set(sizes):
        raise InputError("--hold-out", hold_out, "leaves no batch to fit on", "hold out fewer")
    if output_tokens < 2 or limit_s <= 0:
        option, value = ("--output-tokens", output_tokens) if output_tokens < 2 else ("--limit-s", limit_s)
        raise InputError(option, value, "is too small", "--output-tokens 128 --limit-s 300 are usual")
    plan = Plan(
        sizes, held, _numbers("--prompt-tokens", prompt_tokens), output_tokens, repeats, limit_s, steplog,
        proposer, save_steps,
    )  # fmt: skip
    return measure(server, server.info(), served.model.decoder.vocab, plan, tell)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers of ``1,2,4``; none of the word none."""
    from kplan.errors import InputError

    if text == "none" and option == "--hold-out":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 100_000 for part in parts):
        raise InputError(option, text, "is read as whole numbers from 1, 1,2,4 for example", "mend it")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _record(
    fit: FitReport, tested: list[RowError], written: list[Path], out: Path, report: Path | None
) -> dict[str, Any]:
    """What was fitted, as JSON."""
    from kplan.latency.fit_figures import figures_of
    from kplan.live.calibrate import mean_error

    figures = figures_of(fit.calibration)
    rows = [
        {
            "decode_requests": one.row.mean("decode_requests"),
            "prefill_tokens": one.row.mean("prefill_tokens"),
            "k": one.row.k,
            "context": one.row.context,
            "measured_s": one.row.seconds,
            "predicted_s": one.predicted_s,
            "held_out": one.held,
        }
        for one in tested
    ]
    live = {"rows": rows, "held_out_mape": mean_error(one for one in tested if one.held)} if tested else {}
    return {
        "out": str(out),
        "report": None if report is None else str(report),
        "files": [str(path) for path in written],
        "fits": {line.name: {"rows": line.rows, "mape": line.mape} for line in fit.fits},
        "fitted": {
            path: {"value": figures[path].value, "stderr": figures[path].stderr} for path in sorted(fit.paths)
        },
        "notes": list(fit.notes),
        **live,
    }
