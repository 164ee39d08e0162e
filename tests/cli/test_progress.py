"""The bar of long work: when it shows, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import re
import sys

import pytest

from kplan.cli import progress as module
from kplan.cli.progress import Stage, clock
from kplan.telling import counted
from tests.cli.screen import HIDE, SHOW, on_terminal

WORK = """
import sys, time
from kplan.cli.progress import progress
with progress() as tell:
    for i in range({steps}):
        tell("simulating fixed:" + str(i), i, {steps})
        time.sleep(0.1)
    print("a policy prints")
print("the answer")
"""
LONG, SHORT = WORK.format(steps=40), WORK.format(steps=3)


def work(script: str, **how: object) -> tuple[str, str, list[str], int]:
    shown = on_terminal(command=("-c", script), **how)  # type: ignore[arg-type]
    return shown.raw, shown.out, shown.lines, shown.code


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage of work begun at second 0, whose clock is SECONDS."""
    monkeypatch.setattr(module.time, "monotonic", lambda: SECONDS[0])
    SECONDS[0] = 0.0
    return Stage(0.0)


SECONDS = [0.0]


def at(stage: Stage, second: float, *said: str | int) -> None:
    SECONDS[0] = second
    stage.tell(*said)  # type: ignore[arg-type]


def test_what_is_left_follows_from_the_pace_of_this_stage(stage: Stage) -> None:
    at(stage, 10.0, "trials", 40, 100)  # found there, of an earlier search
    assert stage.shown(12.0)["left"] == ""
    at(stage, 30.0, "trials", 50, 100)  # 2 s each: 100 s for the other 50
    assert stage.shown(30.0) == {
        "description": "trials",
        "completed": 50,
        "total": 100,
        "count": "50/100",
        "took": "0:30",
        "left": "about 1:40 left",
    }
    assert stage.shown(70.0)["left"] == "about 1:00 left"
    assert stage.shown(700.0)["left"] == "about 0:00 left"


def test_another_stage_has_a_pace_of_its_own_and_one_without_counts_none(stage: Stage) -> None:
    at(stage, 0.0, "one", 0, 4)
    at(stage, 100.0, "one", 1, 4)
    at(stage, 101.0, "two", 0, 4)
    assert stage.shown(101.0)["left"] == ""
    at(stage, 102.0, "two", 1, 4)
    assert stage.shown(102.0)["left"] == "about 0:03 left"
    at(stage, 103.0, "judging")
    told = stage.shown(103.0)
    assert (told["total"], told["count"], told["left"], told["took"]) == (None, "", "", "1:43")


def test_a_count_of_bytes_is_told_as_a_share(stage: Stage) -> None:
    at(stage, 0.0, "reading", 1_500_000, 6_000_000)
    assert stage.shown(0.0)["count"] == "25%"


def test_counted_says_nothing_first_and_then_one_more_each_time() -> None:
    told: list[tuple[str, int, int]] = []
    more = counted(lambda doing, done=0, of=0: told.append((doing, done, of)), "runs", 2)
    more()
    more()
    assert told == [("runs", 0, 2), ("runs", 1, 2), ("runs", 2, 2)]


def test_the_clock() -> None:
    assert [clock(s) for s in (0.4, 59.6, 754, 3723)] == ["0:00", "1:00", "12:34", "1:02:03"]


@pytest.mark.parametrize("columns", [60, 120])
def test_long_work_shows_a_bar_that_is_gone_at_its_end(columns: int) -> None:
    raw, _, lines, code = work(LONG, columns=columns)
    assert code == 0
    assert re.search(r"simulating fixed:[23]\d", raw)  # which of them are drawn, the clock says
    assert "/40" in raw
    assert "left" in raw
    assert ("━" in raw) == (columns >= 80)
    assert lines == ["a policy prints", "the answer"]
    assert raw.rindex(SHOW) > raw.rindex(HIDE)
    drawn = [part for part in raw.split("\x1b[2K") if "simulating" in part]
    assert len(drawn) > 3


def test_short_work_shows_nothing() -> None:
    raw, _, lines, _ = work(SHORT)
    assert "\x1b" not in raw
    assert lines == ["a policy prints", "the answer"]


def test_of_a_pipe_only_the_answer_comes_while_the_terminal_has_the_bar() -> None:
    raw, out, _, _ = work(LONG, piped=True)
    assert out == "the answer\n"
    assert "simulating" in raw


def test_a_dumb_terminal_gets_no_bar_and_no_codes() -> None:
    raw, _, lines, _ = work(LONG, env={"TERM": "dumb"})
    assert "\x1b" not in raw
    assert lines == ["a policy prints", "the answer"]


def test_no_color_takes_the_colors_of_the_bar() -> None:
    raw, _, _, _ = work(LONG, env={"NO_COLOR": "1"})
    assert "simulating" in raw
    assert "\x1b[38;" not in raw


def test_an_interrupt_leaves_the_cursor() -> None:
    raw, _, lines, code = work(WORK.format(steps=600), interrupt="simulating fixed:2")
    assert code != 0
    assert raw.rindex(SHOW) > raw.rindex(HIDE)
    assert "KeyboardInterrupt" in lines[-1]


def test_a_compilation_is_told() -> None:
    script = """
import time
from kplan.cli.progress import COMPILING, progress
with progress() as tell:
    tell("simulating")
    from numba.core import event
    time.sleep(2.5)
    with event.trigger_event("numba:compile"):
        time.sleep(1.0)
    tell("simulated")
    time.sleep(1.0)
"""
    raw, _, _, _ = work(script)
    told = [raw.rindex(words) for words in ("simulating", module.COMPILING, "simulated")]
    assert told == sorted(told)
    assert module.COMPILING in raw


def test_no_terminal_no_thread(capsys: pytest.CaptureFixture[str]) -> None:
    with module.progress() as tell:
        tell("simulating", 1, 2)
        print("a policy prints")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "a policy prints\n")
    assert sys.stdout is not sys.stderr
