"""Short outputs that accept more than long ones: a fit keeps the difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.acceptance import ProposerTrace, by_length, fit
from kplan.acceptance.by_length import match_lengths
from kplan.acceptance.columns import select
from kplan.acceptance.walk import walk
from tests.acceptance.made import flat_model, leviathan_length, set_of, trace_of

SHORT, LONG = 60, 400


def steps_per_token(trace: ProposerTrace, length: int) -> float:
    """Mean over requests of that output length, at K = 3."""
    stats = walk(select(trace, np.flatnonzero(trace.output_len == length)), 3)
    return float(np.mean(stats.request_steps / stats.request_tokens))


def test_classes_of_a_bin_are_tilted_to_what_was_recorded() -> None:
    """Requests accept a draft with chance .3 or .8, at first half of them each.

    Short outputs are recorded with shares 1/5 and 4/5, long ones with 3/5 and 2/5.
    """
    model = replace(
        flat_model([0.3, 0.8], classes=2),
        length_edges=np.array([100.0]),
        class_by_length=np.array([[0.5, 0.5], [0.5, 0.5]]),
    )
    shares = np.array([[0.2, 0.8], [0.6, 0.4]])
    lengths = np.tile([SHORT, LONG], 3000)
    recorded = replace(model, class_by_length=shares).generate(5, lengths)
    np.testing.assert_allclose(match_lengths(model, recorded, 3).class_by_length, shares, atol=0.02)


def test_a_fit_keeps_what_short_outputs_accept_beside_long_ones() -> None:
    """Short outputs accept a draft with chance .8, long ones with .4."""
    short = flat_model([0.8]).generate(1, np.full(60, SHORT))
    long = flat_model([0.4]).generate(2, np.full(60, LONG))
    both = ProposerTrace(
        output_len=np.concatenate([short.output_len, long.output_len]),
        offsets=np.concatenate([short.offsets, short.offsets[-1] + long.offsets[1:]]),
        acc=np.concatenate([short.acc, long.acc]),
        drafted=None,
        aligned=np.ones(120, np.bool_),
        recorded_k=20,
    )
    made = fit(set_of(both), "made").generate(9, np.tile([SHORT, LONG], 2000))
    for length, alpha in ((SHORT, 0.8), (LONG, 0.4)):
        expected = steps_per_token(both, length)
        assert expected == pytest.approx(1 / leviathan_length(alpha, 3), rel=0.05)  # the end costs a little
        assert steps_per_token(made, length) == pytest.approx(expected, rel=0.03)


def test_a_bin_without_requests_keeps_its_classes() -> None:
    model = replace(
        flat_model([0.3, 0.8], classes=2),
        length_edges=np.array([float(LONG)]),
        class_by_length=np.array([[0.9, 0.1], [0.5, 0.5]]),
    )
    recorded = model.generate(5, np.full(50, LONG))
    np.testing.assert_array_equal(match_lengths(model, recorded, 3).class_by_length[0], [0.9, 0.1])


def test_steps_per_token_are_the_mean_of_the_requests_of_a_bin() -> None:
    """At K = 1: 2 steps for 4 tokens, 4 for 4; 1 for 1 and 9 for 9 from ten tokens on, 5 of 9 in pairs."""
    rows = [[1, *[2, 1] * 2], [1] * 5, [1, 1], [1], [1] * 10, [1, *[2, 1] * 4, 1]]
    model = replace(
        flat_model([0.5]), length_edges=np.array([5.0, 10.0, 99.0]), class_by_length=np.ones((4, 1))
    )
    found = by_length._by_bin(model, trace_of(rows, 5), 1)
    np.testing.assert_allclose(found, [1.0, 0.75, (1 + 5 / 9) / 2, np.nan])


def test_classes_are_tilted_until_the_mean_is_the_recorded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One class needs a step a token, the other half of one: .8 in the mean are six of ten of the first.
    Outputs of 4 tokens and more, of which none is seen, keep theirs."""
    monkeypatch.setattr(by_length, "POSITIONS", 1800)  # 600 requests
    model = replace(
        flat_model([0.0, 1.0], classes=2),
        length_edges=np.array([4.0]),
        class_by_length=np.array([[0.3, 0.7], [0.9, 0.1]]),
    )
    recorded = trace_of([[1, 1, 1]] * 6 + [[1, 2, 1]] * 4, 5)
    found = match_lengths(model, recorded, 1).class_by_length
    assert found[0, 0] == pytest.approx(0.6, abs=0.03)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_array_equal(found[1], [0.9, 0.1])
    made = replace(model, class_by_length=found).generate(by_length._SEED, np.full(600, 3))
    steps = by_length._by_bin(model, made, 1)
    assert steps[0] == pytest.approx(0.8, abs=0.005)  # on the sample that it was matched on
    alike = replace(model, hazard=flat_model([1.0, 1.0]).hazard)
    np.testing.assert_allclose(match_lengths(alike, recorded, 1).class_by_length, model.class_by_length)
