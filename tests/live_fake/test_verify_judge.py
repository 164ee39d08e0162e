"""Verdicts, intervals and causes, on servers that are kplan's own simulation changed in one known way."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.live.bench_serve import Traffic
from kplan.live.judge import TOLERANCES, Figure, Verdict, tolerances
from kplan.live.judge_cause import Cause
from kplan.live.judge_spread import Measure, Spread
from tests.live_fake.verified import Truth, hold, ready

TABLE = "table:1-4=4,5-16=2,17-=1"
OPEN = {"concurrency": None, "qps": 6.0}


@pytest.mark.parametrize(
    ("measured", "half", "verdict"),
    [
        (105.0, 2.0, Verdict.AGREES),
        (111.0, 2.0, Verdict.UNSURE),
        (113.0, 2.0, Verdict.OFF),
        (85.0, 2.0, Verdict.OFF),
        (100.0, 11.0, Verdict.UNSURE),
        (150.0, 11.0, Verdict.OFF),
        (100.0, None, Verdict.UNSURE),
    ],
)
def test_a_verdict_needs_an_interval_that_settles_it(
    measured: float, half: float | None, verdict: Verdict
) -> None:
    assert Figure("tpot_ms", 100.0, Measure(measured, half), 0.1).verdict is verdict


def test_a_figure_predicted_to_be_nothing_is_judged_in_its_own_unit() -> None:
    assert Figure("preemptions", 0.0, Measure(0.0, 0.0), 0.1).verdict is Verdict.AGREES
    assert Figure("preemptions", 0.0, Measure(0.3, 0.0), 0.1).words == "off by +0.3"


def test_tolerances_are_read_and_refused() -> None:
    assert tolerances("tpot=0.2, acceptance=0.05") == TOLERANCES | {"tpot": 0.2, "acceptance": 0.05}
    for text in ("tpot", "tpot=0", "speed=0.1", "tpot=nan", "tpot=-1"):
        with pytest.raises(InputError, match="--tolerance"):
            tolerances(text)


def _traffic(seconds: np.ndarray) -> Traffic:
    n = len(seconds)
    one = np.ones(n, np.int64)
    return Traffic(np.arange(n) * 1.0, np.zeros(n), seconds, one, one, one, float(seconds.sum()), "made")


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    """Normal times of mean 1 and deviation 0.2: 95% of 400 intervals hold 1, within 3 sigma."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        seconds = rng.normal(1.0, 0.2, 200)
        half = Spread(_traffic(seconds), clients=1).relative(seconds, np.ones(200))
        assert half is not None
        held += abs(seconds.mean() - 1.0) <= half * seconds.mean()
    assert 0.95 - 3 * 0.0109 <= held / 400 <= 0.95 + 3 * 0.0109


def test_too_few_rounds_of_the_clients_say_nothing_of_their_spread() -> None:
    seconds = np.ones(64)
    assert Spread(_traffic(seconds), clients=8).relative(seconds, seconds) is None
    assert Spread(_traffic(seconds), clients=4).relative(seconds, seconds) == 0.0


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        ("fixed:4", {}),
        (TABLE, {"concurrency": 32}),
        ("fixed:4", OPEN),
        ("off", {}),
    ],
    ids=["clients", "table", "arrivals", "no speculation"],
)
def test_the_simulation_agrees_with_itself(policy: str, asked: dict[str, object]) -> None:
    found = hold(ready(policy, **asked), requests=700)
    assert {name: one.verdict for name, one in found.figures.items()} == dict.fromkeys(
        found.figures, Verdict.AGREES
    )
    assert {"tpot_ms", "ttft_ms", "step_ms", "output_tok_s", "mean_batch"} <= found.figures.keys()
    assert found.attribution.causes == ()


@pytest.mark.parametrize(
    ("policy", "asked", "truth", "causes"),
    [
        ("fixed:4", {}, Truth(shift=-1.0), (Cause.ACCEPTANCE,)),
        ("fixed:4", OPEN, Truth(shift=1.0), (Cause.ACCEPTANCE,)),
        (TABLE, {"concurrency": 32}, Truth(shift=-1.0), (Cause.ACCEPTANCE,)),
        ("table:1-4=4,5-8=2,9-=1", OPEN, Truth(shift=-1.0), (Cause.ACCEPTANCE,)),
        (
            "fixed:4",
            {"proposer": "ngram", "workload": "instructcoder"},
            Truth(shift=-1.0),
            (Cause.ACCEPTANCE,),
        ),
        ("fixed:4", {}, Truth(slower=1.3), (Cause.STEP_TIME,)),
        ("fixed:4", OPEN, Truth(slower=1.3), (Cause.STEP_TIME,)),
        ("table:1-4=4,5-8=2,9-=1", OPEN, Truth(slower=1.4), (Cause.STEP_TIME,)),
        ("off", {}, Truth(slower=0.8), (Cause.STEP_TIME,)),
        ("fixed:4", {}, Truth(shift=-1.0, slower=1.3), (Cause.ACCEPTANCE, Cause.STEP_TIME)),
        (TABLE, {"concurrency": 32}, Truth(policy="fixed:4"), (Cause.SCHEDULING,)),
        ("fixed:3", {}, Truth(policy="fixed:2"), (Cause.SCHEDULING,)),
        (
            TABLE,
            {"concurrency": 32},
            Truth(policy="fixed:4", shift=-1.0),
            (Cause.ACCEPTANCE, Cause.SCHEDULING),
        ),
        ("fixed:4", OPEN, Truth(front_s=0.05), (Cause.FRONT_END,)),
        ("fixed:4", OPEN, Truth(front_s=0.05, shift=-1.0), (Cause.ACCEPTANCE, Cause.FRONT_END)),
    ],
)
def test_what_was_changed_is_named(
    policy: str, asked: dict[str, object], truth: Truth, causes: tuple[Cause, ...]
) -> None:
    found = hold(ready(policy, **asked), truth)
    assert found.attribution.causes == causes
    assert found.attribution.enough
    if Cause.STEP_TIME in causes:
        assert found.attribution.slower == pytest.approx(truth.slower, rel=0.02)
    if truth.front_s:
        assert found.attribution.front_s == pytest.approx(truth.front_s)
    if truth.policy is not None:
        assert f"fixed:{found.attribution.k}" == truth.policy


def test_a_server_that_waits_where_no_assumption_explains_it_is_badly_scheduled() -> None:
    """Half of the seats: requests queue, though every step is as planned."""
    plan = ready("fixed:4", concurrency=16)
    half = ready("fixed:4", concurrency=16, max_num_seqs=8)
    found = hold(plan, served_by=half)
    assert found.figures["ttft_ms"].verdict is Verdict.OFF
    assert found.attribution.causes[-1] is Cause.SCHEDULING
    assert Cause.ACCEPTANCE not in found.attribution.causes
    assert not found.attribution.enough


def test_acceptance_within_its_tolerance_is_no_cause() -> None:
    """Slower steps, and two seats less, which nothing explains: less acceptance would seem to help."""
    plan = ready("fixed:4", concurrency=16)
    fewer = ready("fixed:4", concurrency=16, max_num_seqs=14)
    found = hold(plan, Truth(shift=-0.05, slower=1.1), served_by=fewer)
    length = found.figures["acceptance_length"]
    assert length.verdict is Verdict.AGREES
    assert length.change < -0.015
    assert found.attribution.causes == (Cause.STEP_TIME, Cause.SCHEDULING)


def test_the_step_log_gives_the_median_step() -> None:
    found = hold(ready(), Truth(slower=1.3), step_log=True)
    assert found.figures["step_median_ms"].change == pytest.approx(0.3, abs=0.02)
    assert found.attribution.causes == (Cause.STEP_TIME,)
