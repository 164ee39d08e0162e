"""Who dawdles at the door keeps nobody else out, and holds what it holds for a bounded time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from flask import Flask, Response, request

from kplan.dashboard import door
from kplan.dashboard.server import GONE
from tests.dashboard.served import ask, served

PLACES = 8
ANSWER = b"x" * 8_000_000
"""More than the kernel holds for whoever does not read."""
BEGUN = b"GET / HTTP/1.1\r\nHost: here\r\nX: "


class Site:
    """Answers /, a large /big, and /wait once it is let go or whoever asked went away."""

    def __init__(self) -> None:
        self.waits, self.go, self.gone = threading.Semaphore(0), threading.Event(), threading.Event()
        self.app = Flask("site")
        self.app.add_url_rule("/", "home", lambda: "home")
        self.app.add_url_rule("/big", "big", lambda: Response(ANSWER))
        self.app.add_url_rule("/wait", "wait", self._wait)

    def _wait(self) -> str:
        self.waits.release()
        left: threading.Event = request.environ[GONE]
        while not (self.go.is_set() or left.wait(0.02)):
            pass
        if left.is_set():
            self.gone.set()
        return "waited"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, str, int]]:
    """One with few places; its URL and its port."""
    monkeypatch.setattr(door, "OPEN", PLACES)
    made = Site()
    with served(lambda: made.app) as url:
        yield made, url, int(url.rpartition(":")[2])
        made.go.set()


def _send(stack: ExitStack, port: int, text: bytes, *, window: int | None = None) -> socket.socket:
    one = stack.enter_context(socket.socket())
    one.settimeout(30)
    if window is not None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    one.connect(("127.0.0.1", port))
    one.sendall(text)
    return one


def _all(one: socket.socket) -> bytes:
    parts = []
    while part := one.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_requests_that_never_end_keep_nobody_out(site: tuple[Site, str, int]) -> None:
    _, url, port = site
    with ExitStack() as stack:
        dribbling = [_send(stack, port, BEGUN) for _ in range(200)]
        assert ask(url) == (200, "home")
        assert sum(_is_open(one) for one in dribbling) < PLACES  # the oldest gave their places


def _is_open(one: socket.socket) -> bool:
    one.settimeout(0.0)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_answers_that_are_never_read_keep_nobody_out(
    site: tuple[Site, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "DAWDLE_S", 0.0)
    _, url, port = site
    with ExitStack() as stack:
        for _ in range(3 * PLACES):
            unread = _send(stack, port, b"GET /big HTTP/1.1\r\nHost: here\r\n\r\n", window=4096)
            assert unread.recv(1) == b"H"  # it is being sent
        assert ask(url) == (200, "home")


def test_the_bytes_of_unread_answers_are_bounded(
    site: tuple[Site, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "SENDING_BYTES", len(ANSWER))
    _, _, port = site
    with ExitStack() as stack:
        unread = []
        for _ in range(3):
            unread.append(_send(stack, port, b"GET /big HTTP/1.1\r\nHost: here\r\n\r\n", window=4096))
            assert unread[-1].recv(1) == b"H"
        assert len(_all(unread[0])) < len(ANSWER)  # dropped before it was all sent
        assert _all(unread[-1]).endswith(b"x" * 1000)


def test_a_request_that_does_not_end_in_time_is_told_so(
    site: tuple[Site, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "READ_S", 0.3)
    _, url, port = site
    with ExitStack() as stack:
        dribbling = _send(stack, port, BEGUN)
        silent = _send(stack, port, b"")
        assert _all(dribbling).startswith(b"HTTP/1.0 408 ")
        assert _all(silent) == b""
    assert ask(url) == (200, "home")


def test_only_when_every_place_is_worked_for_is_somebody_turned_away(site: tuple[Site, str, int]) -> None:
    made, url, port = site
    with ExitStack() as stack:
        working = [_send(stack, port, b"GET /wait HTTP/1.1\r\nHost: here\r\n\r\n") for _ in range(PLACES)]
        for _ in range(PLACES):
            assert made.waits.acquire(timeout=30)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as more:
            told = _all(more)
        assert told.startswith(b"HTTP/1.0 503 ")
        assert b"Retry-After: 1\r\n" in told
        made.go.set()
        assert all(_all(one).endswith(b"waited") for one in working)
    assert ask(url) == (200, "home")


def test_who_works_on_it_learns_that_the_client_went_away(site: tuple[Site, str, int]) -> None:
    made, url, port = site
    with ExitStack() as stack:
        _send(stack, port, b"GET /wait HTTP/1.1\r\nHost: here\r\n\r\n")
        assert made.waits.acquire(timeout=30)
        assert not made.gone.is_set()
    assert made.gone.wait(30)
    assert ask(url) == (200, "home")


def test_a_refused_client_can_read_why_while_it_still_sends(site: tuple[Site, str, int]) -> None:
    _, url, port = site
    head = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10000000\r\n\r\n"
    with ExitStack() as stack:
        refused = _send(stack, port, head + b"x" * 200_000)
        assert _all(refused).startswith(b"HTTP/1.0 413 ")
    for sent, status in ((b"GET http://[/ HTTP/1.1\r\nHost: a\r\n\r\n", 400), (b"\x00\xff no\r\n\r\n", 400)):
        with ExitStack() as stack:
            assert _all(_send(stack, port, sent)).startswith(b"HTTP/1.0 %d " % status)
    assert ask(url) == (200, "home")
