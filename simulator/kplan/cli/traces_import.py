"""``kplan traces import`` and ``kplan traces describe``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.cli.tables import Column

if TYPE_CHECKING:
    from kplan.acceptance import AcceptanceFigures, TraceSet

File = Annotated[Path, typer.Argument(metavar="FILE", help="recording (parquet, JSONL, JSON or CSV)")]

_WALK = {
    "tokens/step": ("tokens_per_step", 0),
    "over positions": ("position_tokens", 0),
    "drafted/step": ("drafted_per_step", 3),
    "first kept": ("first_accepted", 0),
    "oracle drafts": ("oracle_drafted_per_step", 4),
    "lag 1": ("lag1", 0),
    "within": ("lag1_within", 1),
    "request SD": ("request_sd", 2),
}
"""Columns of a walk -> the figure in them, and how soon a narrow terminal leaves it out."""


def register(app: typer.Typer) -> None:
    """Add both commands to ``kplan traces``."""
    app.command("import")(import_)
    app.command("describe")(describe)


def import_(
    file: File,
    out: Annotated[Path, typer.Option("--out", help="file to write: .parquet for traces, .json for figures")],
    dataset: o.DatasetOfFile = None,
    proposer: Annotated[
        str | None,
        typer.Option(
            "--proposer",
            autocompletion=complete.proposers,
            help="what drafted, where the file does not say it",
        ),
    ] = None,
    recorded_k: Annotated[
        int | None, typer.Option("--recorded-k", min=1, max=254, help="K, where the file does not say it")
    ] = None,
    tokenizer: Annotated[str, typer.Option("--tokenizer", help="name of the tokenizer, for the record")] = "",
    figures: Annotated[
        bool, typer.Option("--figures", help="pool a server's steps into a histogram (JSON)")
    ] = False,
    json: o.Json = False,
) -> int:
    """Convert a recording into kplan's own trace file, or into figures where the source keeps no steps.

    Known by content: SpecDecode-Bench JSONL, the reference parquet, JSONL of vLLM's per-request metrics, of
    SGLang's meta_info or of aiperf, a result of vllm bench serve or of aiperf, and a CSV of steps.
    """
    from kplan.acceptance import AcceptanceFigures, ImportOptions, load_acceptance, save_figures, save_traces
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress

    check_outputs({"--out": out}, [file])
    options = ImportOptions(proposer, recorded_k, tokenizer, figures)
    with progress() as tell:
        found = load_acceptance(file, dataset, options, partial(tell, f"reading {file.name}"))
    if isinstance(found, AcceptanceFigures):
        _check_suffix(out, ".json")
        save_figures(found, out)
        record, words = _figures(found), f"{found.kind} of {found.proposer}, K={found.recorded_k}"
    else:
        _check_suffix(out, ".parquet")
        save_traces(found, out)
        record, words = _counts(found), f"{len(found)} requests"
    if json:
        print_json({"out": str(out), **record})
        return 0
    say(f"{words} -> {out}")
    for note in found.notes:
        prose(note)
    return 0


def describe(
    file: File,
    dataset: o.DatasetOfFile = None,
    report: Annotated[Path | None, typer.Option("--report", help="report to write, one HTML file")] = None,
    json: o.Json = False,
) -> int:
    """Acceptance by draft and by K along the walk, persistence, spread between requests, how two proposers
    complement each other, loops, censoring, and what the importer met."""
    from kplan.acceptance import load_traces
    from kplan.acceptance.describe import complementarity
    from kplan.acceptance.describe import describe as measure
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.files import write_text

    check_outputs({"--report": report}, [file])
    with progress() as tell:
        tell(f"reading {file.name}")
        traces = load_traces(file, dataset)
        tell("describing the acceptance")
        found, pairs = measure(traces), complementarity(traces)
    if report is not None:
        from kplan.report import render_acceptance

        title = file.name if dataset is None else f"{file.name}, {dataset}"
        told = f"{traces.provenance.source}. {traces.provenance.note}"
        write_text(render_acceptance(title, told, found, pairs, traces.notes), report)
    if json:
        print_json({**_counts(traces), "proposers": found, "pairs": pairs})
        return 0
    _print(found, pairs)
    for note in traces.notes:
        prose(f"note: {note}", err=True)
    if report is not None:
        say(f"wrote {report}", err=True)
    return 0


def _print(found: Mapping[str, Mapping[str, Any]], pairs: list[dict[str, Any]]) -> None:
    from kplan.cli.tables import print_table

    for name, facts in found.items():
        title = (
            f"{name}: {facts['requests']} requests, {facts['known_positions']} of {facts['positions']} "
            f"positions known, K={facts['recorded_k']}, {facts['censored_positions']} censored"
        )
        if facts["walk"]:
            rows = [
                [str(row["k"]), *(_number(row[key]) for key, _ in _WALK.values())] for row in facts["walk"]
            ]
            print_table(title, ["K", *(Column(name, spare) for name, (_, spare) in _WALK.items())], rows)
        else:
            print_table(title, ["tokens/step of the steps taken"], [[_number(facts["step_mean"])]], left=0)
        drafts = [
            [str(row["draft"]), str(row["reached"]), _number(row["conditional"]), _number(row["marginal"])]
            for row in facts["by_draft"]
        ]
        print_table(f"{name} by draft", ["draft", "reached", "conditional", "marginal"], drafts)
    columns = (
        "proposers",
        Column("positions", spare=2),
        "first right",
        "",
        "either",
        "independent",
        "correlation",
        Column("better mean", spare=1),
    )
    rows = [
        [
            " + ".join(pair["proposers"]),
            str(pair["positions"]),
            *map(_number, pair["first_accepted"]),
            *(
                _number(pair[key])
                for key in ("either_accepted", "independent_either", "correlation", "better_mean")
            ),
        ]
        for pair in pairs
    ]
    if rows:
        print_table("first drafts at the same positions", columns, rows)


def _check_suffix(out: Path, needed: str) -> None:
    """Traces are parquet and figures JSON. Raises InputError on the other's name."""
    from kplan.errors import InputError

    if out.suffix in {".json", ".parquet"} and out.suffix != needed:
        kept = "figures, no steps" if needed == ".json" else "traces"
        raise InputError("--out", str(out), f"what is imported are {kept}", f"name a {needed} file")


def _counts(traces: TraceSet) -> dict[str, Any]:
    return {
        "requests": len(traces),
        "source": traces.provenance.source,
        "kind": str(traces.provenance.kind),
        "tokenizer": traces.tokenizer,
        "positions": {name: len(trace.acc) for name, trace in traces.proposers.items()},
        "loopy": None if traces.loopy is None else int(traces.loopy.sum()),
        "notes": list(traces.notes),
    }


def _figures(figures: AcceptanceFigures) -> dict[str, Any]:
    return {
        "proposer": figures.proposer,
        "figures": str(figures.kind),
        "recorded_k": figures.recorded_k,
        "values": list(figures.values),
        "acceptance_length": figures.acceptance_length,
        "steps": figures.steps,
        "requests": figures.requests,
        "source": figures.provenance.source,
        "kind": str(figures.provenance.kind),
        "notes": list(figures.notes),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
