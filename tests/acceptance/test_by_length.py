"""Short outputs that accept more than long ones: a fit keeps the difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.acceptance import ProposerTrace, fit
from kplan.acceptance.by_length import match_lengths
from kplan.acceptance.columns import select
from kplan.acceptance.walk import walk
from tests.acceptance.made import flat_model, leviathan_length, set_of

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
