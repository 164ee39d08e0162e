"""``kplan record`` against real servers: what it writes is what the model pair must accept, step by step."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kplan.acceptance import load_traces, replay_ngram
from kplan.cli.app import run
from tests.live.install import Engine
from tests.live.server import Server, serve
from tests.live.walk import Pair, walk

pytestmark = pytest.mark.served

K = 4
REQUESTS, OUTPUT_TOKENS = 24, 96


@contextmanager
def _serving(vllm: Engine, pair: Pair, folder: Path, **settings: Any) -> Iterator[Server]:
    config = folder / "vllm.yaml"
    config.write_text(yaml.safe_dump({"model": str(pair.folder / "target"), "max-num-seqs": 32, **settings}))
    with serve(vllm, config) as server:
        yield server


def _drafting(pair: Pair, **more: Any) -> dict[str, Any]:
    draft = {"method": "draft_model", "model": str(pair.folder / "draft"), "num_speculative_tokens": K}
    return {"speculative-config": draft | more}


def _prompts(pair: Pair, folder: Path, requests: int = REQUESTS, output_tokens: int = OUTPUT_TOKENS) -> Path:
    """Prompts whose last tokens are spread over the cycle; the last is answered at three times the length."""
    stride = len(pair.cycle) // requests
    rows = [
        {"prompt_token_ids": [*pair.cycle[:7], pair.cycle[i * stride]], "max_tokens": output_tokens}
        for i in range(requests)
    ]
    rows[-1]["max_tokens"] = 3 * OUTPUT_TOKENS
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@dataclass(frozen=True)
class Made:
    """A recording and what the command said of it."""

    code: int
    told: dict[str, Any]
    rows: list[dict[str, Any]]
    out: Path


def _record(
    capsys: pytest.CaptureFixture[str], server: Server, prompts: Path, out: Path, *flags: str
) -> Made:
    code = run(
        ["record", "--url", server.url, "--prompts", str(prompts), "--out", str(out), "--json", *flags]
    )
    shown = capsys.readouterr()
    assert code in (0, 1), shown.err
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    return Made(code, json.loads(shown.out), rows, out)


def _accepted(pair: Pair, token: int, drafted: int) -> int:
    """Drafts that are right after ``token``, worked out from the pair alone."""
    good = 0
    while good < drafted and pair.draft[token] == pair.target[token]:
        token = pair.target[token]
        good += 1
    return good


def _check_steps(pair: Pair, row: Mapping[str, Any]) -> None:
    """Every step of a row accepted what the pair accepts there, and the row is the target's text."""
    told = row["metrics"]["speculative_decoding"]
    tokens = row["output_token_ids"]
    assert tokens == list(walk(pair, row["prompt_token_ids"][-1], len(tokens), 0).tokens)
    at, ends = 1, {1}
    for drafted, accepted in zip(told["per_step_drafted"], told["per_step_accepted"], strict=True):
        assert accepted == _accepted(pair, tokens[at - 1], drafted)
        at = min(at + accepted + 1, len(tokens))
        ends.add(at)
    assert at == len(tokens)
    assert set(np.cumsum(row["chunks"]).tolist()) <= ends  # a chunk is a step, or several on a busy machine


def test_a_table_is_recorded_step_by_step(
    vllm: Engine, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One server drafts 4 alone and 2 for several: what each step drafted and accepted is the pair's."""
    table = [[1, 2, K], [3, 32, 2]]
    settings = _drafting(pair, num_speculative_tokens_per_batch_size=table)
    settings["per-request-spec-decode-metrics"] = "detailed"
    prompts = _prompts(pair, tmp_path)
    with _serving(vllm, pair, tmp_path, **settings) as server:
        flags = ("--proposer", "draft-model")
        alone = _record(capsys, server, prompts, tmp_path / "1.parquet", "--concurrency", "1", *flags)
        busy = _record(capsys, server, prompts, tmp_path / "8.parquet", "--concurrency", "8", *flags)
    for made in (alone, busy):
        assert made.code == 0, made.told["checks"]
        assert made.told["route"] == "steps"
        assert all(one["ok"] for one in made.told["checks"] if one["name"] != "chunks"), made.told["checks"]
        for row in made.rows:
            _check_steps(pair, row)
    drafted = [row["metrics"]["speculative_decoding"]["per_step_drafted"] for row in alone.rows]
    assert {k for steps in drafted for k in steps} == {K}
    drafted = [row["metrics"]["speculative_decoding"]["per_step_drafted"] for row in busy.rows]
    assert {k for steps in drafted for k in steps} == {2, K}
    _check_trace(pair, alone)


def _check_trace(pair: Pair, made: Made) -> None:
    """The trace holds at each known position what the pair accepts there, up to the output's end."""
    trace = load_traces(made.out).proposers["draft-model"]
    assert trace.seen is not None
    for row, record in enumerate(made.rows):
        begin, end = trace.offsets[row], trace.offsets[row + 1]
        known = np.flatnonzero(trace.seen[begin:end])
        expected = walk(pair, record["prompt_token_ids"][-1], int(end - begin), K)
        assert len(known) == expected.drafts
        for at in known.tolist():
            right = _accepted(pair, record["output_token_ids"][at - 1], K) + 1
            assert trace.acc[begin + at] == min(right, end - begin - at)


def test_chunks_alone_tell_the_same_and_a_killed_server_leaves_its_answers(
    vllm: Engine, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = _prompts(pair, tmp_path)
    flags = ("--concurrency", "8", "--proposer", "draft-model")
    with _serving(vllm, pair, tmp_path, **_drafting(pair)) as server:
        made = _record_by_chunks(capsys, server, prompts, tmp_path / "growth.parquet")
        many = tmp_path / "many"
        many.mkdir()
        long = _prompts(pair, many, requests=64, output_tokens=400)
        rows = tmp_path / "cut.jsonl"
        threading.Thread(target=_kill_after, args=(server, rows, 10), daemon=True).start()
        argv = ["record", "--url", server.url, "--prompts", str(long), "--out", str(rows), *flags]
        code = run(argv)
        shown = capsys.readouterr()
    trace = load_traces(made.out).proposers["draft-model"]
    assert trace.seen is not None
    known = np.flatnonzero(trace.seen)
    tokens = np.concatenate([row["output_token_ids"] for row in made.rows])
    left = np.repeat(trace.offsets[1:], trace.output_len) - np.arange(len(trace.acc))
    for at in known.tolist():
        right = min(_accepted(pair, int(tokens[at - 1]), K) + 1, int(left[at]))
        assert trace.acc[at] == right
    assert len(known) >= 0.95 * sum(len(row["chunks"]) - 1 for row in made.rows)
    assert code == 2
    assert len(shown.err.strip().splitlines()) == 1
    assert "the same command goes on" in shown.err
    kept = [json.loads(line) for line in rows.read_text().splitlines()]
    assert 10 <= len(kept) < 64
    assert all(len(row["output_token_ids"]) == 400 for row in kept if row["index"] < 63)


def _record_by_chunks(capsys: pytest.CaptureFixture[str], server: Server, prompts: Path, out: Path) -> Made:
    """One request at a time; where a busy machine merged chunks the command said so, and is run again."""
    for _ in range(4):
        made = _record(capsys, server, prompts, out, "--concurrency", "1", "--proposer", "draft-model")
        assert made.told["route"] == "growth"
        if made.code == 0:
            break
        assert [one["name"] for one in made.told["checks"] if one["ok"] is False] == ["chunks"]
        assert not out.exists()
    assert made.code == 0, made.told["checks"]
    return made


def _kill_after(server: Server, rows: Path, answers: int) -> None:
    """Kill the server once so many answers are on disk."""
    pause = threading.Event()
    for _ in range(1200):
        if rows.exists() and rows.read_bytes().count(b"\n") >= answers:
            break
        pause.wait(0.05)
    os.killpg(server.group, signal.SIGKILL)


def test_recorded_ngram_is_replayed_ngram(
    vllm: Engine, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts hold the text that follows from its begin, from its middle, or not at all."""
    lookup = {"method": "ngram", "num_speculative_tokens": K}
    lookup |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    settings = {"speculative-config": lookup, "per-request-spec-decode-metrics": "detailed"}
    asked = []
    for i in range(24):
        at = 100 * i
        ids = [*pair.cycle[at + (0, 40, 100)[i % 3] : at + 120], *pair.cycle[at : at + 3]]
        asked.append(json.dumps({"prompt_token_ids": ids, "max_tokens": OUTPUT_TOKENS}) + "\n")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(asked))
    with _serving(vllm, pair, tmp_path, **settings) as server:
        flags = ("--concurrency", "2", "--proposer", "ngram")
        made = _record(capsys, server, prompts, tmp_path / "ngram.parquet", *flags)
    assert made.code == 0, made.told["checks"]
    assert any("had no draft" in note for note in made.told["notes"])
    trace = load_traces(made.out).proposers["ngram"]
    assert trace.seen is not None
    for row, record in enumerate(made.rows):
        prompt, output = (np.array(record[key], np.int32) for key in ("prompt_token_ids", "output_token_ids"))
        acc, drafted = replay_ngram(prompt, output, lookup_min=2, lookup_max=4, k=K)
        begin = int(trace.offsets[row])
        known = np.flatnonzero(trace.seen[begin : begin + len(output)])
        assert trace.acc[begin + known].tolist() == acc[known].tolist()
        assert (trace.seen[begin + known] - 1).sum() == drafted[known].sum()
