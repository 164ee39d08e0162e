"""``kplan traces``: import recordings, look at them, and fit what generates more of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kplan.cli import complete, record, traces_import, traces_replay
from kplan.cli import options as o
from kplan.cli.traces_fit import fit, fit_lines
from kplan.cli.traces_pair import pair
from kplan.cli.traces_tree import derive_tree

app = typer.Typer(
    name="traces",
    help="Acceptance traces: import, describe, fit models on them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
traces_import.register(app)
app.command("fit")(fit)

File = Annotated[Path, typer.Argument(metavar="FILE", help="trace file (kplan parquet, JSONL ...)")]
Proposer = Annotated[
    str,
    typer.Option("--proposer", autocompletion=complete.proposers, help="eagle, eagle3, ngram, suffix ..."),
]
Out = Annotated[Path, typer.Option("--out", help="file to write")]
KeepLoopy = Annotated[bool, typer.Option("--keep-loopy", help="fit on degenerate outputs too")]
Holdout = Annotated[bool, typer.Option("--holdout/--no-holdout", help="fit a half, test on the other")]

app.command("record")(record.record)
app.command("replay")(traces_replay.replay)
app.command("tree")(derive_tree)
app.command("pair")(pair)


@app.command("workload")
def workload(
    file: File,
    name: Annotated[str, typer.Option("--name", help="name of the workload")],
    out: Annotated[Path, typer.Option("--out", help="folder for NAME.yaml and its trace models")],
    dataset: o.DatasetOfFile = None,
    proposer: Annotated[
        list[str] | None,
        typer.Option(
            "--proposer", autocompletion=complete.proposers, help="only these; may be repeated [all recorded]"
        ),
    ] = None,
    summary: Annotated[str, typer.Option("--summary", help="one line for listings")] = "",
    target: Annotated[str, typer.Option("--target", help="model profile whose outputs these are")] = "",
    keep_loopy: KeepLoopy = False,
    holdout: Holdout = True,
    pairs: Annotated[
        bool,
        typer.Option("--pairs/--no-pairs", help="fit how each lookup and each head depend on each other"),
    ] = True,
    json: o.Json = False,
) -> int:
    """Fit lengths and a trace model of every proposer recorded: a workload for --workload NAME.yaml."""
    from kplan.acceptance import load_traces
    from kplan.cli.paths import check_folder
    from kplan.cli.progress import progress
    from kplan.errors import InputError
    from kplan.workload.build import build_workload, write_workload
    from kplan.workload.pairs import add_pairs, fit_pairs, report_lines

    if Path(name).name != name or name == "..":
        raise InputError("--name", name, "it names the files", "leave out folders: --out has them")
    check_folder("--out", out)
    with progress() as tell:
        tell(f"reading {file.name}")
        traces = load_traces(file, dataset)
        tell("fitting lengths and a model of every proposer")
        built, models = build_workload(
            traces, name, summary, target=target, proposers=proposer, keep_loopy=keep_loopy, holdout=holdout
        )
        files = write_workload(built, models, out)
        tell("fitting how the proposers depend on each other")
        fitted = fit_pairs(traces, models, keep_loopy=keep_loopy, holdout=holdout) if pairs else []
    files = [*files[:-1], *add_pairs(files[-1], fitted)[:-1], files[-1]]
    lines = [line for proposer, model in models.items() for line in (f"{proposer}:", *fit_lines(model))]
    lines += [line for one in fitted for line in report_lines(one)]
    record = {
        "files": [str(f) for f in files],
        "models": {p: dict(m.facts) for p, m in models.items()},
        "pairs": {one.name: dict(one.facts) for one in fitted},
    }
    _show(json, record, lines, files)
    return 0


@app.command("adapt")
def adapt(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="trace model (JSON) to start from")],
    proposer: Proposer,
    source: Annotated[str, typer.Option("--source", help="where the figures were published")],
    lengths: Annotated[
        str,
        typer.Option(
            "--lengths",
            autocompletion=complete.shipped("workloads"),
            help="workload whose output lengths are walked over",
        ),
    ],
    out: Out,
    acceptance_length: Annotated[
        list[str] | None, typer.Option("--acceptance-length", help="K=TOKENS along the walk; may be repeated")
    ] = None,
    position_median: Annotated[
        float | None, typer.Option("--position-median", help="the median request's mean over its positions")
    ] = None,
    json: o.Json = False,
) -> int:
    """Make a model from published figures: acceptance lengths by K, or a median over positions.

    Persistence, spread between requests and, with a median, the shape by depth are borrowed from MODEL.
    """
    from kplan.acceptance import load_model, save_model
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.workload import load_workload
    from kplan.workload.build import adapt_model

    check_outputs({"--out": out}, [model])
    by_k = _by_k(acceptance_length or [])
    with progress() as tell:
        tell("adapting the model to the figures")
        made = adapt_model(load_model(model), proposer, source, load_workload(lengths), by_k, position_median)
    save_model(made, out)
    lines = [f"{key}: {value}" for key, value in made.facts.items()]
    _show(json, {"out": str(out), "proposer": proposer, **made.facts}, lines, [out])
    return 0


def _by_k(texts: list[str]) -> dict[int, float]:
    from kplan.errors import InputError

    pairs: dict[int, float] = {}
    for text in texts:
        k, _, tokens = text.partition("=")
        try:
            pairs[int(k)] = float(tokens)
        except ValueError as error:
            raise InputError("--acceptance-length", text, "K=TOKENS is needed, for example 3=2.79") from error
    return pairs


def _show(json: bool, record: dict[str, Any], lines: Sequence[str], files: Sequence[Path]) -> None:
    from kplan.cli.output import print_json, prose, say

    if json:
        print_json(record)
        return
    for line in lines:
        prose(line)
    for file in files:
        say(f"wrote {file}")
