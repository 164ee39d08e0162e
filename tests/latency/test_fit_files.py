"""Step logs and end-to-end tables as files: what a line means, and one line for each that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import TpotRow, read_tpot
from kplan.latency.observed import SHAPE_FIELDS, Observation

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
