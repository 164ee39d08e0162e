"""``kplan verify``: a plan held against a live server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kplan.live.judge import Figure
    from kplan.live.verify import Verification

COLUMNS = (
    "figure",
    "predicted",
    "measured",
    Column("95%", spare=1),
    "difference",
    Column("tolerance", spare=2),
    Column("verdict", folds=True),
)


def verify(
    plan: Annotated[Path, typer.Argument(help="plan.json, or the folder of kplan recommend --out")],
    url: Annotated[str, typer.Option("--url", help="the server, for example http://127.0.0.1:8000")],
    engine_python: Annotated[
        Path | None,
        typer.Option(
            "--engine-python",
            help="interpreter of the engine's environment, for its load generator [vllm on the PATH, else "
            "kplan's own client]",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="prompts to send: JSONL, ShareGPT JSON or text [random tokens]"),
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="requests to send [by the load]")] = None,
    limit_s: Annotated[float, typer.Option("--limit-s", help="seconds that sending may take")] = 600.0,
    steplog: Annotated[
        Path | None, typer.Option("--steplog", help="step log that the server writes (kplan steplog install)")
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            "--tolerance",
            help="shares a figure may differ by [acceptance=0.02,step=0.1,tpot=0.1,ttft=0.25,throughput=0.1,"
            "batch=0.1,k=0.1]",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="name or folder, for the load generator [the served model's]"),
    ] = None,
    traces: Annotated[
        Path | None, typer.Option("--traces", help="the plan's recorded traces [beside the plan]")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="the plan's request log [beside the plan]")
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            "--calibration",
            autocompletion=complete.shipped("calibrations"),
            help="instead of the plan's, file or name",
        ),
    ] = None,
    api_key_env: o.ApiKeyEnv = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder for verify.json and report.html")] = None,
    json: o.Json = False,
) -> int:
    """Send a plan's own load to a live server and say whether it does what was predicted, and if not, why.

    Exit code 1 when a figure is off, or when the run is too short to tell.
    """
    from kplan.cli.files import read_plan
    from kplan.cli.output import print_json, say
    from kplan.cli.paths import check_folder
    from kplan.cli.progress import progress
    from kplan.errors import InputError
    from kplan.live import Server
    from kplan.live.judge import Verdict, tolerances
    from kplan.live.judge_words import record_of
    from kplan.live.verify import Settings
    from kplan.live.verify import verify as run
    from kplan.live.workload import Files

    if not 1.0 <= limit_s <= 86_400.0:
        raise InputError("--limit-s", limit_s, "1..86400 seconds")
    file = plan / "plan.json" if plan.is_dir() else plan
    asked = read_plan(file)
    if out is not None:
        check_folder("--out", out)
    settings = Settings(
        Files(file.parent, traces, replay, calibration),
        tolerances(tolerance),
        requests=requests,
        prompts=prompts,
        limit_s=limit_s,
        engine_python=engine_python,
        step_log=steplog,
        tokenizer=tokenizer,
        api_key=o.api_key(api_key_env),
    )
    with progress() as tell, Server(url, settings.api_key) as server:
        found = run(asked, server, settings, tell)
    files = [] if out is None else _write(found, out)
    if json:
        print_json(record_of(found) | {"files": [str(path) for path in files]})
    else:
        _print(found)
        for path in files:
            say(f"wrote {path}")
    return 0 if found.verdict is Verdict.AGREES else 1


def _write(found: Verification, out: Path) -> list[Path]:
    """verify.json and report.html, both or none. Raises InputError."""
    import json

    from kplan.files import made_folder, write_texts
    from kplan.live.judge_words import record_of
    from kplan.report.verify import render_verification

    texts = {
        "verify.json": json.dumps(record_of(found), indent=2, allow_nan=False) + "\n",
        "report.html": render_verification(found),
    }
    with made_folder("--out", out):
        write_texts({out / name: text for name, text in texts.items()})
    return [out / name for name in texts]


def _print(found: Verification) -> None:
    from kplan.cli.output import prose
    from kplan.cli.tables import print_table
    from kplan.live.judge_words import suggestions, words

    prose(words(found), style="bold")
    for line in found.findings:
        prose(f"not as planned: {line}")
    print_table(
        f"{found.plan.answer.policy} at {found.load}, {found.duration_s:.1f} s", COLUMNS, _rows(found.figures)
    )
    if found.attribution.causes:
        named = " and ".join(found.attribution.causes)
        print_table(f"predicted with the measured {named}", COLUMNS, _rows(found.attribution.figures))
    if found.positions:
        rows = [
            [str(at), f"{said:.3f}", f"{came:.3f}", f"{came - said:+.3f}"]
            for at, (said, came) in enumerate(found.positions, start=1)
        ]
        print_table("share of drafts accepted", ("position", "predicted", "measured", "difference"), rows)
    for line in suggestions(found):
        prose(f"next: {line}")
    for line in found.notes:
        prose(f"note: {line}")


def _rows(figures: Sequence[Figure]) -> list[list[str]]:
    rows = []
    for one in figures:
        digits, half = one.kind.digits, one.measured.half
        spread = "-" if half is None else "counted" if half == 0 else f"±{half:,.{digits}f}"
        rows.append(
            [
                f"{one.kind.title}, {one.kind.unit}" if one.kind.unit else one.kind.title,
                f"{one.predicted:,.{digits}f}",
                f"{one.measured.value:,.{digits}f}",
                spread,
                f"{one.change:+.1%}" if one.predicted else f"{one.change:+.3g}",
                f"{one.tolerance:.0%}",
                one.words,
            ]
        )
    return rows
