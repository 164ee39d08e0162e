"""Averages of a load and the time it needs to settle, against values worked out apart."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.config.scenario import make_scenario
from kplan.latency import StepShape
from kplan.simulate import _mean_lengths, prepare, settle_s


def test_mean_context_weights_by_tokens() -> None:
    """One request of 100 + 10, one of 0 + 1000: (10 x 105 + 1000 x 500) / 1010; the 95% need 1000."""
    lengths = _mean_lengths(np.array([100, 0], np.int32), np.array([10, 1000], np.int32))
    assert lengths.context == pytest.approx((10 * 105 + 1000 * 500) / 1010)
    assert (lengths.output, lengths.longest_output) == (505, 1000)


def test_a_load_settles_in_the_time_of_its_longest_requests_at_its_own_batch() -> None:
    setup = prepare(make_scenario({"qps": 20.0, "prompt_tokens": 200, "output_tokens": 300}))
    seconds = settle_s(setup, 20.0)
    step_s = seconds / 300
    batch = 20.0 * 300 * step_s  # Little's law
    priced = float(setup.latency_off.step_seconds(StepShape.decode(batch, 0, 350)).total_s)
    assert priced == pytest.approx(step_s, rel=0.02)


def test_a_heavier_load_needs_longer() -> None:
    setup = prepare(make_scenario({"qps": 1.0}))
    times = [settle_s(setup, rate) for rate in (1.0, 5.0, 10.0, 15.0)]
    assert times == sorted(times)
