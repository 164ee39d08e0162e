"""``kplan validate`` as a user runs it; a fast part of the shipped tables is held against the baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run
from kplan.validate.baseline import Entered, regressions, shipped_baseline
from kplan.validate.groups import shipped_groups
from kplan.validate.judge import judge
from kplan.validate.load import load_tables, shipped_tables
from kplan.validate.run import validate
from kplan.validate.table import Metric
from tests.validate.made import said, table

FAST = ("pr32374-off", "pr32374-eagle", "issue20780-eagle3", "illusion-fig1-llama-3.1-8b-cnn")


def test_nothing_is_predicted_worse_than_in_the_baseline() -> None:
    judged = validate(load_tables(FAST))
    before = shipped_baseline().tables
    assert regressions(judged, before) == []
    for one in judged:  # and the baseline is of these predictions: a gain, too, is entered
        assert before[one.table.name].model_dump() == pytest.approx(Entered.of(one).model_dump(), abs=1e-3)


def test_the_baseline_has_every_shipped_table() -> None:
    groups = {one.name for one in shipped_groups()}
    assert set(shipped_baseline().tables) == groups | {one.name for one in shipped_tables()}


def entered(mape: float) -> Entered:
    """A table of one row that reached its target."""
    return Entered(
        rows=1,
        rows_counted=1,
        mape=mape,
        worst=mape,
        bias=mape,
        sign_ok=None,
        best_k_regret=None,
        passed=True,
    )


def test_what_is_entered_is_of_the_rows_that_count() -> None:
    """Speedups 2.0 for 1.6, 0.9 for 1.2 (another side of 1) and 3.0 for 1.0 (fitted on): +25% and -25%."""
    rows = [
        {"measured": 1.6, "at": {"k": 1}},
        {"measured": 1.2, "at": {"k": 2}},
        {"measured": 1.0, "at": {"k": 3}, "used_in_fit": True},
    ]
    speedups = judge(table(rows, metric=Metric.SPEEDUP, best_k_by=["k"]), said(2.0, 0.9, 3.0))
    assert Entered.of(speedups).model_dump() == pytest.approx(
        {
            "rows": 3,
            "rows_counted": 2,
            "mape": 0.25,
            "worst": 0.25,
            "bias": 0.0,
            "sign_ok": 0.5,
            "best_k_regret": 0.0,
            "passed": None,
        }
    )


def test_a_regression_is_half_a_point_or_a_target_lost() -> None:
    rows = [{"measured": 10.0, "at": {"batch": 1}}]
    judged = [judge(table(rows, target={"mape": 0.1}), said(10.8))]
    assert regressions(judged, {"made": entered(0.076)}) == []
    assert regressions(judged, {"other": entered(0.0)}) == []
    assert "8.0%, before 7.0%" in regressions(judged, {"made": entered(0.07)})[0]
    lost = [judge(table(rows, target={"mape": 0.1}), said(11.1))]
    found = regressions(lost, {"made": entered(0.109)})
    assert found == ["made reached its target before and does not now"]


def test_processes_change_no_result() -> None:
    tables = load_tables(["pr32374-off", "pr32374-dynamic"])
    assert validate(tables, workers=2) == validate(tables)


def answer(capsys: pytest.CaptureFixture[str], *argv: str, code: int) -> dict[str, Any]:
    assert run(["validate", *argv, "--json"]) == code, capsys.readouterr().err
    record = json.loads(capsys.readouterr().out)
    assert isinstance(record, dict)
    return record


def test_json_has_the_figures_of_merit_and_the_rows_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, "pr32374-off", "--rows", code=0)
    assert set(record) == {"tables", "regressions", "versions"}
    (off,) = record["tables"]
    assert (off["name"], off["rows"], off["rows_counted"], off["used_in_fit"]) == ("pr32374-off", 6, 6, 0)
    assert off["target"] == {"mape": 0.05, "worst": 0.1}
    assert off["passed"] is True
    errors = [row["predicted"] / row["measured"] - 1 for row in off["row_list"]]
    assert off["mape"] == pytest.approx(sum(map(abs, errors)) / 6)
    assert off["worst"] == pytest.approx(max(map(abs, errors)))
    assert "row_list" not in answer(capsys, "pr32374-off", code=0)["tables"][0]


def test_a_missed_target_and_a_worse_mean_exit_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (Path(__file__).parent / "slow.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "slow.yaml"
    mine.write_text(text, encoding="utf-8")
    stored = tmp_path / "before.json"
    record = answer(capsys, str(mine), "--write-baseline", str(stored), code=1)
    assert record["tables"][0]["passed"] is False
    mine.write_text(text.replace("target: {mape: 0.01}", ""), encoding="utf-8")
    assert answer(capsys, str(mine), "--baseline", str(stored), code=0)["regressions"] == []
    stored.write_text(
        stored.read_text(encoding="utf-8").replace('"mape": 0.', '"mape": 0.0'), encoding="utf-8"
    )
    (sentence,) = answer(capsys, str(mine), "--baseline", str(stored), code=1)["regressions"]
    assert sentence.startswith("slow has a mean error of")
    assert answer(capsys, str(mine), "--baseline", "none", code=0)["regressions"] == []


def test_the_terminal_shows_rows_with_why_they_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "pr32374-dynamic", "issue20780-eagle", "--rows"]) == 0
    out = capsys.readouterr().out
    assert "no: the table of K is a guess" in out
    assert "no: used in fit" in out
    assert "workload mtbench, batch 128" in out


def test_the_report_is_one_page_with_every_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "parity.html"
    assert run(["validate", "pr32374-off", "issue20780-eagle", "--report", str(page)]) == 0
    capsys.readouterr()
    html = page.read_text(encoding="utf-8")
    drawn = json.loads(
        html.partition('<script id="figures" type="application/json">')[2].partition("</script>")[0]
    )
    points = {trace["name"]: trace for trace in drawn["parity-tpot-ms"]["data"] if "name" in trace}
    assert points["pr32374-off"]["x"] == [row.measured for row in load_tables(["pr32374-off"])[0].rows]
    (predicted,), (fitted,) = (
        set(points[name]["marker"]["symbol"]) for name in ("pr32374-off", "issue20780-eagle")
    )
    assert fitted.endswith("-open")
    assert not predicted.endswith("-open")
    assert fitted != f"{predicted}-open"  # a table has its own form: color alone tells it to some only
    assert 'src="http' not in html


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["pr99"], "is no shipped table"),
        (["--report", "no/such/folder.html"], "its folder must exist"),
        (["--baseline", "none.json"], "baseline: got 'none.json', cannot be read"),
        (["pr32374-off", "--baseline", str(Path(__file__))], "write it anew with --write-baseline"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    assert run(["validate", *argv]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_a_table_that_cannot_be_priced_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (Path(__file__).parent / "slow.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "slow.yaml"
    mine.write_text(text.replace("llama-3.1-8b", "llama-3.1-70b"), encoding="utf-8")
    assert run(["validate", str(mine)]) == 2
    assert "table: got 'slow', cannot be predicted" in capsys.readouterr().err


def test_a_row_without_what_its_predictor_needs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "own.yaml"
    table.write_text(
        "{name: own, title: t, source: s, trust: direct, metric: speedup, predictor: iid-speedup, "
        "rows: [{measured: 2.0, at: {gamma: 3}}]}"
    )
    assert run(["validate", str(table), "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "error: table own: at: got 'gamma', predictor iid-speedup needs alpha in every row; add alpha\n"
    )
