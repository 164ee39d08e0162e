"""Polite signals wait for the end of what is shielded from them, and reach it then."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import optuna
import pytest

from kplan.interrupts import POLITE, shielded
from kplan.search import journal
from kplan.search.storage import opened


class EndedError(Exception):
    """Raised by the handler of these tests."""


@pytest.fixture(autouse=True)
def raising(monkeypatch: pytest.MonkeyPatch) -> object:
    """Handlers that raise, as those of kplan do."""

    def end(number: int, _frame: object) -> None:
        raise EndedError(number)

    before = {one: signal.signal(one, end) for one in POLITE}
    yield end
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("number", POLITE, ids=str)
def test_a_signal_is_kept_to_the_end_and_delivered_once(number: signal.Signals, raising: object) -> None:
    done: list[int] = []

    def work() -> None:
        with shielded():
            signal.raise_signal(number)
            signal.raise_signal(number)
            done.append(1)

    with pytest.raises(EndedError, match=str(int(number))):
        work()
    assert done == [1]
    assert [signal.getsignal(one) for one in POLITE] == [raising, raising]


def test_within_another_the_outer_end_delivers() -> None:
    done: list[int] = []

    def work() -> None:
        with shielded():
            with shielded():
                signal.raise_signal(signal.SIGTERM)
            done.append(1)

    with pytest.raises(EndedError):
        work()
    assert done == [1]


def test_without_a_signal_nothing_happens_and_an_error_passes(raising: object) -> None:
    with shielded():
        pass
    with pytest.raises(ZeroDivisionError), shielded():
        _ = 1 / 0
    assert signal.getsignal(signal.SIGTERM) is raising


def test_threads_get_no_signals_and_change_no_handlers(raising: object) -> None:
    found: list[object] = []

    def work() -> None:
        with shielded():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [raising]


@pytest.mark.parametrize("moment", ["hold", "os.fsync"])
def test_a_signal_at_the_lock_of_a_journal_leaves_no_lock_and_a_whole_line(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after the lock is taken, and before it is given back."""
    real = journal.hold if moment == "hold" else os.fsync

    def struck(*args: int) -> object:
        value = real(*args)
        if armed:
            signal.raise_signal(signal.SIGTERM)
        return value

    armed: list[int] = []
    monkeypatch.setattr(f"kplan.search.journal.{moment}", struck)
    with opened(str(tmp_path / "a.journal")) as where:
        study = optuna.create_study(storage=where, study_name="one")
        armed.append(1)
        with pytest.raises(EndedError):
            study.set_user_attr("kept", 1)
        armed.clear()
        assert [one.name for one in tmp_path.iterdir()] == ["a.journal"]
        study.set_user_attr("after", 2)
        assert study.user_attrs == {"kept": 1, "after": 2}
