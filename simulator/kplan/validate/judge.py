"""Figures of merit of a table's predictions, over the rows that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kplan.errors import InputError
from kplan.validate.table import (
    Judged,
    JudgedRow,
    JudgedTable,
    Metric,
    Prediction,
    PublishedTable,
    Target,
)

LARGER_IS_BETTER = frozenset({Metric.SPEEDUP, Metric.TOKENS_PER_S})


def judge(table: PublishedTable, predictions: Sequence[Prediction]) -> JudgedTable:
    """Put ``predictions`` beside the rows of ``table``, in their order.

    Raises:
        InputError: not one prediction per row.
    """
    if len(predictions) != len(table.rows):
        raise InputError(
            f"predictor {table.predictor}", len(predictions), f"table {table.name} has {len(table.rows)} rows"
        )
    rows = tuple(JudgedRow(row, each) for row, each in zip(table.rows, predictions, strict=True))
    counting = [row for row in rows if row.counts]
    mape, worst, bias = errors_of(counting)
    speedup = table.metric is Metric.SPEEDUP
    sign = sign_ok([(row, table.precision) for row in counting]) if speedup else None
    regret = best_k_regret(table, counting)
    return JudgedTable(
        table=table,
        rows=rows,
        mape=mape,
        worst=worst,
        bias=bias,
        sign_ok=sign,
        best_k_regret=regret,
        passed=passed(table.target, mape, worst, sign, regret),
    )


def errors_of(rows: Sequence[JudgedRow]) -> tuple[float | None, float | None, float | None]:
    """Mean and largest absolute relative error, and the mean with its sign; None without a row."""
    if not rows:
        return None, None, None
    errors = np.array([row.error for row in rows])
    return float(np.abs(errors).mean()), float(np.abs(errors).max()), float(errors.mean())


def merits(judged: Judged, target: Target) -> dict[str, Any]:
    """What the JSON of a table and of a group share."""
    return {
        "rows": len(judged.rows),
        "rows_counted": sum(row.counts for row in judged.rows),
        "used_in_fit": sum(row.used_in_fit for row in judged.rows),
        "mape": judged.mape,
        "worst": judged.worst,
        "bias": judged.bias,
        "sign_ok": judged.sign_ok,
        "best_k_regret": judged.best_k_regret,
        "target": target.model_dump(exclude_none=True),
        "passed": judged.passed,
    }


def best_k_regret(table: PublishedTable, rows: Sequence[JudgedRow]) -> float | None:
    """How much worse the preferred K was measured to be than the best measured, at the worst comparison.

    Rows that agree in all of ``at`` but ``best_k_by`` are one comparison. None where no comparison has two
    rows, or the table compares no K.
    """
    if not table.best_k_by:
        return None
    groups: dict[tuple[tuple[str, float | str], ...], list[JudgedRow]] = {}
    for row in rows:
        shared = tuple(sorted((k, v) for k, v in row.row.at.items() if k not in table.best_k_by))
        groups.setdefault(shared, []).append(row)
    regrets = [_regret(table.metric, group) for group in groups.values() if len(group) > 1]
    return max(regrets) if regrets else None


def _regret(metric: Metric, group: Sequence[JudgedRow]) -> float:
    """Relative loss of the preferred row against the best measured one, 0 when they are the same."""
    if metric in LARGER_IS_BETTER:
        preferred = max(group, key=lambda row: row.prediction.value)
        return max(row.row.measured for row in group) / preferred.row.measured - 1.0
    preferred = min(group, key=lambda row: row.prediction.value)
    return preferred.row.measured / min(row.row.measured for row in group) - 1.0


def sign_ok(rows: Sequence[tuple[JudgedRow, float]]) -> float | None:
    """Share of rows with the predicted speedup on the measured one's side of 1, where that side is known.

    Args:
        rows: each with the precision that its source was read with.
    """
    known = [row for row, precision in rows if abs(row.row.measured - 1.0) > precision]
    right = [(row.prediction.value > 1.0) == (row.row.measured > 1.0) for row in known]
    return sum(right) / len(right) if right else None


def passed(
    target: Target, mape: float | None, worst: float | None, sign: float | None, regret: float | None
) -> bool | None:
    """Whether every target given is reached; a figure without a row that counts reaches none."""
    at_most = [(target.mape, mape), (target.worst, worst), (target.regret, regret)]
    verdicts = [got is not None and got <= bound for bound, got in at_most if bound is not None]
    if target.sign is not None:
        verdicts.append(sign is not None and sign >= target.sign)
    return all(verdicts) if verdicts else None
