"""``kplan record`` against a fake server that breaks or is disturbed: no fault leaves a half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplan.acceptance import load_traces
from kplan.cli.app import run
from tests.live_fake.fake import Engine, FakeServer, Faults
from tests.live_fake.recorded import (
    OUTPUT_TOKENS,
    REQUESTS,
    one_line,
    record,
    texts,
)

TIMES = ("sent_s", "chunk_s")
GENERATE = "/v1/completions"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake's counters are up to date when its answer ends, and its faults do not pass by waiting."""
    monkeypatch.setattr("kplan.live.server.SETTLE_S", 0.01)
    monkeypatch.setattr("kplan.live.generate.PAUSE_S", 0.01)


def _beside(fake: FakeServer, path: str, at: int) -> Callable[[str, int], None]:
    """A fault that is none: when request ``at`` of a path arrives, the server has served another client."""

    def arrived(asked: str, nth: int) -> None:
        if (asked, nth) == (path, at):
            fake.serve_another()

    return arrived


def test_another_client_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of listed steps stay, marked; those of chunks alone give no trace."""
    for detail in ("detailed", "none"):
        with FakeServer(Engine(detail=detail)) as fake:
            fake.faults = Faults(fail=_beside(fake, "/v1/completions", 5))
            made = record(
                capsys, fake, tmp_path, f"{detail}.parquet", "--proposer", "eagle3", "--concurrency", "2"
            )
        assert (made.code, made.told["sound"]) == (1, False)
        assert any("another client" in one["words"] for one in made.told["checks"])
        assert (tmp_path / f"{detail}.parquet").exists() == (detail == "detailed")


def test_merged_chunks_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(detail="none", steps_at_a_time=2)) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "eagle3")
    assert (made.code, made.told["trace"]) == (1, None)
    assert not (tmp_path / "a.parquet").exists()


def test_counters_that_start_anew_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = Faults()
    with FakeServer(faults=faults) as fake:
        faults.cut_after = lambda nth: fake.restart_counters() if nth == 20 else None
        made = record(capsys, fake, tmp_path, "a.jsonl")
    assert (made.code, made.told["sound"]) == (1, False)
    assert len(made.rows) == REQUESTS


def test_counters_that_are_missing_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = frozenset({"vllm:inter_token_latency_seconds_count"})
    with FakeServer(faults=Faults(missing=missing)) as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl")
    assert (made.code, made.told["sound"]) == (0, None)
    assert "emissions" in made.told["checks"][0]["words"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Faults(fail=lambda path, nth: 500 if path == GENERATE and nth > 12 else None), "500"),
        (Faults(fail=lambda path, nth: 503 if path == GENERATE and nth > 12 else None), "503"),
        (Faults(stall_after=lambda nth: 3 if nth > 12 else None), "was silent for 0.3 s"),
        (Faults(error_after=lambda nth: 3 if nth > 12 else None), "EngineCore died"),
        (Faults(cut_after=lambda nth: 3 if nth > 12 else None), "broke off"),
    ],
)
def test_a_server_that_breaks_leaves_its_answers_and_is_gone_on_with(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    faults: Faults,
    words: str,
) -> None:
    flags = ("--proposer", "eagle3", "--concurrency", "2", "--silence-s", "0.3")
    with FakeServer(faults=faults) as fake:
        broken = record(capsys, fake, tmp_path, "a.parquet", *flags)
        fake.faults = Faults()
        made = record(capsys, fake, tmp_path, "a.parquet", *flags)
        whole = record(capsys, fake, tmp_path, "b.parquet", *flags)
    one_line(broken, words, "the same command goes on")
    assert 9 <= len(broken.rows) < REQUESTS
    assert (made.code, made.told["added"]) == (0, REQUESTS - len(broken.rows))
    assert _without_times(made.rows) == _without_times(whole.rows)
    assert load_traces(tmp_path / "a.parquet").proposers["eagle3"].acc.tolist() == (
        load_traces(tmp_path / "b.parquet").proposers["eagle3"].acc.tolist()
    )


def _without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if key not in (*TIMES, "run")} for row in rows]


def test_busy_answers_and_cuts_are_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = Faults(
        fail=lambda path, nth: 429 if path == GENERATE and nth in (5, 6) else None,
        cut_after=lambda nth: 4 if nth == 9 else None,
    )
    with FakeServer(faults=faults) as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl")
    assert (made.code, len(made.rows), made.told["sound"]) == (0, REQUESTS, None)
    assert "1 streams broke off" in made.told["checks"][0]["words"]


def test_prompts_that_are_too_long_are_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.jsonl"
    rows = [{"prompt_token_ids": list(range(n))} for n in (5, 500, 6)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FakeServer(Engine(max_model_len=128)) as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl", "--prompts", str(prompts))
    assert (made.code, [row["index"] for row in made.rows]) == (0, [0, 2])
    assert made.told["refused"][0]["prompt"] == 2
    assert "128" in made.told["refused"][0]["said"]


def test_a_key_is_sent_and_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    with FakeServer(Engine(api_key="secret")) as fake:
        without = record(capsys, fake, tmp_path, "a.jsonl")
        unset = record(capsys, fake, tmp_path, "a.jsonl", "--api-key-env", "NO_SUCH_KEY")
        made = record(capsys, fake, tmp_path, "a.jsonl", "--api-key-env", "THE_KEY")
    one_line(without, "401")
    one_line(unset, "NO_SUCH_KEY")
    assert made.code == 0
    assert "secret" not in (tmp_path / "a.jsonl.meta.json").read_text()


def test_the_time_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(step_s=0.02)) as fake:
        begin = time.monotonic()
        made = record(capsys, fake, tmp_path, "a.jsonl", "--concurrency", "1", "--limit-s", "1")
        took_s = time.monotonic() - begin
    assert (made.code, made.told["out_of_time"]) == (0, True)
    assert 0 < len(made.rows) < REQUESTS
    assert took_s < 10


@pytest.mark.parametrize(
    ("detail", "number"),
    [
        ("detailed", signal.SIGKILL),
        ("none", signal.SIGKILL),
        ("detailed", signal.SIGINT),
        ("detailed", signal.SIGTERM),
    ],
)
def test_a_killed_recording_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], detail: str, number: signal.Signals
) -> None:
    """After any end the same command makes the file that an uninterrupted one makes."""
    rows = tmp_path / "a.jsonl"
    with FakeServer(Engine(detail=detail, step_s=0.005)) as fake:
        argv = [
            "record",
            "--url",
            fake.url,
            "--prompts",
            str(texts(tmp_path)),
            "--max-tokens",
            str(OUTPUT_TOKENS),
        ]
        argv += ["--out", str(tmp_path / "a.parquet"), "--proposer", "eagle3", "--concurrency", "2"]
        child = subprocess.Popen(
            [sys.executable, "-c", "from kplan.cli.app import main; main()", *argv],
            stderr=subprocess.PIPE,
            text=True,
        )
        _wait(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= 5)
        os.kill(child.pid, number)
        _, err = child.communicate(timeout=20)
        kept = rows.read_bytes()
        assert 5 <= kept.count(b"\n") < REQUESTS
        assert not (tmp_path / "a.parquet").exists()
        with rows.open("ab") as file:
            file.write(b'{"index": 29, "cut in the mid')
        fake.engine.step_s = 0.0
        flags = ("--proposer", "eagle3", "--concurrency", "2")
        made = record(capsys, fake, tmp_path, "a.parquet", *flags)
        whole = record(capsys, fake, tmp_path, "b.parquet", *flags)
    held = kept.count(b"\n")
    goes_on = f"interrupted: {held} of {REQUESTS} answers are in {rows}; the same command goes on"
    assert err.strip() == ("" if number is signal.SIGKILL else goes_on)
    assert (made.code, len(made.rows)) == (0, REQUESTS)
    added = REQUESTS if detail == "none" else REQUESTS - kept.count(b"\n")
    assert made.told["added"] == added
    assert _without_times(made.rows) == _without_times(whole.rows)


def _wait(done: Any, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9", "cannot be reached"), ("ftp://x", "http://"), ("http://", "http://")],
)
def test_a_wrong_url_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    code = run(
        ["record", "--url", url, "--prompts", str(texts(tmp_path)), "--out", str(tmp_path / "a.jsonl")]
    )
    shown = capsys.readouterr()
    assert (code, shown.err.count("\n"), words in shown.err) == (2, 1, True)
    assert list(tmp_path.iterdir()) == [tmp_path / "prompts.txt"]


def test_a_server_of_another_kind_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(name="llamacpp")) as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl")
    one_line(made, "llamacpp")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a"}\n{"prompt": ""}\n', "row 2, column prompt"),
        ('{"prompt": "a"}\n{"prompt"', "row 2"),
        ('{"text": "a"}\n', "prompt_token_ids"),
        ('{"prompt": "a", "max_tokens": 0}\n', "max_tokens"),
        ('{"prompt_token_ids": [1, -2]}\n', "prompt_token_ids[1]"),
        ('{"messages": ["a"]}\n', "role and content"),
        ('[{"conversations": 3}]', "conversations"),
        ("[1", "no JSON"),
        ("\n\n", "no prompt"),
    ],
)
def test_faulty_prompts_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(text)
    with FakeServer() as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl", "--prompts", str(prompts))
    one_line(made, words)
    assert made.rows == []
