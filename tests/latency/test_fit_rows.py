"""Lines of step logs and rows of end-to-end tables at the edges of what they may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kplan.errors import InputError
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import TpotRow, read_rows, read_tpot
from kplan.latency.observed import SHAPE_FIELDS, Observation

STEP = {"step_s": 0.01, "decode_requests": 4, "decode_tokens": 4, "kv_tokens": 400}
HEAD = "concurrency,tpot_ms,prompt_tokens,output_tokens"


def log(folder: Path, *records: object) -> Path:
    path = folder / "s.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def counts(row: Observation, number: int = 0) -> dict[str, float]:
    return dict(zip(SHAPE_FIELDS, row.shapes[number], strict=True))


def run(**changed: Any) -> TpotRow:
    return TpotRow(**{"concurrency": 3, "tpot_ms": 10.0, "prompt_tokens": 40, "output_tokens": 2} | changed)


# --- end-to-end tables


def test_the_others_prefill_by_chance_and_the_shapes_are_theirs() -> None:
    """Two tokens take two steps, so each of two others prefills in every second one: 1/4, 1/2, 1/4.

    Four drafts of which 1.5 are verified; contexts are a prompt of 40 and half of the output.
    """
    row = run(k=4, proposer="ngram", acceptance_length=1, verified=1.5).observation(
        "t.csv, blake2b 0", "line 2"
    )
    assert row.weights == pytest.approx([0.25, 0.5, 0.25])
    assert (row.proposer, row.k, row.source, row.place) == ("ngram", 4, "t.csv, blake2b 0", "line 2")
    assert [counts(row, number)["decode_tokens"] for number in range(3)] == [
        8,
        5,
        2,
    ]  # 7.5 is rounded to even
    assert counts(row, 1) == {
        "decode_requests": 2,
        "decode_tokens": 5,
        "decode_kv_tokens": 82,
        "decode_qk_tokens": 205,
        "prefill_requests": 1,
        "prefill_tokens": 40,
        "prefill_kv_tokens": 40,
        "prefill_qk_tokens": 800,
        "sampled_rows": 6,
        "draft_requests": 3,
        "draft_k": 4,
    }
    assert counts(row, 2)["prefill_qk_tokens"] == 1600
    plain = run().observation("t.csv", "line 2")
    assert (counts(plain)["draft_requests"], counts(plain)["draft_k"]) == (0, 0)


def test_throughput_counts_every_request_and_its_prefill() -> None:
    """Three requests of 2 tokens in 2 steps make 3 tokens a step: at 30 tokens/s a tenth of a second."""
    row = run(tpot_ms=None, output_tok_s=30.0).observation("t.csv", "line 2")
    assert row.seconds == pytest.approx(0.1)
    assert row.weights == pytest.approx([1 / 8, 3 / 8, 3 / 8, 1 / 8])


def test_a_step_is_as_long_as_its_tokens() -> None:
    row = run(k=3, proposer="eagle", acceptance_length=2.5, output_tokens=51)
    assert row.step_seconds() == pytest.approx(0.025)
    assert row.steps == 21.0
    assert run(k=3, proposer="eagle", acceptance_pct=50).tokens_per_step == 2.5
    assert run(k=3, proposer="eagle", acceptance_length=4).tokens_per_step == 4
    assert run().tokens_per_step == 1.0


def test_numbers_of_prefills_rarer_than_one_in_a_million_are_left_out() -> None:
    """Of 1,000 others each with 1 in 2,001: about Poisson(0.5), where 6 come 13 times in a million, 7 0.9."""
    shapes, weights = run(concurrency=1001, output_tokens=2001).mixture()
    assert len(shapes) == 7
    assert sum(weights) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"tpot_ms": None}, "one of tpot_ms and output_tok_s"),
        ({"output_tok_s": 3.0}, "one of tpot_ms and output_tok_s"),
        ({"k": 1}, "k is 1, but no proposer is named"),
        ({"k": 1, "proposer": "eagle"}, "k is 1: acceptance_length"),
        (
            {"k": 1, "proposer": "eagle", "acceptance_length": 2.1},
            "an acceptance length of 2.1 exceeds k . 1 = 2",
        ),
        ({"acceptance_length": 0.9}, "greater than or equal to 1"),
        ({"acceptance_pct": 100.1}, "less than or equal to 100"),
        ({"acceptance_pct": -0.1}, "greater than or equal to 0"),
        ({"verified": -0.1}, "greater than or equal to 0"),
        ({"k": -1}, "greater than or equal to 0"),
        ({"k": 255, "proposer": "eagle", "acceptance_length": 1}, "less than or equal to 254"),
        ({"concurrency": 0}, "greater than or equal to 1"),
        ({"concurrency": 100_001}, "less than or equal to 100000"),
        ({"prompt_tokens": 0}, "greater than or equal to 1"),
        ({"prompt_tokens": 100_000_001}, "less than or equal to 100000000"),
        ({"output_tokens": 1}, "greater than or equal to 2"),
        ({"output_tokens": 100_000_001}, "less than or equal to 100000000"),
        ({"tpot_ms": 0.0}, "greater than 0"),
        ({"tpot_ms": float("inf")}, "finite number"),
    ],
)
def test_a_run_that_cannot_be_says_why(changed: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run(**changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"acceptance_length": 1.0},
        {"k": 254, "proposer": "eagle", "acceptance_pct": 100.0},
        {"k": 2, "proposer": "eagle", "acceptance_pct": 0.0, "verified": 0.0},
        {"concurrency": 1, "prompt_tokens": 1},
        {"concurrency": 100_000, "prompt_tokens": 100_000_000, "output_tokens": 100_000_000},
        {"tpot_ms": 1e-9},
    ],
)
def test_a_run_at_an_edge_is_one(changed: dict[str, object]) -> None:
    assert run(**changed).tokens_per_step >= 1.0


def test_a_table_at_its_edges_is_read(tmp_path: Path) -> None:
    """Remarks and blank lines count as lines, blanks around a cell do not; a median of 0.1 ms is fast."""
    path = tmp_path / "t.csv"
    path.write_text(f"# made\n\n{HEAD},k\n 2 , 0.1 ,9,9,\n#2,5,9,9,\n3,0.1,9,9,0\n")
    rows = read_rows(path)
    assert [(place, row.concurrency, row.k) for place, row in rows] == [("line 4", 2, 0), ("line 6", 3, 0)]
    assert [row.seconds for row in read_tpot(path)] == pytest.approx([1e-4, 1e-4])
    assert read_tpot(path)[0].source.startswith("t.csv, blake2b ")


def test_a_table_of_more_than_16_mb_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(InputError, match="has 16,777,217 bytes; at most 16,777,216 are read"):
        read_tpot(path)
    with path.open("wb") as file:
        file.truncate(2**24)
    with pytest.raises(InputError, match=r"has no rows|is no row|are missing"):
        read_tpot(path)


# --- step logs


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"decode_tokens": 3}, "decode_tokens in line 1: got 3.0, every one of 4 requests brings one"),
        ({"decode_tokens": 5}, "got 5.0, of 4 requests, but no proposer is named"),
        ({"decode_tokens": None}, r"line 1 of s\.jsonl: got 'decode_tokens \(or k\)', is missing"),
        ({"kv_tokens": None}, r"line 1 of s\.jsonl: got 'kv_tokens \(or context\)', is missing"),
        ({"decode_requests": -1}, "decode_requests in line 1"),
        ({"decode_requests": 1.1e9}, "decode_requests in line 1"),
        ({"k": -1}, "k in line 1"),
        ({"k": 255}, "k in line 1"),
        ({"step_s": 0, "decode_requests": -1}, "step_s in line 1"),
        ({"step_s": 5.1}, "got 5.1, looks like milliseconds; divide the column by 1000"),
    ],
)
def test_a_step_that_cannot_be_says_why(tmp_path: Path, changed: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_steps(log(tmp_path, STEP | changed))


def test_a_step_at_its_edges_is_one(tmp_path: Path) -> None:
    path = log(
        tmp_path, STEP | {"step_s": 5.0}, STEP | {"kv_tokens": 1e9, "step_s": 5.0, "prefill_tokens": 0}
    )
    assert [row.seconds for row in read_steps(path)] == [5.0, 5.0]
    (most,) = read_steps(log(tmp_path, STEP | {"k": 254, "proposer": "ngram"}))
    assert (most.k, counts(most)["decode_tokens"]) == (254, 4 * 255)


def test_what_is_told_twice_is_taken_as_drafts_and_a_mean_context(tmp_path: Path) -> None:
    (row,) = read_steps(log(tmp_path, STEP | {"k": 2, "context": 50, "proposer": "ngram"}))
    assert (counts(row)["decode_tokens"], counts(row)["decode_kv_tokens"]) == (12, 200)
    assert counts(row)["decode_qk_tokens"] == 12 * 50


def test_drafts_of_a_step_are_told_or_as_many_as_it_verified(tmp_path: Path) -> None:
    verified = STEP | {"decode_tokens": 14, "proposer": "ngram"}  # 3.5 each
    told = verified | {"drafted_k": 5}
    rows = read_steps(log(tmp_path, verified, told, STEP | {"drafted_k": 5}, verified | {"drafted_k": 0}))
    assert [row.k for row in rows] == [3, 5, 0, 0]
    assert [counts(row)["draft_requests"] for row in rows] == [4, 4, 0, 0]
    assert [counts(row)["draft_k"] for row in rows] == [3, 5, 0, 0]


def test_a_step_of_prompts_alone_is_one_and_an_idle_one_is_not(tmp_path: Path) -> None:
    idle = {"step_s": 0.01, "decode_requests": 0, "decode_tokens": 0, "kv_tokens": 0, "proposer": "ngram"}
    (row,) = read_steps(log(tmp_path, idle, idle | {"prefill_requests": 2, "prefill_tokens": 30}))
    found = counts(row)
    assert row.place == "line 2"
    assert (row.k, found["decode_qk_tokens"], found["sampled_rows"]) == (0, 0, 2)
    assert (found["prefill_kv_tokens"], found["prefill_qk_tokens"]) == (30, 30 * 7.5)


def test_a_plugin_s_cache_is_told_in_tokens_or_as_a_share_of_its_size(tmp_path: Path) -> None:
    about = {"log": {"kv_capacity_tokens": 5000}}
    step = {"ms": 4.0, "gen_r": 2, "gen_t": 2, "ctx_r": 1, "ctx_t": 8}
    rows = read_steps(
        log(
            tmp_path,
            about,
            step | {"kv": 0.1},
            step | {"kv": 0.1, "held": 70},
            step | {"kv": 0.1, "held": 70, "kv_tokens": 80},
            step | {"kv": 0.1, "held": 1e100},
            step | {"gap_ms": 6.0, "held": 70},
            step | {"gap_ms": None, "held": 70},
            step | {"ms": "fast", "held": 70},
        )
    )
    assert [counts(row)["decode_kv_tokens"] for row in rows] == [500, 70, 80, 500, 70]
    assert [row.seconds for row in rows] == pytest.approx([0.004] * 4 + [0.006])
    assert (counts(rows[0])["prefill_requests"], counts(rows[0])["prefill_tokens"]) == (1, 8)


def test_a_share_without_a_size_is_no_context(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="kv_tokens"):
        read_steps(log(tmp_path, {"ms": 4.0, "gen_r": 2, "gen_t": 2, "kv": 0.1}))


def test_only_a_step_right_after_tells_what_was_drafted(tmp_path: Path) -> None:
    """Steps without an index, with a gap, or followed by one without requests tell their own."""
    step = {"ms": 4.0, "gen_r": 2, "gen_t": 6, "held": 70, "proposer": "eagle"}
    others: list[list[dict[str, object]]] = [
        [step, step | {"gen_t": 8}],
        [step | {"idx": 1}, step | {"idx": 3, "gen_t": 8}],
        [step | {"idx": 1}, step | {"idx": 2, "gen_r": 0, "gen_t": 0, "ctx_r": 1, "ctx_t": 5}],
        [step | {"idx": 1, "drafted_k": 4}, step | {"idx": 2, "gen_t": 8}],
        [step | {"idx": 1}, step | {"idx": 2, "gen_t": 8}],
    ]
    assert [read_steps(log(tmp_path, *pair))[0].k for pair in others] == [2, 2, 2, 4, 3]


def test_a_log_names_its_proposer_until_another_does(tmp_path: Path) -> None:
    """What a record says of the log holds after it, for all that was said before; null: there is none."""
    drafted = STEP | {"decode_tokens": 8}
    records = (
        drafted,
        {"log": {"proposer": "eagle3"}},
        drafted,
        {"log": {}},
        drafted,
        STEP | {"proposer": None},
    )
    rows = read_steps(log(tmp_path, *records), proposer="ngram", source="made")
    assert [row.proposer for row in rows] == ["ngram", "eagle3", "ngram", None]
    assert {row.source for row in rows} == {"made"}


def test_bytes_of_a_log_end_where_they_are_told(tmp_path: Path) -> None:
    """A line is inside when it begins there; blank lines and lines of text in two bytes count theirs."""
    lines = [json.dumps(STEP | {"step_s": 0.001 * n, "who": "ü"}, ensure_ascii=False) for n in range(1, 5)]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([*lines[:2], "", *lines[2:]]) + "\n", encoding="utf-8")
    starts = [0]
    for line in path.read_bytes().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    third = read_steps(path, begin=starts[3])
    assert [row.seconds for row in third] == pytest.approx([0.003, 0.004])
    assert [row.seconds for row in read_steps(path, begin=starts[3] + 1)] == pytest.approx([0.004])
    assert third[0].place == "line 4"
    assert [row.seconds for row in read_steps(path, end=starts[2])] == pytest.approx([0.001, 0.002])


def test_a_part_of_a_server_s_log_keeps_the_size_of_its_cache(tmp_path: Path) -> None:
    size = "INFO GPU KV cache size: 1,000 tokens\n"
    step = (
        "Iteration({}): 0 context requests, 0 context tokens, 2 generation requests, 2 generation tokens, "
        "iteration elapsed time: {} ms, GPU KV cache usage: 10.0%\n"
    )
    path = tmp_path / "server.log"
    path.write_text(size + "noise\n" + step.format(1, 5) + step.format(2, 6.5))
    (row,) = read_steps(path, begin=len(size) + len("noise\n") + 1)
    assert (row.seconds, counts(row)["decode_kv_tokens"], row.place) == (0.0065, 100, "line 4")


def test_a_log_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\xff\xff\n")
    with pytest.raises(InputError, match=r"--steps: got 's\.jsonl', cannot be read"):
        read_steps(path)


def test_a_log_of_more_than_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with path.open("wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(InputError, match="at most 1,073,741,824 are read"):
        read_steps(path)
