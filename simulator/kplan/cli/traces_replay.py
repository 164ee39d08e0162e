"""``kplan traces replay``: the acceptance of lookup proposers from a request log, without a GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplan.cli import complete
from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.acceptance import TraceSet
    from kplan.acceptance.replay import NgramRule
    from kplan.acceptance.suffix import SuffixRule

_FOR_SUFFIX = ("tree_depth", "spec_factor", "min_probability", "max_cached_requests")
_FOR_NGRAM = ("prompt_lookup_min", "prompt_lookup_max")


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="requests: parquet, JSONL or CSV, or the name example")
    ],
    proposer: Annotated[
        str, typer.Option("--proposer", autocompletion=complete.proposers, help="ngram or suffix")
    ],
    out: Annotated[Path, typer.Option("--out", help="trace file to write (parquet)")],
    k: Annotated[int | None, typer.Option("--k", help="drafts at most [ngram 20, suffix 24]")] = None,
    prompt_lookup_min: Annotated[
        int | None, typer.Option("--prompt-lookup-min", help="ngram: shortest match [3]")
    ] = None,
    prompt_lookup_max: Annotated[
        int | None, typer.Option("--prompt-lookup-max", help="ngram: longest match [7]")
    ] = None,
    tree_depth: Annotated[
        int | None, typer.Option("--tree-depth", help="suffix: tokens of match and draft together [24]")
    ] = None,
    spec_factor: Annotated[
        float | None, typer.Option("--spec-factor", help="suffix: drafts per matched token [1]")
    ] = None,
    min_probability: Annotated[
        float | None, typer.Option("--min-token-prob", help="suffix: least probability of a draft [0.1]")
    ] = None,
    max_cached_requests: Annotated[
        int | None,
        typer.Option("--max-cached-requests", help="suffix: outputs in the global tree, 0: none [10000]"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="role=column,...: generated_token_ids=tokens, prompt=text ..."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="tokenizer.json, for columns of text")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="only these rows, by column dataset")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="threads [cores]")] = None,
    json: o.Json = False,
) -> int:
    """Replay n-gram or suffix decoding over logged requests: what it would have accepted, by position."""
    from kplan.acceptance import save_traces
    from kplan.acceptance.replay import replay_requests
    from kplan.acceptance.replay_input import find_roles, load_tokenizer, read_requests
    from kplan.cli.options import pairs
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.cli.tables import print_table
    from kplan.config.shipped import trace_path
    from kplan.workload.log_file import open_log

    rule = _rule(
        proposer,
        {
            "k": k,
            "prompt_lookup_min": prompt_lookup_min,
            "prompt_lookup_max": prompt_lookup_max,
            "tree_depth": tree_depth,
            "spec_factor": spec_factor,
            "min_probability": min_probability,
            "max_cached_requests": max_cached_requests,
        },
    )
    check_outputs({"--out": out}, [file, *([] if tokenizer is None else [tokenizer])])
    encode = None if tokenizer is None else load_tokenizer(tokenizer)
    log = open_log(trace_path(file))
    given = pairs(columns) if columns else {}
    roles = find_roles(log.columns, given, file=log.name, text=encode is not None)
    requests = read_requests(
        log.read(list(dict.fromkeys(roles.values()))),
        roles,
        file=log.name,
        dataset=dataset,
        encode=encode,
        tokenizer="" if tokenizer is None else str(tokenizer),
    )
    with progress() as tell:
        told = partial(tell, f"replaying {proposer} over positions")
        traces = replay_requests(requests, rule, workers=workers, progress=told)
    save_traces(traces, out)
    record: dict[str, Any] = {"out": str(out), "proposer": proposer, "rule": str(rule), **summary(traces)}
    if json:
        print_json(record)
        return 0
    rows = [[str(row["k"]), *(f"{row[key]:.3f}" for key in ("tokens", "drafted"))] for row in record["walk"]]
    title = f"{proposer}: {record['requests']} requests, {record['positions']} positions"
    print_table(title, ["K", "tokens/step", "drafted/step"], rows)
    for note in traces.notes:
        prose(f"note: {note}", err=True)
    say(f"wrote {out}")
    return 0


def summary(traces: TraceSet) -> dict[str, Any]:
    """Counts of a replay, and its walk at some K up to that of the replay, as JSON can hold them."""
    from kplan.acceptance import walk
    from kplan.acceptance.describe import SHOWN_K

    trace = next(iter(traces.proposers.values()))
    shown = sorted({k for k in SHOWN_K if k < trace.recorded_k} | {trace.recorded_k})
    stats = {k: walk(trace, k) for k in shown} if (trace.output_len > 1).any() else {}
    return {
        "requests": len(traces),
        "positions": len(trace.acc),
        "loopy_requests": 0 if traces.loopy is None else int(traces.loopy.sum()),
        "walk": [
            {"k": k, "tokens": s.acceptance_length, "drafted": s.drafted_per_step} for k, s in stats.items()
        ],
        "notes": list(traces.notes),
    }


def _rule(proposer: str, flags: dict[str, Any]) -> NgramRule | SuffixRule:
    from kplan.acceptance.replay import NgramRule
    from kplan.acceptance.suffix import SuffixRule
    from kplan.errors import InputError

    kinds: dict[str, tuple[type[NgramRule] | type[SuffixRule], tuple[str, ...]]] = {
        "ngram": (NgramRule, _FOR_SUFFIX),
        "suffix": (SuffixRule, _FOR_NGRAM),
    }
    if proposer not in kinds:
        raise InputError(
            "--proposer", proposer, "ngram or suffix can be replayed", "record others with their server"
        )
    rule, foreign = kinds[proposer]
    given = {name: value for name, value in flags.items() if value is not None}
    for name in foreign:
        if name in given:
            raise InputError(
                name.replace("_", " "), given[name], f"{proposer} has no such setting", "leave it out"
            )
    return rule(**given)
