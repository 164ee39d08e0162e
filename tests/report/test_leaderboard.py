"""The page of a leaderboard: every figure in it, nothing fetched, drawn by a real browser."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kplan.config.scenario import make_scenario
from kplan.report import render_leaderboard
from kplan.search.board import play
from kplan.search.board_cells import Asked
from kplan.search.board_rows import Told, judge, told
from tests.report.browser import CHROMIUM, NO_BROWSER, layout
from tests.report.test_report import Page

CHARTS = {"chart-ranking", "chart-closed", "chart-open"}
SMALL = {
    "qps": 4.0,
    "workload": "gsm8k",
    "max_k": 2,
    "max_num_seqs": 32,
    "requests": 60,
    "replications": 2,
}


@cache
def made_board() -> Told:
    """A small board that was really played."""
    return told(judge(play(make_scenario(SMALL), Asked(batches=(1, 4), rates=(4.0,), only=("fixed",)))))


@pytest.fixture
def board() -> Told:
    return made_board()


def test_the_figures_are_those_of_the_rows(board: Told) -> None:
    page = Page(render_leaderboard(board))
    assert set(page.figures) == CHARTS
    ranking = page.figures["chart-ranking"]["data"][0]
    assert ranking["x"] == [one.mean_oracle_share for one in board.summary]
    heat = page.figures["chart-closed"]["data"][0]
    by_name = {(one.policy, one.load): one.speedup for one in board.rows if one.kind == "closed"}
    assert heat["x"] == ["1", "4"]
    for one, line in zip(board.summary, heat["z"], strict=True):
        assert line == [by_name[one.policy, 1.0], by_name[one.policy, 4.0]]
    assert not page.attributes("src")
    assert "Predicted by simulation, not measured." in page.text


def test_cells_of_several_workloads_are_written_in_ink_that_reads(board: Told) -> None:
    rows = tuple(replace(one, workload=name) for name in ("gsm8k", "mtbench") for one in board.rows)
    heat, written = Page(render_leaderboard(replace(board, rows=rows))).figures["chart-closed"]["data"]
    assert heat["x"] == [["gsm8k, eagle3"] * 2 + ["mtbench, eagle3"] * 2, ["1", "4", "1", "4"]]
    assert heat["zmax"] - 1 == pytest.approx(1 - heat["zmin"])
    at = {(*place, name): i for i, (*place, name) in enumerate(zip(*written["x"], written["y"], strict=True))}
    for name, line in zip(heat["y"], heat["z"], strict=True):
        for group, load, speedup in zip(*heat["x"], line, strict=True):
            i = at[group, load, name]
            assert written["text"][i] == f"{speedup:.2f}"
            assert written["textfont"]["color"][i] == ("#FFFFFF" if speedup > 1.5 else "#000000")


def test_a_name_of_a_user_stays_text(board: Told) -> None:
    hostile = '</script><img src=x onerror="alert(1)">'
    rows = tuple(replace(one, workload=hostile) for one in board.rows)
    summary = tuple(replace(one, policy=f"{one.policy}{hostile}") for one in board.summary)
    page = Page(render_leaderboard(replace(board, rows=rows, summary=summary)))
    assert "img" not in [tag for tag, _ in page.tags]
    assert hostile in page.text


def test_a_board_without_a_speedup_has_no_empty_chart(board: Told) -> None:
    rows = tuple(
        replace(one, speedup=None, ci95=None, saturated=True) if one.kind == "open" else one
        for one in board.rows
    )
    assert set(Page(render_leaderboard(replace(board, rows=rows))).figures) == CHARTS - {"chart-open"}


@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_chart_with_the_network_off(board: Told, tmp_path: Path, width: int) -> None:
    found = layout(render_leaderboard(board), width, tmp_path)
    assert found["errors"] == []
    assert found["drawn"] == "true"
    assert set(found["plots"]) == CHARTS
    assert found["empty"] == []
    assert found["scroll"] <= width
    assert found["clashes"] == []
    assert found["cut"] == []
