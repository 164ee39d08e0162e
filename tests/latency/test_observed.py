"""Measured rows: what their counts come to, which are of one setting, and which no engine ran."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency.fit_report import Residuals
from kplan.latency.observed import Observation, Served, check_seats, medians, repeats, shape_row
from kplan.profiles import load_engine, load_hardware, load_model


def row(
    requests: float = 4,
    context: float = 100,
    *,
    k: int = 0,
    prompts: float = 0,
    prompt_tokens: float = 0,
    proposer: str | None = None,
    seconds: float = 0.01,
    place: str = "line 1",
) -> Observation:
    shape = shape_row(
        decode_requests=requests,
        decode_tokens=requests * (k + 1),
        decode_kv_tokens=requests * context,
        prefill_requests=prompts,
        prefill_tokens=prompt_tokens,
    )
    return Observation("steps.jsonl, blake2b 0", place, proposer, k, seconds, np.array([shape]), np.ones(1))


def test_a_mixture_is_its_mean_and_its_largest_step() -> None:
    """A quarter of the steps prefill 50 tokens beside 2 requests, the others decode 4 of 2 tokens."""
    shapes = np.array(
        [
            shape_row(decode_requests=4, decode_tokens=8, decode_kv_tokens=800),
            shape_row(
                decode_requests=2,
                decode_tokens=4,
                decode_kv_tokens=200,
                prefill_requests=1,
                prefill_tokens=50,
            ),
        ]
    )
    seen = Observation("s", "p", None, 1, 0.01, shapes, np.array([0.75, 0.25]))
    assert seen.mean("decode_kv_tokens") == 650
    assert seen.batch == 3.5 + 0.25
    assert (seen.tokens, seen.verified_tokens) == (54, 8)
    assert seen.context == pytest.approx(650 / 3.5)
    assert row(0, prompts=1, prompt_tokens=9).context == 0.0
    assert row(0.5, 100).context == 100.0


def test_settings_are_the_same_within_a_fifth_of_their_counts() -> None:
    """Of log(1 + n) / 0.2, halves apart: 100 and 105 tokens of context round to 23, 120 to 24."""
    rows = [
        row(4, 100),
        row(4, 105),
        row(4, 120),
        row(4, 100, proposer="ngram"),
        row(4, 100, k=1, proposer="ngram"),
        row(40, 100),
        row(4, 100, prompts=1, prompt_tokens=400),
    ]
    assert list(repeats(rows)) == [2, 2, 1, 1, 1, 1, 1]


def test_medians_are_of_one_setting_and_of_the_least_number() -> None:
    steps = [row(4, 100, seconds=0.01 * n, place=f"line {n}") for n in (1, 2, 9)]
    others = [row(5, 100), row(5, 100, prompts=1, prompt_tokens=7), row(4, 100, k=1), row(4, 100, k=1)]
    found = medians(steps + others, least=2)
    assert [(each.place, each.seconds, each.k) for each in found] == [
        ("3 steps from line 1", 0.02, 0),
        ("2 steps from line 1", 0.01, 1),
    ]
    assert found[0].source == "steps.jsonl, blake2b 0"
    assert list(found[0].weights) == [1.0]


def test_steps_that_verify_other_numbers_are_apart() -> None:
    """Ten requests with 12 and with 13 tokens: 1.2 and 1.3 each. Steps without a request have none."""
    few, more = (
        Observation("s", "p", "ngram", 3, 0.01, np.array([shape]), np.ones(1))
        for shape in (
            shape_row(decode_requests=10, decode_tokens=12, decode_kv_tokens=100),
            shape_row(decode_requests=10, decode_tokens=13, decode_kv_tokens=100),
        )
    )
    assert len(medians([few, more], least=1)) == 2
    assert len(medians([row(0, prompts=1, prompt_tokens=60)] * 2, least=2)) == 1


def test_as_many_requests_as_an_engine_seats_and_no_more_are_priced() -> None:
    served = Served(load_hardware("h100-sxm"), load_model("llama-3.1-8b"), load_engine("vllm"))
    check_seats(served, [row(1000, prompts=24)])
    told = (
        r"requests at a time in line 1 of steps\.jsonl: got '1025', vllm runs at most 1024 by default on h100"
    )
    with pytest.raises(InputError, match=told):
        check_seats(served, [row(1000, prompts=25)])


def test_a_residual_is_relative_to_what_was_measured() -> None:
    one = Residuals("s", np.array([2.0, 4.0]), np.array([3.0, 3.0]))
    assert list(one.relative) == [0.5, -0.25]
    line = one.line()
    assert (line.name, line.rows, line.mape) == ("s", 2, 0.375)
