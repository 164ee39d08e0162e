"""Step logs and end-to-end tables as files: what a line means, and one line for each that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import TpotRow, read_tpot
from kplan.latency.observed import SHAPE_FIELDS, Observation, medians

STEP = {"step_s": 0.01, "decode_requests": 4, "k": 3, "context": 100, "proposer": "ngram"}
HEAD = "concurrency,tpot_ms,k,proposer,acceptance_length,prompt_tokens,output_tokens"


def log(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def counts(row: Observation, mixture: int = 0) -> dict[str, float]:
    return dict(zip(SHAPE_FIELDS, row.shapes[mixture], strict=True))


def test_a_step_with_a_prefill_is_read_as_its_counts(tmp_path: Path) -> None:
    with_prefill = STEP | {"prefill_requests": 2, "prefill_tokens": 60, "prefill_kv_tokens": 100}
    (row,) = read_steps(log(tmp_path / "s.jsonl", with_prefill))
    assert counts(row) == {
        "decode_requests": 4,
        "decode_tokens": 16,
        "decode_kv_tokens": 400,
        "decode_qk_tokens": 1600,
        "prefill_requests": 2,
        "prefill_tokens": 60,
        "prefill_kv_tokens": 100,
        "prefill_qk_tokens": 60 * (20 + 15),  # 20 computed before, half of a chunk of 30
        "sampled_rows": 18,
        "draft_requests": 6,
        "draft_k": 3,
    }
    assert (row.seconds, row.k, row.proposer) == (0.01, 3, "ngram")


def test_lines_of_the_vllm_stat_logger_are_steps(tmp_path: Path) -> None:
    header = {"log": {"proposer": "ngram", "kv_capacity_tokens": 40000}}
    line = {
        "t": 1.0,
        "e": 0,
        "run": 2,
        "kv": 0.01,
        "ms": 8.0,
        "gen_r": 2,
        "gen_t": 10,
        "ctx_r": 0,
        "ctx_t": 0,
    }
    idle = {"t": 1.1, "e": 0, "run": 0}
    (row,) = read_steps(log(tmp_path / "s.jsonl", header, line, idle))
    assert row.seconds == pytest.approx(0.008)
    assert (row.proposer, row.k) == ("ngram", 4)
    assert counts(row)["decode_kv_tokens"] == pytest.approx(400)
    assert row.place == "line 2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no step"),
        ('{"step_s": 0.01, "decode_req', "line 1 of s.jsonl.*is not JSON.*cut off"),
        ("[1, 2]", "must be a JSON object"),
        (json.dumps(STEP | {"step_s": 0}), "step_s in line 1"),
        (json.dumps(STEP | {"step_s": -0.01}), "step_s in line 1"),
        (json.dumps(STEP).replace("0.01", "NaN"), "step_s in line 1"),
        (json.dumps({k: v for k, v in STEP.items() if k != "context"}), r"kv_tokens \(or context\)"),
        (json.dumps({k: v for k, v in STEP.items() if k != "k"}), r"decode_tokens \(or k\)"),
        (json.dumps({k: v for k, v in STEP.items() if k != "decode_requests"}), "decode_requests in line 1"),
        (json.dumps(STEP | {"step_s": 10.0}), "looks like milliseconds"),
        (json.dumps(STEP | {"proposer": None}), "decode_tokens in line 1.*no proposer is named"),
    ],
)
def test_logs_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as refused:
        read_steps(path)
    assert "\n" not in str(refused.value)


def test_a_run_at_one_request_is_its_decode_steps_alone() -> None:
    row = TpotRow(
        concurrency=1,
        tpot_ms=4.0,
        k=3,
        proposer="eagle",
        acceptance_length=2.5,
        prompt_tokens=100,
        output_tokens=201,
    ).observation("x.csv, blake2b 0", "line 2")
    assert row.seconds == pytest.approx(0.010)
    assert list(row.weights) == [1.0]
    assert counts(row)["decode_tokens"] == 4
    assert counts(row)["decode_kv_tokens"] == 100 + 100.5


def test_every_request_that_ends_brings_a_prefill() -> None:
    """32 clients of 1 + 100 / 1 steps: 31 others prefill 31 / 101 times per step, on average."""
    row = TpotRow(concurrency=32, tpot_ms=10.0, prompt_tokens=500, output_tokens=101)
    seen = row.observation("x.csv, blake2b 0", "line 2")
    assert seen.mean("prefill_tokens") == pytest.approx(500 * 31 / 101, rel=1e-4)
    assert seen.mean("decode_requests") == pytest.approx(32 - 31 / 101, rel=1e-4)
    assert seen.weights.sum() == pytest.approx(1.0)
    assert np.all(seen.shapes[:, 0] + seen.shapes[:, 4] == 32)


def test_throughput_counts_the_prefill_of_the_request_itself() -> None:
    """One client: 51 steps of 20 ms for 51 tokens, its prefill among them, make 50 tokens/s."""
    row = TpotRow(concurrency=1, output_tok_s=50.0, prompt_tokens=500, output_tokens=51)
    seen = row.observation("x.csv, blake2b 0", "line 2")
    assert seen.seconds == pytest.approx(0.020)
    assert seen.mean("prefill_requests") == pytest.approx(1 / 51)


def test_a_share_of_accepted_drafts_is_an_acceptance_length() -> None:
    row = TpotRow(
        concurrency=1, tpot_ms=1, k=4, proposer="ngram", acceptance_pct=75, prompt_tokens=9, output_tokens=9
    )
    assert row.tokens_per_step == 4.0
    assert row.model_copy(update={"verified": 2.0}).tokens_per_step == 2.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no rows"),
        (HEAD, "has no rows"),
        ("concurrency,tpot_ms,k\n1,5.0,0", "prompt_tokens, output_tokens.*are missing"),
        ("concurrency,k,prompt_tokens,output_tokens\n1,0,9,9", r"tpot_ms \(or output_tok_s\)"),
        (HEAD + ",qps\n1,5.0,0,,,9,9,1", "qps.*known"),
        (HEAD + "\n1,5.0,0,,,9", "line 2 of t.csv.*6 cells.*cut off"),
        (HEAD + "\n1,-5.0,0,,,9,9", "tpot_ms in line 2"),
        (HEAD + "\n1,0,0,,,9,9", "tpot_ms in line 2"),
        (HEAD + "\n1,nan,0,,,9,9", "tpot_ms in line 2"),
        (HEAD + "\nmany,5.0,0,,,9,9", "concurrency in line 2"),
        (HEAD + "\n1,5.0,3,,2,9,9", "no proposer is named"),
        (HEAD + "\n1,5.0,3,eagle,,9,9", "acceptance_length .or acceptance_pct. must be given"),
        (HEAD + "\n1,5.0,3,eagle,4.5,9,9", "exceeds k . 1 = 4"),
        (HEAD + "\n1,0.005,0,,,9,9", "looks like seconds"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as refused:
        read_tpot(path)
    assert "\n" not in str(refused.value)


def test_lines_of_kplans_plugin_are_whole_steps_at_exact_contexts(tmp_path: Path) -> None:
    """The gap between steps is taken, not the part of it that the engine waited; without a gap, no step."""
    about = {"log": {"proposer": "draft-model", "kv_capacity_tokens": 5000}}
    first = {"gap_ms": None, "ms": 9.0, "gen_r": 0, "gen_t": 0, "ctx_r": 2, "ctx_t": 60, "held": 0, "kv": 0.1}
    second = {"gap_ms": 7.5, "ms": 5.0, "gen_r": 2, "gen_t": 6, "ctx_r": 0, "ctx_t": 0, "held": 62, "kv": 0.1}
    (row,) = read_steps(log(tmp_path / "steps.jsonl", about, first, second))
    assert (row.seconds, row.batch, row.k, row.proposer) == (0.0075, 2, 2, "draft-model")
    assert counts(row)["decode_kv_tokens"] == 62


def test_a_step_of_a_table_drafts_what_the_next_one_verifies(tmp_path: Path) -> None:
    """Three requests verify 4 drafts each, are told to draft 1, verify that; an index is missing after it."""
    steps = [
        {"idx": n, "gap_ms": 8.0, "gen_r": 3, "gen_t": tokens, "held": 300}
        for n, tokens in ((5, 15), (6, 6), (9, 15))
    ]
    rows = read_steps(log(tmp_path / "steps.jsonl", {"log": {"proposer": "eagle3"}}, *steps))
    assert [row.k for row in rows] == [1, 1, 4]
    assert [counts(row)["decode_tokens"] for row in rows] == [15, 6, 15]


def test_a_servers_own_log_is_read_by_its_iteration_lines(tmp_path: Path) -> None:
    """Lines of vLLM 0.32.0 as it wrote them."""
    path = tmp_path / "server.log"
    path.write_text(
        "(EngineCore pid=5) INFO 11-30 00:32:12 [kv_cache_utils.py:2327] CPU KV cache size: 524,288 tokens, "
        "Maximum concurrency for 1,024 tokens per request: 512.00x\n"
        "(APIServer pid=4) INFO 11-30 00:32:14 [loggers.py:199] Engine 0: Iteration(0): 1 context requests, "
        "32 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 9.73 ms, "
        "CPU KV cache usage: 0.0%\n"
        '(APIServer pid=4) INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        "(APIServer pid=4) INFO 11-30 00:32:14 [loggers.py:199] Engine 0: Iteration(1): 7 context requests, "
        "224 context tokens, 2 generation requests, 6 generation tokens, iteration elapsed time: 21.66 ms, "
        "CPU KV cache usage: 0.2%\n"
    )
    prompt, mixed = read_steps(path, proposer="ngram")
    assert (prompt.seconds, prompt.batch, counts(prompt)["prefill_tokens"]) == (0.00973, 1, 32)
    assert (mixed.seconds, mixed.batch, mixed.k) == (0.02166, 9, 2)
    assert counts(mixed)["decode_kv_tokens"] == pytest.approx(0.002 * 524288)


def test_a_part_of_a_log_keeps_what_the_log_says_of_itself(tmp_path: Path) -> None:
    steps = [{"gap_ms": 5.0 + n, "gen_r": 1, "gen_t": 2, "held": 10 + n} for n in range(4)]
    path = log(tmp_path / "steps.jsonl", {"log": {"proposer": "ngram"}}, *steps)
    ends = np.cumsum([len(line) for line in path.read_bytes().splitlines(keepends=True)])
    rows = read_steps(path, begin=int(ends[1]), end=int(ends[3]))
    assert [row.seconds for row in rows] == [0.006, 0.007]
    assert {row.proposer for row in rows} == {"ngram"}


def test_steps_of_one_setting_become_their_median(tmp_path: Path) -> None:
    alike = [
        {"gap_ms": ms, "gen_r": 2, "gen_t": 2, "held": held} for ms, held in ((5, 98), (6, 100), (50, 102))
    ]
    rare = {"gap_ms": 9, "gen_r": 3, "gen_t": 3, "held": 150}
    (row,) = medians(read_steps(log(tmp_path / "steps.jsonl", *alike, rare)), least=3)
    assert (row.seconds, row.batch) == (0.006, 2)
    assert counts(row)["decode_kv_tokens"] == 100
