"""``kplan traces pair``: how two proposers of a workload depend on each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kplan.cli import complete
from kplan.cli import options as o


def pair(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="trace file that holds both proposers")],
    workload: Annotated[
        Path, typer.Option("--workload", help="profile (NAME.yaml) with a model of both; gets the pair")
    ],
    proposer: Annotated[
        list[str],
        typer.Option("--proposer", autocompletion=complete.proposers, help="given twice: ngram, and eagle3"),
    ],
    dataset: o.DatasetOfFile = None,
    keep_loopy: Annotated[bool, typer.Option("--keep-loopy", help="fit on degenerate outputs too")] = False,
    holdout: Annotated[
        bool, typer.Option("--holdout/--no-holdout", help="fit a half, test on the other")
    ] = True,
    json: o.Json = False,
) -> int:
    """Fit how two proposers depend on each other, and enter it in a workload: for --proposer A+B.

    On the requests in which both were recorded on the same output. Each proposer's own model stays as it is.
    """
    from kplan.acceptance import load_traces
    from kplan.acceptance.joint_fit import fit_pair
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.errors import InputError
    from kplan.workload.pairs import add_pairs, holding, report_lines

    if len(proposer) != 2:
        raise InputError("--proposer", f"given {len(proposer)} times", "two make a pair")
    if not workload.is_file():
        raise InputError("--workload", str(workload), "no such file", "kplan traces workload writes one")
    check_outputs({"--workload": workload}, [file])
    holding(workload, proposer)
    with progress() as tell:
        tell(f"reading {file.name}")
        traces = load_traces(file, dataset)
        tell(f"fitting how {proposer[0]} and {proposer[1]} depend on each other")
        fitted = fit_pair(traces, proposer[0], proposer[1], keep_loopy=keep_loopy, holdout=holdout)
    written = [str(path) for path in add_pairs(workload, [fitted])]
    if json:
        shares = {"class_share": fitted.class_share, "window_share": fitted.window_share}
        print_json({"files": written, "pair": fitted.name, **shares, "depth": fitted.depth, **fitted.facts})
        return 0
    for line in report_lines(fitted):
        prose(line)
    for path in written:
        say(f"wrote {path}")
    return 0
