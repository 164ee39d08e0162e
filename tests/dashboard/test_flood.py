"""200 at once: everybody gets the answer to their own question, or is told that it is busy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from flask.testing import FlaskClient

from kplan.dashboard.app import Answers, make_app
from kplan.dashboard.desk import Desk
from kplan.dashboard.guard import Guard
from kplan.dashboard.job import FullRuns
from kplan.dashboard.quick import Look
from kplan.dashboard.server import bound_socket
from kplan.dashboard.state import State
from kplan.errors import InputError
from tests.dashboard.made import answers, full, look_of
from tests.dashboard.served import answer_body, ask, served

FLOOD = 200


def _flood(url: str, different: int) -> list[tuple[int, int, str]]:
    """(load asked about, status, text) of FLOOD requests sent at once."""
    together = threading.Barrier(FLOOD)

    def one(i: int) -> tuple[int, int, str]:
        qps = 1 + i % different
        together.wait()
        return (qps, *ask(f"{url}/_dash-update-component", answer_body(f"qps={qps}")))

    with ThreadPoolExecutor(FLOOD) as people:
        return list(people.map(one, range(FLOOD)))


@pytest.mark.parametrize("different", [1, 8, FLOOD])
def test_a_flood_neither_crashes_nor_answers_wrongly(different: int) -> None:
    """Each answer is, byte for byte, that of the same question asked alone of a server of its own."""
    alone = answers()
    with make_app(alone, Guard("127.0.0.1", None)).test_client() as client:
        right = {qps: _alone(client, qps) for qps in range(1, 1 + different)}
    alone.close()
    assert len(set(right.values())) == different
    made = answers(0.02)
    with served(lambda: make_app(made, Guard("127.0.0.1", None))) as url:
        told = _flood(url, different)
        refused = [text for _, status, text in told if status == 503]
        answered = [(qps, text) for qps, status, text in told if status == 200]
        assert len(refused) + len(answered) == FLOOD
        assert all(text.startswith("error: busy") and text.count("\n") == 1 for text in refused)
        assert all(text == right[qps] for qps, text in answered)
        assert len(answered) >= 16
        if different <= 8:
            assert refused == []  # none waits for more than 8 answers
        assert ask(f"{url}/_dash-update-component", answer_body("qps=7"))[0] == 200
    made.close()


def _alone(client: FlaskClient, qps: int) -> str:
    where, here = "/_dash-update-component", {"Host": "127.0.0.1"}
    return client.post(where, json=answer_body(f"qps={qps}"), headers=here).get_data(as_text=True)


def test_questions_of_those_who_went_away_are_not_worked_on() -> None:
    begun: list[float] = []
    go = threading.Event()

    def look(state: State) -> Look:
        begun.append(state.qps)
        assert go.wait(60)
        return look_of(state)

    made = Answers(Desk(look), FullRuns(full))
    with served(lambda: make_app(made, Guard("127.0.0.1", None))) as url:
        port = int(url.rpartition(":")[2])
        with ExitStack() as stack:
            for qps in range(1, 9):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                one.sendall(f"GET /download/plan.json?qps={qps} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            _until(lambda: len(made.desk._running) == 8)
        _until(lambda: len(made.desk._running) == 1)  # the one that was begun
        go.set()
        assert ask(f"{url}/download/plan.json?qps=99")[0] == 200
    assert len(begun) == 2
    made.close()


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_port_in_use_is_one_line() -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="in use"), bound_socket("127.0.0.1", port):
            pass
    with pytest.raises(InputError, match="--host"), bound_socket("no.such.host.invalid", 0):
        pass
