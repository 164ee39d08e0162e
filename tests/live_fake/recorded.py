"""``kplan record`` run against the fake server, and what it wrote held against what was served."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kplan.acceptance import load_traces
from kplan.cli.app import run
from tests.live_fake.fake import FakeServer, token_ids

REQUESTS, OUTPUT_TOKENS = 30, 40


@dataclass(frozen=True)
class Made:
    """What the command printed and wrote."""

    code: int
    err: str
    told: dict[str, Any]
    rows: list[dict[str, Any]]


def texts(folder: Path, requests: int = REQUESTS) -> Path:
    """A file of prompts, one a line."""
    path = folder / "prompts.txt"
    path.write_text("".join(f"tell me of number {i} and of its friends\n" for i in range(requests)))
    return path


def record(capsys: pytest.CaptureFixture[str], fake: FakeServer, folder: Path, out: str, *flags: str) -> Made:
    """Run the command on the usual prompts."""
    path = folder / out
    prompts = () if "--prompts" in flags or "--workload" in flags else ("--prompts", str(texts(folder)))
    most = () if "--max-tokens" in flags else ("--max-tokens", str(OUTPUT_TOKENS))
    code = run(["record", "--url", fake.url, "--out", str(path), "--json", *prompts, *most, *flags])
    shown = capsys.readouterr()
    rows = path.with_suffix(".jsonl")
    lines = rows.read_text().splitlines() if rows.exists() else []
    told = json.loads(shown.out) if shown.out else {}
    return Made(code, shown.err, told, [json.loads(line) for line in lines])


def one_line(made: Made, *words: str) -> None:
    """The command refused in one line that has these words."""
    assert made.code == 2
    assert made.err.count("\n") == 1, made.err
    for word in words:
        assert word in made.err


def served(fake: FakeServer) -> dict[tuple[int, ...], Any]:
    """What the server did, by prompt; its first, short request (the probe) left out."""
    return {done.prompt: done for done in fake.done[1:]}


def check_rows(fake: FakeServer, made: Made) -> None:
    """Every row is what the server did for its prompt."""
    did = served(fake)
    assert [row["index"] for row in made.rows] == list(range(len(made.rows)))
    for row in made.rows:
        done = did[tuple(row["prompt_token_ids"])]
        assert row["output_token_ids"] == list(done.tokens)
        assert sum(row["chunks"]) == len(done.tokens)
        assert len(row["chunks"]) == len(done.steps) + 1 == len(row["chunk_s"])


def check_trace(fake: FakeServer, path: Path, proposer: str, k: int, *, last_known: bool = True) -> None:
    """The trace says at each step what the server accepted there, cut where the output ends."""
    traces = load_traces(path)
    trace, did = traces.proposers[proposer], served(fake)
    assert trace.recorded_k == k
    assert trace.seen is not None
    prompts = [tuple(token_ids(line)) for line in texts(path.parent).read_text().splitlines()]
    for row, prompt in enumerate(prompts):
        done, begin = did[prompt], int(trace.offsets[row])
        at = 1
        for number, (drafted, accepted) in enumerate(done.steps):
            left = len(done.tokens) - at
            last = number == len(done.steps) - 1
            if not (last and not last_known):
                assert trace.acc[begin + at] == min(accepted + 1, left)
                assert trace.seen[begin + at] == drafted + 1
            at += min(accepted + 1, left)
