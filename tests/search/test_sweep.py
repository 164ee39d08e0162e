"""Other loads: the asked one as it was judged, saturation, crossings, and what would change the answer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kplan.config.evidence import Evidence
from kplan.config.plan import Plan
from kplan.config.scenario import make_scenario
from kplan.search import recommend
from kplan.search.sweep import last_crossing

SMALL = {"qps": 12.0, "max_k": 2, "workload": "gsm8k", "replications": 2, "max_num_seqs": 64}


@cache
def planned(**changes: object) -> Plan:
    return recommend(make_scenario(SMALL | changes))


def pictures(plan: Plan) -> Evidence:
    assert plan.evidence is not None
    return plan.evidence


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([-1.0, 1.0, 3.0], (0.5, True)),
        ([1.0, -3.0, -1.0], (0.25, False)),
        ([-1.0, 1.0, -1.0], (1.5, False)),
        ([1.0, 2.0, 3.0], None),
    ],
)
def test_a_crossing_is_where_the_line_meets_zero(y: list[float], expected: tuple[float, bool] | None) -> None:
    assert last_crossing([0.0, 1.0, 2.0], np.array(y)) == expected


def test_the_load_asked_about_is_shown_as_it_was_judged() -> None:
    plan = planned()
    swept = pictures(plan).sweep
    assert swept is not None
    assert swept.asked == 12.0
    by_name = {one.name: one for one in plan.policies}
    assert {"off", plan.answer.policy} <= {one.policy for one in swept.curves}
    assert len(swept.curves) <= 4
    for curve in swept.curves:
        result = by_name[curve.policy]
        loads = [one.load for one in curve.points]
        assert loads == sorted(loads)
        here = next(one for one in curve.points if one.load == 12.0)
        assert result.tpot_ms is not None
        assert (here.tpot_ms, here.tpot_ci95) == (result.tpot_ms.mean, result.tpot_ms.ci95)
        assert (here.output_tok_s, here.batch) == (result.output_tok_s, result.mean_batch)


def test_below_saturation_a_load_is_served_as_offered_and_above_as_sustained() -> None:
    plan = planned()
    swept = pictures(plan).sweep
    assert swept is not None
    by_name = {one.name: one for one in plan.policies}
    for curve in swept.curves:
        most = by_name[curve.policy].max_qps
        assert most is not None
        full = [one for one in curve.points if one.saturated]
        steady = [one for one in curve.points if not one.saturated]
        assert full
        assert len(steady) >= 3
        assert all(one.load < most for one in steady)
        assert all(one.tpot_ms is None and one.load > 0.9 * most for one in full)
        assert len({one.output_tok_s for one in full}) == 1
        tokens = full[0].output_tok_s / most  # of a request on average
        for one in steady:
            assert one.output_tok_s == pytest.approx(one.load * tokens, rel=0.12)  # what two seeds draw
        tpots = [one.tpot_ms for one in steady if one.tpot_ms is not None]
        assert tpots == sorted(tpots)


def test_few_requests_asked_for_do_not_leave_other_loads_unsettled() -> None:
    swept = pictures(planned(requests=40)).sweep
    assert swept is not None
    steady = [one for one in swept.curves[0].points if not one.saturated and one.load != 12.0]
    rates = [one.output_tok_s / one.load for one in steady]
    assert max(rates) < 1.25 * min(rates)


def test_a_closed_loop_is_swept_over_its_clients() -> None:
    plan = planned(qps=None, concurrency=8)
    swept = pictures(plan).sweep
    assert swept is not None
    assert (swept.unit, swept.asked) == ("requests at a time", 8)
    for curve in swept.curves:
        assert [one.load for one in curve.points] == [2, 4, 8, 12, 16]
        for one in curve.points:
            assert one.batch == pytest.approx(one.load, rel=0.05)


def test_servers_that_see_each_other_are_not_swept_and_that_is_said() -> None:
    plan = planned(router="least-outstanding", replicas=2, requests=400)
    assert pictures(plan).sweep is None
    assert any("Other loads were not simulated" in line for line in pictures(plan).limits)


def test_the_first_change_is_none_and_is_what_was_simulated() -> None:
    plan = planned()
    found = pictures(plan).sensitivity
    assert found is not None
    first, *others = found.changes
    by_name = {one.name: one for one in plan.policies}
    for k, tpot in enumerate(first.tpot_ms):
        result = by_name["off" if k == 0 else f"fixed:{k}"].tpot_ms
        assert result is not None
        assert tpot == pytest.approx(result.mean)
    assert [one.name for one in others if one.name.startswith("acceptance")] == [
        "acceptance -20%", "acceptance -10%", "acceptance +10%", "acceptance +20%",
    ]  # fmt: skip
    for one in others:
        if one.name.startswith("acceptance"):
            assert one.tpot_ms[0] == pytest.approx(first.tpot_ms[0])  # no draft, no acceptance
    drafted = [one.tpot_ms[2] for one in others if one.name.startswith("acceptance")]
    assert drafted == sorted(drafted, key=lambda tpot: -(tpot or 0.0))
    assert found.closed_ms == pytest.approx(first.tpot_ms[first.kept_k], rel=0.1)


def test_nothing_is_drafted_so_nothing_can_change_the_answer() -> None:
    evidence = pictures(planned(max_k=0))
    assert evidence.sensitivity is None
    assert evidence.acceptance == ()
    assert {k for row in evidence.k_map.best_k for k in row} <= {0, None}


def test_a_load_beyond_every_change_has_no_rows() -> None:
    plan = planned(qps=5000.0, replicas=1)
    assert plan.answer.saturated
    evidence = pictures(plan)
    assert evidence.sensitivity is None
    assert evidence.slo == ()
    swept = evidence.sweep
    assert swept is not None
    assert swept.curves[0].points[-1].load == 5000.0


def test_slo_curves_are_quantiles_of_the_requests() -> None:
    plan = planned()
    by_name = {one.name: one for one in plan.policies}
    for curve in pictures(plan).slo:
        stat = by_name[curve.policy].tpot_ms
        assert stat is not None
        at = dict(zip(curve.shares, curve.tpot_ms, strict=True))
        assert (at[0.5], at[0.99]) == pytest.approx((stat.p50, stat.p99))


def test_a_plan_with_evidence_is_read_back_and_one_without_too() -> None:
    plan = planned()
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    old = plan.model_dump(mode="json")
    del old["evidence"]
    assert Plan.model_validate(old).evidence is None
