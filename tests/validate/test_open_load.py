"""Latency by rate: Little's law, and lengths inferred and found again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.errors import InputError
from kplan.latency import LatencyModel
from kplan.profiles import load_drafter
from kplan.validate.predict.open_load import latency_s, predict
from kplan.validate.predict.steady import Crowd, Stand, steady
from kplan.validate.table import Metric, PublishedRow, PublishedTable, Trust

CROWD = Crowd(1, 500.0, 201.0, 600.5)


def make_table(measured: dict[tuple[str, int, int], float]) -> PublishedTable:
    return PublishedTable(
        name="made",
        title="made",
        source="made",
        trust=Trust.DIRECT,
        metric=Metric.LATENCY_S,
        predictor="open-load",
        settings={"scenario": {"prompt_tokens": 500}},
        rows=tuple(
            PublishedRow(measured=seconds, at={"proposer": proposer, "k": k, "qps": qps})
            for (proposer, k, qps), seconds in measured.items()
        ),
    )


@pytest.fixture(scope="module")
def stand() -> Stand:
    return Stand(make_table({("off", 0, 1): 1.0}))


@pytest.fixture(scope="module")
def off(stand: Stand) -> LatencyModel:
    return stand.latencies(None, 0)[0]


def test_a_request_alone_takes_its_own_steps(off: LatencyModel) -> None:
    alone = CROWD.output / steady(off, CROWD, 0, 1.0).tokens_s
    assert latency_s(off, CROWD, 0, 1.0, 0.01) == pytest.approx(alone)


def test_the_batch_that_a_rate_keeps_is_rate_times_latency(off: LatencyModel) -> None:
    """Little's law at the rate that 40 requests at a time make."""
    rate = steady(off, replace(CROWD, batch=40), 0, 1.0).tokens_s / CROWD.output
    assert latency_s(off, CROWD, 0, 1.0, rate) == pytest.approx(40 / rate, rel=1e-3)


def test_latency_rises_with_the_rate_and_has_a_bound(off: LatencyModel) -> None:
    found = [latency_s(off, CROWD, 0, 1.0, qps) for qps in (1, 8, 32, 10_000)]
    assert found == sorted(found)
    full = steady(off, replace(CROWD, batch=256), 0, 1.0).tokens_s
    assert found[-1] == pytest.approx(256 * CROWD.output / full)


def test_lengths_behind_latencies_are_found_from_the_lowest_rate(stand: Stand, off: LatencyModel) -> None:
    """Latencies made with 201 output tokens and 2.5 tokens a step are predicted at every rate."""
    eagle = stand.latencies(load_drafter("eagle", stand.model), 3)[0]
    made = {("off", 0, qps): latency_s(off, CROWD, 0, 1.0, qps) for qps in (1, 16)}
    made |= {("eagle", 3, qps): latency_s(eagle, CROWD, 3, 2.5, qps) for qps in (16, 1)}
    found = predict(make_table(made))
    assert [each.value for each in found] == pytest.approx(list(made.values()), rel=2e-3)
    assert [each.used_in_fit for each in found] == [True, False, False, True]


def test_a_latency_out_of_reach_is_refused(stand: Stand) -> None:
    with pytest.raises(InputError, match=r"measured latency: got 0\.001"):
        predict(make_table({("off", 0, 1): 0.001}))
