"""Tables judged together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.validate.baseline import baseline_json, load_baseline
from kplan.validate.groups import Group, JudgedGroup, judge_groups, record, shipped_groups
from kplan.validate.judge import judge
from kplan.validate.load import load_tables, shipped_tables
from kplan.validate.table import JudgedTable, Prediction, PublishedTable, Target


def _judged(
    name: str, measured: list[float], predicted: list[float], *, first_used: bool = False
) -> JudgedTable:
    rows = [{"measured": value, "at": {"batch": number}} for number, value in enumerate(measured)]
    if first_used:
        rows[0]["used_in_fit"] = True
    table = PublishedTable.model_validate(
        {
            "name": name,
            "title": name,
            "source": "made",
            "trust": "direct",
            "metric": "speedup",
            "predictor": "closed-loop",
            "rows": rows,
        }
    )
    return judge(table, [Prediction(value, value, value) for value in predicted])


def _group(
    monkeypatch: pytest.MonkeyPatch, judged: list[JudgedTable], target: Target
) -> tuple[JudgedGroup, ...]:
    group = Group(name="both", title="both", members=("one", "two"), target=target)
    monkeypatch.setattr("kplan.validate.groups.shipped_groups", lambda: (group,))
    return judge_groups(judged)


def test_a_group_weighs_every_row_that_counts_alike(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = _judged("one", [2.0, 2.0], [9.0, 2.2], first_used=True)  # +10%, and a row used in a fit
    two = _judged("two", [1.25, 0.5, 2.0], [1.0 / 0.8 * 0.7, 0.55, 2.0])  # -30% across 1, +10%, 0
    (found,) = _group(monkeypatch, [one, two], Target(mape=0.13, sign=0.75))
    assert found.mape == pytest.approx((0.1 + 0.3 + 0.1 + 0.0) / 4)
    assert found.worst == pytest.approx(0.3)
    assert found.bias == pytest.approx((0.1 - 0.3 + 0.1) / 4)
    assert found.sign_ok == pytest.approx(3 / 4)
    assert found.passed is True
    entry = record(found)
    assert (entry["rows"], entry["rows_counted"], entry["used_in_fit"]) == (5, 4, 1)
    (strict,) = _group(monkeypatch, [one, two], Target(mape=0.12))
    assert strict.passed is False
    (tmp_path / "b.json").write_text(baseline_json([found, one]))
    assert set(load_baseline(tmp_path / "b.json").tables) == {"both", "one"}


def test_a_group_without_one_of_its_members_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _group(monkeypatch, [_judged("one", [2.0], [2.0])], Target(mape=0.1)) == ()


def test_shipped_groups_name_shipped_tables_and_can_be_asked_for_by_name() -> None:
    names = {table.name for table in shipped_tables()}
    for group in shipped_groups():
        assert set(group.members) <= names
        assert group.name not in names
        assert [table.name for table in load_tables([group.name])] == list(group.members)
