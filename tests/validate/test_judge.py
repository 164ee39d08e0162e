"""Figures of merit against values worked out by hand."""

from __future__ import annotations

import pytest

from kplan.errors import InputError
from kplan.validate.judge import judge
from kplan.validate.table import Metric
from tests.validate.made import said, table

AT = {"batch": 1}


def test_errors_are_over_the_rows_that_count() -> None:
    rows = [
        {"measured": 10.0, "at": {"batch": 1}},
        {"measured": 20.0, "at": {"batch": 2}},
        {"measured": 5.0, "at": {"batch": 4}, "used_in_fit": True},
        {"measured": 5.0, "at": {"batch": 8}, "why_not": "the setting is a guess"},
        {"measured": 5.0, "at": {"batch": 16}},
    ]
    judged = judge(table(rows), said(11.0, 16.0, 50.0, 50.0, 50.0, used_at=4))
    # +10% and -20% count; the row fitted on, the guess and the row inferred from do not
    assert [row.counts for row in judged.rows] == [True, True, False, False, False]
    assert judged.mape == pytest.approx(0.15)
    assert judged.worst == pytest.approx(0.20)
    assert judged.bias == pytest.approx(-0.05)
    assert judged.passed is None


def test_a_target_that_no_counting_row_can_reach_is_missed() -> None:
    rows = [{"measured": 5.0, "at": AT, "used_in_fit": True}]
    judged = judge(table(rows, target={"mape": 0.5}), said(5.0))
    assert (judged.mape, judged.worst, judged.bias) == (None, None, None)
    assert judged.passed is False


@pytest.mark.parametrize(
    ("target", "reached"),
    [
        ({"mape": 0.151}, True),
        ({"mape": 0.149}, False),
        ({"mape": 0.151, "worst": 0.19}, False),
        ({"mape": 0.151, "worst": 0.21}, True),
    ],
)
def test_every_bound_of_a_target_must_hold(target: dict[str, float], reached: bool) -> None:
    rows = [{"measured": 10.0, "at": {"batch": 1}}, {"measured": 20.0, "at": {"batch": 2}}]
    assert judge(table(rows, target=target), said(11.0, 16.0)).passed is reached


def test_sign_is_the_side_of_one_and_a_figure_too_close_to_it_has_none() -> None:
    rows = [{"measured": value, "at": {"batch": i}} for i, value in enumerate((1.5, 1.2, 0.8, 1.003))]
    predictions = said(1.01, 0.99, 0.5, 0.9)
    assert judge(table(rows, Metric.SPEEDUP), predictions).sign_ok == pytest.approx(2 / 4)
    assert judge(table(rows, Metric.SPEEDUP, precision=0.005), predictions).sign_ok == pytest.approx(2 / 3)
    assert judge(table(rows), predictions).sign_ok is None


def test_regret_is_what_the_preferred_k_was_measured_to_lose() -> None:
    measured = {(1, 0): 6.0, (1, 3): 4.0, (128, 0): 10.0, (128, 3): 11.0}
    rows = [{"measured": value, "at": {"batch": b, "k": k}} for (b, k), value in measured.items()]
    # right at batch 1; at 128 it prefers K = 3, measured 10% slower than K = 0
    judged = judge(table(rows, best_k_by=["k"]), said(7.0, 5.0, 12.0, 11.9))
    assert judged.best_k_regret == pytest.approx(0.10)
    # the same choices of throughput, where larger is better: 6 was there, 4 was chosen
    judged = judge(table(rows, Metric.TOKENS_PER_S, best_k_by=["k"]), said(4.0, 5.0, 9.0, 11.9))
    assert judged.best_k_regret == pytest.approx(6.0 / 4.0 - 1.0)


def test_rows_that_do_not_count_are_no_choice_of_k() -> None:
    rows = [
        {"measured": m, "at": {"batch": 1, "k": k}, "used_in_fit": k > 0} for m, k in ((7, 0), (4, 3), (5, 5))
    ]
    assert judge(table(rows, best_k_by=["k"], target={"regret": 0.03}), said(7, 4, 5)).best_k_regret is None


def test_a_predictor_owes_one_prediction_per_row() -> None:
    with pytest.raises(InputError, match=r"got 2, table made has 1 rows"):
        judge(table([{"measured": 1.0, "at": AT}]), said(1.0, 1.0))
