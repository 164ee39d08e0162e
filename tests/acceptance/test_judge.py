"""Fits judged: on halves that are alike, and with what the recording cannot decide said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import load_traces
from kplan.acceptance.columns import select
from kplan.acceptance.judge import fit_judged, halves, verdicts
from tests.acceptance.made import flat_model, set_of, trace_of


def test_halves_are_alike_and_hold_every_request_once() -> None:
    """Eight outputs of one length, accepting 1 to 8 tokens: neighbours part, so both halves sum to 18."""
    trace = trace_of([[1, a, *[1] * 30] for a in (5, 1, 8, 3, 2, 7, 4, 6)], 20)
    first, second = halves(trace, np.arange(8))
    assert sorted([*first, *second]) == list(range(8))
    assert [int(select(trace, rows).acc.astype(int).sum()) - 4 * 31 for rows in (first, second)] == [18, 18]
    assert list(first) == sorted(first)


def test_halves_share_long_and_short_outputs() -> None:
    lengths = np.array([10] * 8 + [200] * 8)
    trace = flat_model([0.5]).generate(0, lengths)
    for rows in halves(trace, np.arange(16)):
        assert sorted(lengths[rows]) == [10] * 4 + [200] * 4


def row(k: float, length: float = 0.0, lag1: float = 0.0, sd: float = 0.0) -> dict[str, Any]:
    return {"k": k, "acceptance_length_error": length, "lag1_error": lag1, "request_sd_error": sd}


@pytest.mark.parametrize(
    ("error", "noise", "said"),
    [
        (row(1), row(1), []),
        (row(1, 0.02, 0.05, -0.15), row(1), []),
        (
            row(3, length=-0.021),
            row(3, length=0.001),
            ["K=3: acceptance length is off by -0.021, more than 0.02"],
        ),
        (
            row(7, sd=0.16),
            row(7, sd=0.09),
            [
                "K=7: request sd is off by +0.160, more than 0.15; "
                "undecided, random halves differ by 0.090 (1 SD)"
            ],
        ),
    ],
)
def test_a_missed_bar_is_said_and_so_is_what_cannot_be_decided(
    error: dict[str, Any], noise: dict[str, Any], said: list[str]
) -> None:
    assert verdicts({"holdout": [error], "random_halves_sd": [noise]}) == said


def test_random_halves_differ_as_theory_has_it() -> None:
    """One draft a step, accepted with chance 1/2: tokens a step are 1.5 with SD 1/2, so the difference of two
    halves of 30 requests x 100 positions is 0.5 x sqrt(2 / (30 x 100 / 1.5)) / 1.5 = 1.05% of it (1 SD).

    Of 40 splits the SD is known within 11%; three of those are allowed.
    """
    traces = set_of(flat_model([0.5], known_k=1).generate(3, np.full(60, 101)))
    model = fit_judged(traces, "made")
    (found,) = model.facts["random_halves_sd"]
    assert found["acceptance_length_error"] == pytest.approx(0.0105, rel=0.35)


@pytest.mark.shared
def test_a_model_of_half_the_recording_holds_every_bar_on_the_other(shared_dir: Path) -> None:
    """One of nine; ``kplan traces fit`` says the same of every data set and proposer."""
    traces = load_traces(shared_dir / "data/acceptance_traces.parquet", "gsm8k")
    model = fit_judged(traces, "ngram")
    assert [row["k"] for row in model.facts["holdout"]] == [1, 3, 5, 7]
    assert verdicts(model.facts) == []
