"""Fits judged: on halves that are alike, and with what the recording cannot decide said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import ProposerTrace, TraceModel, TraceSet, load_traces
from kplan.acceptance import judge as judging
from kplan.acceptance.columns import select
from kplan.acceptance.judge import fit_judged, halves, kept_rows, verdicts
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


def test_quarters_by_length_are_halved_each_for_itself() -> None:
    """Four of each length, accepting 1 to 4 tokens at one place: the worst and the best go to the first half.
    Rows keep their order."""
    lengths = [8, 5, 7, 6] * 4
    accepted = [1 + i // 4 for i in range(16)]
    trace = trace_of([[1, a, *[1] * (n - 2)] for n, a in zip(lengths, accepted, strict=True)], 20)
    rows = np.arange(16)[::-1]
    first, second = halves(trace, rows)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(16))
    for length in (5, 6, 7, 8):
        own = sorted(accepted[row] for row in first if lengths[row] == length)
        assert own == [1, 4]
    assert first.tolist() == sorted(first.tolist(), reverse=True)
    assert [half.tolist() for half in halves(trace, np.array([3, 9]))] == [[9], [3]]


def test_rows_of_loops_are_not_kept() -> None:
    traces = set_of(trace_of([[1, 1]] * 3, 2))
    assert kept_rows(traces).tolist() == [0, 1, 2]
    loopy = replace(traces, loopy=np.array([False, True, False]))
    assert kept_rows(loopy).tolist() == [0, 2]
    assert kept_rows(loopy, keep_loopy=True).tolist() == [0, 1, 2]


def test_noise_of_another_k_does_not_excuse() -> None:
    missed = row(3, length=0.05)
    (said,) = verdicts({"holdout": [missed], "random_halves_sd": [row(1, length=0.9)]})
    assert "undecided" not in said
    (said,) = verdicts({"holdout": [missed], "random_halves_sd": [row(3, length=0.025)]})
    assert said.endswith("undecided, random halves differ by 0.025 (1 SD)")
    assert verdicts({}) == []
    assert verdicts({"holdout": [{"k": 1}]}) == []  # nothing to measure


@pytest.mark.parametrize(("n", "held_out"), [(59, False), (60, True)])
def test_a_judged_fit_is_held_against_the_half_that_it_has_not_seen(
    n: int, held_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fits that know what they saw: all requests, or the half; errors of what they generate."""
    monkeypatch.setattr(judging, "REPEATS_TOKENS", 4 * n)
    monkeypatch.setattr(judging, "RANDOM_HALVES", 4)
    fits: list[tuple[int, bool]] = []

    def fit(part: TraceSet, proposer: str, *, keep_loopy: bool) -> TraceModel:
        fits.append((len(part), keep_loopy))
        return replace(flat_model([0.0]), proposer=proposer, facts={"requests": len(part)})

    monkeypatch.setattr(judging, "fit", fit)
    rows = [[1, 2, 1, 2, 1]] * n  # two tokens a step, where the model has one
    traces = replace(set_of(trace_of(rows, 1)), loopy=np.zeros(n, np.bool_))
    model = fit_judged(traces, "made")
    assert model.facts["requests"] == n
    assert model.facts["in_sample"] == [
        {"k": 1.0, "real_acceptance_length": 2.0, "acceptance_length_error": -0.5}
    ]
    assert ("holdout" in model.facts) == held_out
    assert fits == [(n, False), *([(n // 2, True)] if held_out else [])]
    if held_out:
        assert model.facts["holdout"] == model.facts["in_sample"]
        assert model.facts["halves_differ"][0]["acceptance_length_error"] == 0.0
        assert model.facts["random_halves_sd"] == [{"k": 1.0, "acceptance_length_error": 0.0}]
    assert "holdout" not in fit_judged(traces, "made", holdout=False).facts


def test_errors_are_measured_on_copies_of_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as make the positions asked for, rounded down, one at least."""
    seen: list[int] = []

    def compare(_: ProposerTrace, made: ProposerTrace) -> list[dict[str, float]]:
        seen.append(len(made.output_len))
        return []

    monkeypatch.setattr(judging, "compare", compare)
    trace = trace_of([[1, 1, 1], [1, 1]], 2)
    for positions, copies in ((14, 2), (15, 3), (1, 1)):
        monkeypatch.setattr(judging, "REPEATS_TOKENS", positions)
        judging._errors(trace, np.array([0, 1]), flat_model([0.5]))
        assert seen.pop() == 2 * copies


@pytest.mark.shared
def test_a_model_of_half_the_recording_holds_every_bar_on_the_other(shared_dir: Path) -> None:
    """One of nine; ``kplan traces fit`` says the same of every data set and proposer."""
    traces = load_traces(shared_dir / "data/acceptance_traces.parquet", "gsm8k")
    model = fit_judged(traces, "ngram")
    assert [row["k"] for row in model.facts["holdout"]] == [1, 3, 5, 7]
    assert verdicts(model.facts) == []
