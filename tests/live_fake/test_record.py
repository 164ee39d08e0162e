"""``kplan record`` against the fake server: what it writes is what was served."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kplan.acceptance import load_traces
from kplan.cli.app import run
from tests.live_fake.fake import Engine, FakeServer
from tests.live_fake.recorded import (
    OUTPUT_TOKENS,
    REQUESTS,
    check_rows,
    check_trace,
    one_line,
    record,
    texts,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake's counters are up to date when its answer ends, and its faults do not pass by waiting."""
    monkeypatch.setattr("kplan.live.server.SETTLE_S", 0.01)
    monkeypatch.setattr("kplan.live.generate.PAUSE_S", 0.01)


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
