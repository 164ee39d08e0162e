"""``kplan traces replay``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.acceptance import load_traces
from kplan.cli.app import run

ROWS = (
    '{"request_id": "a", "prompt_token_ids": [1, 2, 3, 4, 5, 9], "generated_token_ids": [1, 2, 3, 4, 5, 6]}\n'
    '{"request_id": "b", "prompt_token_ids": [8], "generated_token_ids": [7, 0, 6]}\n'
)


def write(folder: Path, text: str, name: str = "log.jsonl") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_ngram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "traces.parquet"
    argv = ["traces", "replay", str(write(tmp_path, ROWS)), "--proposer", "ngram", "--out", str(out)]
    assert run([*argv, "--k", "2", "--prompt-lookup-min", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    # a: behind 1 2 the prompt has 3 4, all right, so K=1 makes steps of 1, 2, 2 tokens and K=2 of 1, 3, 1
    # (behind 1 2 3 4 5 it has 9 1, both wrong); b drafts nothing: 1, 1.
    assert record["walk"] == [
        {"k": 1, "tokens": 7 / 5, "drafted": 2 / 5},
        {"k": 2, "tokens": 7 / 5, "drafted": 4 / 5},
    ]
    assert (record["requests"], record["positions"]) == (2, 9)
    traces = load_traces(out)
    assert traces.request_id.tolist() == ["a", "b"]
    assert traces.proposers["ngram"].acc.tolist() == [1, 1, 3, 3, 2, 1, 1, 1, 1]


def test_suffix_knows_earlier_outputs_unless_told_not_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path, "prompt,tokens\n8,7 0 6\n8,7 0 6\n", "log.csv")
    argv = ["traces", "replay", str(log), "--proposer", "suffix", "--out", str(tmp_path / "out.parquet")]
    argv += ["--columns", "prompt_token_ids=prompt,generated_token_ids=tokens", "--json"]
    assert run(argv) == 0
    assert json.loads(capsys.readouterr().out)["walk"][0]["tokens"] == 4 / 3
    assert run([*argv, "--max-cached-requests", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["walk"][0]["tokens"] == 1.0


def test_the_suffix_cache_drops_the_oldest_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path, "prompt,tokens\n8,7 0 6\n8,5\n8,7 0 6\n", "log.csv")
    argv = ["traces", "replay", str(log), "--proposer", "suffix", "--out", str(tmp_path / "out.parquet")]
    argv += ["--columns", "prompt_token_ids=prompt,generated_token_ids=tokens", "--json"]
    # The third emits its last two tokens in one step where it still knows the first: 3 steps, else 4.
    for room, tokens in (("3", 4 / 3), ("2", 1.0)):
        assert run([*argv, "--max-cached-requests", room]) == 0
        assert json.loads(capsys.readouterr().out)["walk"][0]["tokens"] == tokens


def test_the_table_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "traces.parquet"
    argv = ["traces", "replay", str(write(tmp_path, ROWS)), "--proposer", "ngram", "--out", str(out)]
    assert run([*argv, "--k", "2", "--prompt-lookup-min", "2"]) == 0
    shown = capsys.readouterr().out
    assert "ngram: 2 requests, 9 positions" in shown
    assert [line.split() for line in shown.splitlines()[2:4]] == [
        ["1", "1.400", "0.400"],
        ["2", "1.400", "0.800"],
    ]


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (ROWS[:-20], ["--proposer", "ngram"], "a line that is no request"),
        (ROWS.replace("[8]", "[-8]"), ["--proposer", "ngram"], "row 2, column prompt_token_ids[0]: got -8"),
        (ROWS, ["--proposer", "eagle"], "--proposer: got 'eagle', ngram or suffix"),
        (ROWS, ["--proposer", "ngram", "--tree-depth", "4"], "tree depth: got 4, ngram has no such setting"),
        (ROWS, ["--proposer", "suffix", "--prompt-lookup-min", "4"], "suffix has no such setting"),
        (ROWS, ["--proposer", "ngram", "--k", "255"], "K: got 255, 1..254"),
        (ROWS, ["--proposer", "suffix", "--min-token-prob", "2"], "0..1 is accepted"),
        (ROWS, ["--proposer", "ngram", "--prompt-lookup-min", "9"], "n-gram lookup: got '9..7'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, flags: list[str], message: str
) -> None:
    log, out = write(tmp_path, text), tmp_path / "out"
    out.mkdir()
    assert run(["traces", "replay", str(log), "--out", str(out / "traces.parquet"), *flags]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert list(out.iterdir()) == []


def test_the_trace_that_ships_can_be_replayed_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own n-gram trace is the replay at the same settings."""
    out = tmp_path / "edit.parquet"
    argv = ["traces", "replay", "example", "--dataset", "edit", "--proposer", "ngram", "--out", str(out)]
    assert run([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 52
    shipped = load_traces(Path("example"), "edit").proposers["ngram"]
    assert load_traces(out).proposers["ngram"].acc.tolist() == shipped.acc.tolist()
