"""200 at once: everybody gets the answer to their own question, or is told that it is busy."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kplan.dashboard.app import make_app
from kplan.dashboard.guard import Guard
from kplan.dashboard.server import bound_socket
from kplan.errors import InputError
from tests.dashboard.made import answers
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
    made = answers(0.02)
    with served(lambda: make_app(made, Guard("127.0.0.1", None))) as url:
        told = _flood(url, different)
        answered = 0
        for qps, status, text in told:
            assert status in (200, 503)
            if status == 503:
                assert text.splitlines()[0].startswith(("busy", "error: busy"))
            else:
                answered += 1
                shown = json.loads(text)["response"]
                assert shown["heading"]["children"] == f"What K at {qps} requests/s?"
                assert f"answer to {qps} requests/s" in str(shown["answer"])
        assert answered >= min(FLOOD, 16)
        if different <= 8:
            assert answered == FLOOD  # none waits for more than 8 answers
        assert ask(f"{url}/_dash-update-component", answer_body("qps=7"))[0] == 200
    made.close()


def test_a_port_in_use_is_one_line() -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="in use"), bound_socket("127.0.0.1", port):
            pass
    with pytest.raises(InputError, match="--host"), bound_socket("no.such.host.invalid", 0):
        pass
