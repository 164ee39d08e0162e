"""``kplan record`` (also ``kplan traces record``): acceptance of a running server, as a trace."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplan.cli import complete
from kplan.cli import options as o

if TYPE_CHECKING:
    from kplan.live.generate import Closed, Open
    from kplan.live.prompts import Prompts
    from kplan.live.record import Recorded

_DEFAULT_CONCURRENCY = 8
_DEFAULT_DRAWN = 100


def record(
    url: Annotated[str, typer.Option("--url", help="the running server, for example http://127.0.0.1:8000")],
    out: Annotated[
        Path,
        typer.Option("--out", help="NAME.jsonl for the answers, NAME.parquet for the trace and NAME.jsonl"),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="JSONL (prompt, messages or prompt_token_ids; max_tokens), ShareGPT JSON, or a text a line",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            autocompletion=complete.shipped("workloads"),
            help="instead: random tokens at its lengths, whose acceptance says nothing of text",
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="ask each text as a user's message, by the model's chat template")
    ] = False,
    proposer: Annotated[
        str | None,
        typer.Option(
            "--proposer",
            autocompletion=complete.proposers,
            help="what drafts: eagle3, ngram ... [as SGLang tells]",
        ),
    ] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", help="requests in flight [8]")] = None,
    qps: Annotated[float | None, typer.Option("--qps", help="instead: requests per second, Poisson")] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", min=1, help="prompts to ask [all; 100 of --workload]")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="longest output, where the prompt says none")
    ] = 256,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy")] = 0.0,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="of the server's draws, and of ours")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="go on to --max-tokens whatever the model says")
    ] = False,
    no_speculation: Annotated[
        bool,
        typer.Option("--no-speculation", help="a server without: token ids alone, for kplan traces replay"),
    ] = False,
    limit_s: Annotated[float, typer.Option("--limit-s", min=1.0, help="no request is begun later")] = 600.0,
    silence_s: Annotated[
        float, typer.Option("--silence-s", min=0.1, help="longest wait for a token, the first included")
    ] = 120.0,
    api_key_env: o.ApiKeyEnv = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="begin anew instead of going on with --out")
    ] = False,
    json: o.Json = False,
) -> int:
    """Drive a running vLLM or SGLang and record what it accepts, by the best route that it offers.

    The same command goes on where it stopped. Exit code 1: the server's counters contradict the answers.
    """
    from kplan.cli.output import print_json
    from kplan.cli.paths import check_outputs
    from kplan.cli.progress import progress
    from kplan.live.dialect import Sampling
    from kplan.live.generate import Limits
    from kplan.live.record import Asked
    from kplan.live.record import record as run
    from kplan.live.recording import sidecar

    rows, trace = _outputs(out)
    for written in {out, rows, sidecar(rows)}:
        check_outputs({"--out": written}, [prompts] if prompts else [])
    key = o.api_key(api_key_env)
    asked = Asked(
        url=url,
        prompts=_prompts(url, key, prompts, workload, requests, seed or 0, chat=chat),
        sampling=Sampling(max_tokens, temperature, seed, ignore_eos),
        load=_load(concurrency, qps, seed or 0),
        rows=rows,
        trace=trace,
        proposer=proposer,
        plain=no_speculation,
        restart=restart,
        limits=Limits(silence_s=silence_s, run_s=limit_s),
        api_key=key,
    )
    with progress() as tell:
        found = run(asked, partial(tell, "asking the server"))
    told = _record(found, asked.rows, trace)
    if json:
        print_json(told)
    else:
        _say(found, told)
    return 1 if found.sound is False or (trace is not None and found.traces is None) else 0


def _outputs(out: Path) -> tuple[Path, Path | None]:
    """The JSONL and the trace that ``--out`` names."""
    from kplan.errors import InputError

    if out.suffix == ".parquet":
        return out.with_suffix(".jsonl"), out
    if out.suffix == ".jsonl":
        return out, None
    raise InputError("--out", str(out), "a .jsonl or .parquet file is written", "name one of these")


def _load(concurrency: int | None, qps: float | None, seed: int) -> Closed | Open:
    from kplan.errors import InputError
    from kplan.live.generate import Closed, Open

    if concurrency is not None and qps is not None:
        raise InputError("--qps", qps, "--concurrency is given too", "leave one out")
    if qps is not None:
        return Open(qps, seed)
    return Closed(_DEFAULT_CONCURRENCY if concurrency is None else concurrency)


def _prompts(
    url: str,
    key: str | None,
    file: Path | None,
    workload: str | None,
    requests: int | None,
    seed: int,
    *,
    chat: bool,
) -> Prompts:
    from kplan.errors import InputError
    from kplan.live.prompts import as_chat, draw_prompts, read_prompts
    from kplan.live.server import Server
    from kplan.workload import load_workload

    if (file is None) == (workload is None):
        bound = "nothing" if file is None else "--workload is given too"
        raise InputError("--prompts", str(file) if file else "nothing", bound, "give --prompts or --workload")
    if file is not None:
        found = read_prompts(file, requests)
        return as_chat(found) if chat else found
    with Server(url, key) as server:
        return draw_prompts(server, load_workload(str(workload)), requests or _DEFAULT_DRAWN, seed)


def _record(found: Recorded, rows: Path, trace: Path | None) -> dict[str, Any]:
    """The answer as JSON."""
    from kplan.live.summary import acceptance

    return {
        "server": str(found.info),
        "route": str(found.route),
        "better": found.better,
        "proposer": found.proposer,
        "k": found.speculation.k,
        "out": str(rows),
        "trace": str(trace) if found.traces is not None else None,
        "requests": found.rows,
        "asked": found.asked,
        "added": found.added,
        "refused": [{"prompt": index + 1, "said": said} for index, said in found.driven.refused],
        "out_of_time": found.driven.out_of_time,
        "output_tokens": found.tally.output_tokens,
        "sound": found.sound,
        "checks": [one.record() for one in found.checks],
        "acceptance": acceptance(found),
        "notes": list(found.traces.notes) if found.traces is not None else [],
        "next": _next(found, rows, trace),
    }


def _next(found: Recorded, rows: Path, trace: Path | None) -> str:
    """The command that makes use of it."""
    from kplan.live.route import Route

    name = found.proposer or "NAME"
    if found.route is Route.NONE:
        return f"kplan traces replay {rows} --proposer ngram --out {rows.with_suffix('.parquet')}"
    if trace is not None and found.traces is not None:
        return f"kplan traces workload {trace} --name {trace.stem} --out {trace.parent}"
    if found.route is Route.TOTALS:
        figures = f"kplan traces import {rows} --proposer {name} --figures --out {rows.with_suffix('.json')}"
        return figures if found.tally.told else ""
    k = f" --recorded-k {found.speculation.k}" if found.route is Route.GROWTH else ""
    return f"kplan traces import {rows} --proposer {name}{k} --out {rows.with_suffix('.parquet')}"


def _say(found: Recorded, told: dict[str, Any]) -> None:
    from kplan.cli.output import prose, say
    from kplan.cli.tables import print_table
    from kplan.live.route import ROUTE_WORDS

    prose(f"{found.info}: {ROUTE_WORDS[found.route]}")
    if found.better:
        prose(f"better: {found.better}")
    say(f"{found.rows} of {found.asked} requests in {told['out']}, {found.added} added")
    if found.driven.refused:
        index, said = found.driven.refused[0]
        prose(f"{len(found.driven.refused)} refused by the server, the first prompt {index + 1}: {said}")
    if found.driven.out_of_time:
        prose("the time was over; the same command goes on")
    shown = told["acceptance"]
    if shown is not None:
        parts = [f"{shown['tokens_per_step']:.3f} tokens a step"] if shown["tokens_per_step"] else []
        if shown["accepted_per_draft"] is not None:
            parts.append(f"{shown['accepted_per_draft']:.3f} of the drafts accepted")
        prose(f"K = {found.speculation.k}: " + ", ".join(parts))
        table = [
            [str(row["draft"]), str(row["steps"]), f"{row['marginal']:.4f}"] for row in shown["by_draft"]
        ]
        print_table("by draft", ["draft", "steps", "accepted up to it"], table)
    for one in found.checks:
        mark = {True: "ok", False: "FAILS", None: "not known"}[one.ok]
        prose(f"check {one.name}: {mark}: {one.words}")
    for note in told["notes"]:
        prose(f"note: {note}")
    if told["trace"]:
        say(f"wrote {told['trace']}")
    elif found.sound is not True and found.speculation.k and found.route.value == "growth":
        prose("no trace: chunks tell the acceptance only where the counters confirm them", err=True)
    if told["next"]:
        say(f"next: {told['next']}")
