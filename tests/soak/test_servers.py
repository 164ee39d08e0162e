"""Random faults of a server, one after another, under ``record``: nothing that was answered is ever lost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run
from tests.live_fake.fake import Engine, FakeServer, Faults, never
from tests.soak.figures import seconds, tell

PROMPTS = 20


def _misbehaving(rng: random.Random) -> tuple[str, Faults]:
    """A fault from some request on, with some chance for each."""
    chance, status = rng.choice([0.05, 0.2, 1.0]), rng.choice([401, 404, 408, 413, 429, 500, 502, 503])
    struck = random.Random(rng.random())

    def at_times(value: Any) -> Callable[..., Any]:
        return lambda *_: value if struck.random() < chance else None

    kind = rng.choice(["status", "cut", "stall", "error", "slow", "missing", "none"])
    return kind, Faults(
        fail=at_times(status) if kind == "status" else lambda _, __: None,
        wait_s=(lambda _, __: 0.05 if struck.random() < chance else 0.0)
        if kind == "slow"
        else lambda _, __: 0.0,
        cut_after=at_times(rng.randrange(4)) if kind == "cut" else never,
        stall_after=at_times(rng.randrange(4)) if kind == "stall" else never,
        error_after=at_times(rng.randrange(4)) if kind == "error" else never,
        missing=frozenset({"vllm:inter_token_latency_seconds_count"}) if kind == "missing" else frozenset(),
    )


def _rows(path: Path) -> dict[int, tuple[int, ...]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["index"]: tuple(row["output_token_ids"]) for row in map(json.loads, lines)}


def _round(
    fake: FakeServer, argv: list[str], rows: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> tuple[int, int]:
    """Faults until every prompt is answered, then a good server; (faulty runs, answers lost)."""
    lost = faulty = 0
    kept: dict[int, tuple[int, ...]] = {}
    for turn in range(8):
        kind, fake.faults = ("none", Faults()) if turn == 7 else _misbehaving(rng)
        faulty += kind != "none"
        if rng.random() < 0.2:
            fake.restart_counters()
        code = run(argv)
        err = capsys.readouterr().err
        assert code in (0, 1, 2), (kind, err)
        assert err.count("\n") == (code == 2), (kind, err)
        now = _rows(rows)
        lost += sum(now.get(index) != ids for index, ids in kept.items())
        kept = now
    truth = {done.prompt: done.tokens for done in fake.done}
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["index"] for row in lines] == list(range(PROMPTS))
    assert all(truth[tuple(row["prompt_token_ids"])] == tuple(row["output_token_ids"]) for row in lines)
    return faulty, lost


def test_no_sequence_of_faults_loses_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("server.SETTLE_S", "server.PAUSE_S", "generate.PAUSE_S"):
        monkeypatch.setattr(f"kplan.live.{name}", 0.01)
    prompts = tmp_path / "p.txt"
    prompts.write_text("".join(f"tell me of number {i}\n" for i in range(PROMPTS)))
    end_s, seed = time.monotonic() + seconds(300), 0
    requests = faults = lost = 0
    while time.monotonic() < end_s or not seed:
        with FakeServer(Engine()) as fake:
            rows = tmp_path / f"{seed}.jsonl"
            argv = ["record", "--url", fake.url, "--prompts", str(prompts), "--out", str(rows), "--json"]
            argv += ["--proposer", "eagle3", "--max-tokens", "16", "--silence-s", "0.2", "--concurrency", "3"]
            more, gone = _round(fake, argv, rows, random.Random(seed), capsys)
            faults, lost, requests = faults + more, lost + gone, requests + sum(fake.asked.values())
        seed += 1
    with capsys.disabled():
        tell("servers", recordings=seed, requests=requests, faulty_runs=faults, records_lost=lost)
    assert lost == 0
