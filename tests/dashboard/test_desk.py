"""So many at once as can be answered, each once, and none wrongly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kplan.dashboard.desk import BusyError, Desk, SupersededError
from kplan.dashboard.job import FullRuns
from kplan.dashboard.kept import Kept
from kplan.dashboard.quick import Look
from kplan.dashboard.state import State
from kplan.errors import InfeasibleError, InputError
from tests.dashboard.made import full, look_of


def until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def waits(desk: Desk[int, int], question: int, page: str | None = None) -> bool:
    """Whether ``page`` waits for ``question``: of threads that ask, only the desk knows how far they are."""
    return page in desk._asked_by.get(question, ())


def test_the_same_question_asked_by_many_is_answered_once() -> None:
    asked: list[int] = []
    go = threading.Event()

    def answer(question: int) -> int:
        asked.append(question)
        assert go.wait(60)
        return question * question

    desk = Desk(answer, waiting=2)
    with ThreadPoolExecutor(20) as people:
        told = [people.submit(desk.ask, 1 + i % 2) for i in range(20)]
        until(lambda: waits(desk, 1) and waits(desk, 2))
        with pytest.raises(BusyError, match="2 questions wait"):
            desk.ask(3)
        go.set()
        assert [one.result() for one in told] == [1, 4] * 10
    assert sorted(asked) == [1, 2]
    assert desk.ask(3) == 9
    assert desk.ask(1) == 1
    assert sorted(asked) == [1, 2, 3]
    desk.close()


def test_a_refusal_reaches_everybody_and_is_not_kept() -> None:
    tries: list[int] = []

    def answer(question: int) -> int:
        tries.append(question)
        raise InputError("question", question, "is odd")

    desk = Desk(answer)
    for _ in range(2):
        with pytest.raises(InputError, match="is odd"):
            desk.ask(1)
    assert tries == [1, 1]
    desk.close()


def test_what_waits_when_it_closes_is_told_so() -> None:
    go = threading.Event()
    desk: Desk[int, int] = Desk(lambda question: go.wait(60) * question)
    with ThreadPoolExecutor(2) as people:
        first = people.submit(desk.ask, 1)
        until(lambda: waits(desk, 1))
        second = people.submit(desk.ask, 2)
        until(lambda: waits(desk, 2))
        closing = threading.Thread(target=desk.close)
        closing.start()
        with pytest.raises(BusyError, match="closing"):
            second.result(60)
        go.set()
        closing.join()
        assert first.result() == 1


def test_the_newest_question_of_a_page_drops_its_older_ones_but_for_those_that_others_wait_for() -> None:
    begun: list[int] = []
    first, go = threading.Event(), threading.Event()

    def answer(question: int) -> int:
        begun.append(question)
        first.set()
        assert go.wait(60)
        return -question

    desk = Desk(answer)
    with ThreadPoolExecutor(8) as people:

        def asked(question: int, page: str | None) -> Future[int]:
            told = people.submit(desk.ask, question, page)
            until(lambda: waits(desk, question, page))
            return told

        running = asked(1, "mine")
        assert first.wait(60)
        dropped, shared, other = asked(2, "mine"), asked(3, "yours"), asked(3, "mine")
        newest, nobodys = asked(4, "mine"), asked(5, None)
        with pytest.raises(SupersededError, match="newer"):
            dropped.result(60)
        go.set()
        # 1 was begun, and "yours" still waits for 3 when "mine" no longer does
        assert [one.result(60) for one in (running, shared, other, newest, nobodys)] == [-1, -3, -3, -4, -5]
    assert begun == [1, 3, 4, 5]
    assert desk.ask(2, "mine") == -2
    desk.close()


def test_only_the_values_used_last_are_kept() -> None:
    kept: Kept[str, int] = Kept(2)
    assert kept.get("a", lambda: 1) == 1
    kept.put("b", 2)
    assert kept.get("a", lambda: 99) == 1
    kept.put("c", 3)
    assert (kept.find("a"), kept.find("b"), kept.find("c")) == (1, None, 3)


def _ended(runs: FullRuns) -> None:
    until(lambda: runs.running() is None)


def test_a_full_run_says_what_it_does_and_one_goes_at_a_time() -> None:
    runs, mine, other = FullRuns(full), State(qps=12), State(qps=13)
    runs.start(mine)
    runs.start(mine)  # it is under way already
    with pytest.raises(BusyError, match="another question"):
        runs.start(other)
    under_way = runs.running()
    assert under_way is not None
    assert under_way.state == mine
    assert under_way.doing in ("starting", "pricing", "simulating", "judging")
    _ended(runs)
    found = runs.found(mine)
    assert isinstance(found, Look)
    assert found.full
    assert "12" in found.plan.answer.words
    assert runs.found(other) is None
    runs.close()


def test_a_full_run_without_an_answer_keeps_why() -> None:
    def run(state: State, tell: object) -> Look:
        raise InfeasibleError("nothing meets it")

    runs = FullRuns(run)
    runs.start(State())
    _ended(runs)
    assert str(runs.found(State())) == "nothing meets it"


def test_a_cancelled_full_run_ends_at_its_next_step_and_can_be_begun_again() -> None:
    begun, patient = threading.Event(), threading.Event()

    def run(state: State, tell: object) -> Look:
        for _ in range(1000 if not patient.is_set() else 1):
            tell("on and on")  # type: ignore[operator]
            begun.set()
            time.sleep(0.01)
        return look_of(state)

    runs = FullRuns(run)
    runs.cancel()  # nothing is under way
    runs.start(State())
    assert begun.wait(60)
    runs.cancel()
    _ended(runs)
    assert runs.found(State()) is None
    patient.set()
    runs.start(State())
    _ended(runs)
    assert isinstance(runs.found(State()), Look)
    runs.close()


def test_after_a_cancel_the_next_full_run_waits_for_the_cancelled_one_alone() -> None:
    begun, go, at_once = threading.Event(), threading.Event(), []

    def run(state: State, tell: object) -> Look:
        at_once.append(state.qps)
        begun.set()
        assert go.wait(60)
        tell("a step that takes long")  # type: ignore[operator]
        return look_of(state)

    runs, first, second, third = FullRuns(run), State(qps=12), State(qps=13), State(qps=14)
    runs.start(first)
    assert begun.wait(60)
    for begun_after in (second, first, third):  # the same question too: its click is not lost
        runs.cancel()
        assert runs.running() is None
        runs.start(begun_after)
    now = runs.running()
    assert now is not None
    assert now.state == third
    time.sleep(0.05)
    assert at_once == [12]
    go.set()
    _ended(runs)
    assert at_once == [12, 14]
    assert [runs.found(one) is None for one in (first, second, third)] == [True, True, False]
    runs.close()


def test_closing_ends_a_full_run_at_its_next_step() -> None:
    begun, steps = threading.Event(), []

    def run(state: State, tell: object) -> Look:
        for step in range(1000):
            tell("on and on")  # type: ignore[operator]
            steps.append(step)
            begun.set()
            time.sleep(0.01)
        return look_of(state)

    runs = FullRuns(run)
    runs.start(State())
    assert begun.wait(60)
    runs.close()
    assert len(steps) < 1000
    assert runs.running() is None
    assert runs.found(State()) is None
