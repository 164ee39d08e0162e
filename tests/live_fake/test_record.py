"""``kplan record`` against the fake server: what it writes is what was served, and no fault leaves a half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import load_traces
from kplan.cli.app import run
from tests.live_fake.fake import Engine, FakeServer, Faults, token_ids

REQUESTS, OUTPUT_TOKENS = 30, 40
TIMES = ("sent_s", "chunk_s")


@dataclass(frozen=True)
class Made:
    """What the command printed and wrote."""

    code: int
    err: str
    told: dict[str, Any]
    rows: list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake's counters are up to date when its answer ends, and its faults do not pass by waiting."""
    monkeypatch.setattr("kplan.live.server.SETTLE_S", 0.01)
    monkeypatch.setattr("kplan.live.generate.PAUSE_S", 0.01)


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


@pytest.mark.parametrize("flags", [("--concurrency", "1"), ("--concurrency", "8"), ("--qps", "200")])
def test_steps_are_recorded_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    with FakeServer() as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "eagle3", *flags)
    assert (made.code, made.told["route"], made.told["sound"]) == (0, "steps", True)
    check_rows(fake, made)
    check_trace(fake, tmp_path / "a.parquet", "eagle3", 4)
    steps = [step for done in fake.done[1:] for step in done.steps]
    by_draft = made.told["acceptance"]["by_draft"]
    assert [row["accepted"] for row in by_draft] == [sum(a > d for _, a in steps) for d in range(4)]
    assert {row["steps"] for row in by_draft} == {len(steps)}
    decoded = REQUESTS * (OUTPUT_TOKENS - 1)
    assert made.told["acceptance"]["tokens_per_step"] == pytest.approx(decoded / len(steps))


def test_k_that_varies_and_is_zero_at_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(k_of=lambda running: (4, 4, 2, 1, 0)[min(running, 4)], step_s=0.0005)
    with FakeServer(engine) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "eagle3", "--concurrency", "4")
    assert (made.code, made.told["sound"]) == (0, True)
    drafted = [d for done in fake.done[1:] for d, _ in done.steps]
    assert 0 in drafted
    assert made.told["acceptance"]["verified_steps"] == sum(d > 0 for d in drafted)
    trace = load_traces(tmp_path / "a.parquet").proposers["eagle3"]
    assert trace.seen is not None
    assert np.count_nonzero(trace.seen) == len(drafted)
    assert int((trace.seen[trace.seen > 0] - 1).sum()) == sum(drafted)


def test_ngram_steps_without_a_draft_are_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(offers=0.5)) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "ngram")
    assert made.code == 0
    steps = [step for done in fake.done[1:] for step in done.steps]
    trace = load_traces(tmp_path / "a.parquet").proposers["ngram"]
    assert trace.seen is not None
    placed = np.count_nonzero(trace.seen)
    assert placed >= 0.95 * len(steps)  # a row whose last, cut step is ambiguous may be left unknown
    assert 0 < np.count_nonzero(trace.seen == 1) <= sum(d == 0 for d, _ in steps)


def test_ngram_that_never_matches_is_all_steps_without_a_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(Engine(offers=0.0)) as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl", "--proposer", "ngram")
    assert (made.code, made.told["route"], made.told["sound"]) == (0, "steps", True)
    assert made.told["acceptance"]["tokens_per_step"] == 1.0
    assert made.told["acceptance"]["verified_steps"] == 0


@pytest.mark.parametrize("detail", ["none", "summary"])
def test_chunks_tell_a_static_k(tmp_path: Path, capsys: pytest.CaptureFixture[str], detail: str) -> None:
    with FakeServer(Engine(detail=detail)) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "eagle3")
    assert (made.code, made.told["route"], made.told["sound"]) == (0, "growth", True)
    assert "--per-request-spec-decode-metrics detailed" in made.told["better"]
    check_rows(fake, made)
    check_trace(fake, tmp_path / "a.parquet", "eagle3", 4, last_known=detail == "summary")


def test_sglang_chunks_and_histogram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(name="sglang", version="0.5.23")) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet")
    assert (made.code, made.told["proposer"], made.told["sound"]) == (0, "eagle", True)
    check_rows(fake, made)
    check_trace(fake, tmp_path / "a.parquet", "eagle", 4)


def test_sglang_without_metrics_is_recorded_and_says_what_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(Engine(name="sglang", metrics=False)) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet")
    assert (made.code, made.told["sound"]) == (0, None)
    check_trace(fake, tmp_path / "a.parquet", "eagle", 4)


def test_sglang_that_adapts_tells_totals_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(name="sglang", k_of=lambda running: 3)) as fake:
        refused = record(capsys, fake, tmp_path, "a.parquet")
        made = record(capsys, fake, tmp_path, "b.jsonl")
    one_line(refused, "no single step", "adapts")
    assert refused.rows == []
    assert (made.code, made.told["route"]) == (0, "totals")
    assert "--figures" in made.told["next"]


def test_without_speculation_token_ids_are_recorded_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(Engine(k=0)) as fake:
        refused = record(capsys, fake, tmp_path, "a.jsonl")
        no_trace = record(capsys, fake, tmp_path, "a.parquet", "--no-speculation")
        made = record(capsys, fake, tmp_path, "a.jsonl", "--no-speculation")
        check_rows_of = {done.prompt: done.tokens for done in fake.done}
    one_line(refused, "does not speculate", "--speculative-config", "--no-speculation")
    one_line(no_trace, "kplan traces replay")
    assert not (tmp_path / "a.parquet").exists()
    assert made.code == 0
    assert all(check_rows_of[tuple(r["prompt_token_ids"])] == tuple(r["output_token_ids"]) for r in made.rows)
    assert run([*made.told["next"].split()[1:]]) == 0
    capsys.readouterr()


def test_it_is_a_command_of_traces_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--prompts", str(texts(tmp_path, 4)), "--max-tokens", "9", "--json"]
    with FakeServer() as fake:
        code = run(["traces", "record", "--url", fake.url, "--out", str(tmp_path / "a.jsonl"), *flags])
    assert (code, json.loads(capsys.readouterr().out)["requests"]) == (0, 4)


def test_what_is_told_to_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.parquet"
    flags = ["--prompts", str(texts(tmp_path)), "--max-tokens", "40", "--proposer", "eagle3"]
    with FakeServer(Engine(detail="none")) as fake:
        code = run(["record", "--url", fake.url, "--out", str(out), *flags])
    shown = capsys.readouterr().out
    assert code == 0
    assert "better: restart it with --per-request-spec-decode-metrics detailed" in shown
    assert f"next: kplan traces workload {out} --name {out.stem}" in shown


def test_vllm_does_not_tell_what_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as fake:
        made = record(capsys, fake, tmp_path, "a.parquet")
    one_line(made, "--proposer")
    assert made.rows == []


def test_chat_prompts_go_through_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": [{"role": "user", "content": f"w{i} w7"}], "max_tokens": 9} for i in range(10, 15)]
    prompts = tmp_path / "chat.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("vllm", "sglang"):
        with FakeServer(Engine(name=name)) as fake:
            made = record(capsys, fake, tmp_path, f"{name}.jsonl", "--prompts", str(prompts))
        assert made.code == 0
        assert [row["prompt_token_ids"] for row in made.rows] == [[1, i, 7, 2, 1] for i in range(10, 15)]
        assert {len(row["output_token_ids"]) for row in made.rows} == {9}


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


def test_listed_steps_are_placed_though_chunks_were_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(Engine(steps_at_a_time=2)) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "eagle3")
    assert (made.code, made.told["sound"]) == (0, None)
    assert made.told["acceptance"]["tokens_per_step"] is None
    check_trace(fake, tmp_path / "a.parquet", "eagle3", 4)


def test_a_table_cannot_be_told_by_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(detail="none", k_of=lambda running: 1 + running % 2)) as fake:
        made = record(capsys, fake, tmp_path, "a.parquet", "--proposer", "eagle3")
    failing = [one["name"] for one in made.told["checks"] if one["ok"] is False]
    assert (made.code, failing) == (1, ["every step drafts K"])


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


GENERATE = "/v1/completions"


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


def test_other_settings_are_refused_and_restart_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer() as fake:
        record(capsys, fake, tmp_path, "a.jsonl")
        other = record(capsys, fake, tmp_path, "a.jsonl", "--max-tokens", "20")
        again = record(capsys, fake, tmp_path, "a.jsonl")
        anew = record(capsys, fake, tmp_path, "a.jsonl", "--max-tokens", "20", "--restart")
        (tmp_path / "b.jsonl").write_text('{"mine": 1}\n')
        foreign = record(capsys, fake, tmp_path, "b.jsonl")
    one_line(other, "max_tokens 40, not 20", "--restart")
    assert (again.code, again.told["added"]) == (0, 0)
    assert (anew.code, {len(row["output_token_ids"]) for row in anew.rows}) == (0, {20})
    one_line(foreign, "no recording")
    assert (tmp_path / "b.jsonl").read_text() == '{"mine": 1}\n'


def test_more_requests_go_on_where_fewer_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as fake:
        record(capsys, fake, tmp_path, "a.jsonl", "--requests", "10")
        made = record(capsys, fake, tmp_path, "a.jsonl")
    assert (made.told["added"], len(made.rows)) == (REQUESTS - 10, REQUESTS)


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


def test_a_workload_is_driven_at_its_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(Engine(max_model_len=10**6)) as fake:
        made = record(
            capsys,
            fake,
            tmp_path,
            "a.parquet",
            "--workload",
            "sharegpt",
            "--requests",
            "6",
            "--proposer",
            "eagle3",
        )
    assert made.code == 0
    assert len({len(row["prompt_token_ids"]) for row in made.rows}) > 3
    assert any("random tokens" in note for note in made.told["notes"])


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


def test_sharegpt_asks_the_first_turn_of_each_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [
        [{"from": "human", "value": "w5 w6"}, {"from": "gpt", "value": "w9"}],
        [{"from": "gpt", "value": "w9"}],
        [{"from": "human", "value": "w8"}],
    ]
    prompts = tmp_path / "sharegpt.json"
    prompts.write_text(json.dumps([{"id": str(i), "conversations": t} for i, t in enumerate(turns)]))
    with FakeServer() as fake:
        made = record(capsys, fake, tmp_path, "a.jsonl", "--prompts", str(prompts))
    assert [row["prompt_token_ids"] for row in made.rows] == [[1, 5, 6, 2, 1], [1, 8, 2, 1]]
