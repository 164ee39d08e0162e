"""Who dawdles at the door keeps nobody else out, and holds what it holds for a bounded time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest
from flask import Flask, Response, request

from kplan.dashboard import server
from kplan.dashboard.server import GONE, LARGEST_BODY, LONGEST_HEAD
from tests.dashboard.served import ask, served

PLACES = 8
ANSWER = b"x" * 8_000_000
"""More than the kernel holds for whoever does not read."""
BEGUN = b"GET / HTTP/1.1\r\nHost: here\r\nX: "
BIG = b"GET /big HTTP/1.1\r\nHost: here\r\n\r\n"
WAIT = b"GET /wait HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


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
        left: Callable[[], bool] = request.environ[GONE]
        while not (left() or self.go.wait(0.02)):
            pass
        if left():
            self.gone.set()
        return "waited"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, str, int]]:
    """One with few places; its URL and its port."""
    monkeypatch.setattr(server, "OPEN", PLACES)
    made = Site()
    with served(lambda: made.app) as url:
        yield made, url, int(url.rpartition(":")[2])
        made.go.set()


def _send(stack: ExitStack, port: int, text: bytes, *, window: int | None = None) -> socket.socket:
    one = stack.enter_context(socket.socket())
    one.settimeout(60)
    if window is not None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    one.connect(("127.0.0.1", port))
    one.sendall(text)
    return one


def _unread(stack: ExitStack, port: int, asked: bytes = BIG) -> socket.socket:
    """A client that is being sent an answer and reads one byte of it."""
    one = _send(stack, port, asked, window=4096)
    assert one.recv(1) == b"H"
    return one


def _all(one: socket.socket) -> bytes:
    """What comes until the end, which a reset is too."""
    parts = []
    try:
        while part := one.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def _is_open(one: socket.socket) -> bool:
    one.settimeout(0.0)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def _is_held(port: int, one: socket.socket) -> bool:
    """Whether the server has its end of ``one`` open."""
    here = one.getsockname()[1]
    return any(
        end.laddr.port == port and end.raddr and end.raddr.port == here and end.fd != -1
        for end in psutil.Process().net_connections("tcp")
    )


def test_requests_that_never_end_keep_nobody_out(site: tuple[Site, str, int]) -> None:
    _, url, port = site
    with ExitStack() as stack:
        dribbling = [_send(stack, port, BEGUN) for _ in range(300)]
        assert ask(url) == (200, "home")
        assert sum(_is_open(one) for one in dribbling) <= PLACES  # the oldest gave their places


def test_answers_that_are_never_read_keep_nobody_out(
    site: tuple[Site, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DAWDLE_S", 0.0)
    _, url, port = site
    with ExitStack() as stack:
        for _ in range(3 * PLACES):
            _unread(stack, port)
        assert ask(url) == (200, "home")


def test_who_asks_again_and_again_and_reads_nothing_keeps_no_thread(site: tuple[Site, str, int]) -> None:
    """The second answer waits, in a thread, for the first to be read; every thread does so here."""
    _, url, port = site
    with ExitStack() as stack:
        unread = [_send(stack, port, 3 * BIG, window=4096) for _ in range(PLACES)]
        assert ask(url) == (200, "home")
        _send(stack, port, BEGUN)  # who comes next, and stays
        _until(lambda: any(not _is_held(port, one) for one in unread))


def test_who_reads_nothing_goes_even_where_a_thread_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SILENT_S", 1)
    made = Site()
    with served(lambda: made.app) as url, ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        unread = _unread(stack, port, 3 * BIG)
        assert _is_held(port, unread)
        _until(lambda: not _is_held(port, unread))


def test_the_bytes_of_unread_answers_are_bounded(
    site: tuple[Site, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DAWDLE_S", 0.0)
    monkeypatch.setattr(server, "UNREAD_BYTES", len(ANSWER))
    _, _, port = site
    with ExitStack() as stack:
        unread = [_unread(stack, port) for _ in range(PLACES - 2)]
        assert len(_all(unread[0])) < len(ANSWER)  # dropped before it was all sent
        read = 0
        while read < len(ANSWER):  # the newest is kept; its connection stays open
            part = unread[-1].recv(65_536)
            assert part
            read += len(part)


def test_a_request_that_never_ends_is_dropped_though_some_of_it_comes(
    site: tuple[Site, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LIFE_S", 0.3)
    _, url, port = site
    with ExitStack() as stack:
        dribbling = _send(stack, port, BEGUN)

        def more() -> bool:
            try:
                dribbling.sendall(b"x")
            except OSError:
                return False
            return True

        _until(lambda: not more())
    assert ask(url) == (200, "home")


def test_when_every_place_is_worked_for_who_comes_waits(site: tuple[Site, str, int]) -> None:
    made, url, port = site
    with ExitStack() as stack:
        working = [_send(stack, port, WAIT) for _ in range(PLACES)]
        for _ in range(PLACES):
            assert made.waits.acquire(timeout=60)
        more = _send(stack, port, WAIT)
        assert not made.waits.acquire(timeout=0.5)
        made.go.set()
        assert all(_all(one).endswith(b"waited") for one in (*working, more))
    assert ask(url) == (200, "home")


def test_who_works_on_it_learns_that_the_client_went_away(site: tuple[Site, str, int]) -> None:
    made, url, port = site
    with ExitStack() as stack:
        _send(stack, port, WAIT)
        assert made.waits.acquire(timeout=60)
        assert not made.gone.is_set()
    assert made.gone.wait(60)
    assert ask(url) == (200, "home")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET http://[/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000), 400),
        (b"\x00\xff no\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET / HTTP/<script>\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding : chunked\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (HEAD + b"Content-Length: -3\r\n\r\n", 400),
        (HEAD + b"Content-Length: %d\r\n\r\n" % (LARGEST_BODY + 1), 413),
        (HEAD + b"Content-Length: %d\r\n\r\n" % LARGEST_BODY + b"x" * LARGEST_BODY, 405),  # whole
        (b"GET /" + b"a" * LONGEST_HEAD, 431),
    ],
)  # fmt: skip
def test_what_is_no_request_or_too_long_is_refused_and_nothing_is_told(
    site: tuple[Site, str, int], sent: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    _, url, port = site
    with ExitStack() as stack:
        head, _, body = _all(
            _send(stack, port, sent.replace(b"Host: a", b"Host: a\r\nConnection: close"))
        ).partition(b"\r\n\r\n")
        assert head.partition(b"\r\n")[0].split()[1] == b"%d" % status
        assert b"Traceback" not in body
    assert ask(url) == (200, "home")
    assert capfd.readouterr() == ("", "")


def test_a_fault_of_the_application_is_one_line_without_what_was_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(environ: object, start: object) -> list[bytes]:
        raise RuntimeError("first\nsecond")

    made = Flask("broken")
    made.wsgi_app = broken  # type: ignore[method-assign,assignment]
    with served(lambda: made) as url:
        status, text = ask(f"{url}/secret?qps=12")
    assert status == 500
    assert "RuntimeError" not in text
    assert capsys.readouterr().err == "error: a connection of the page failed (RuntimeError: first second)\n"


def test_with_few_files_there_are_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 are left for the rest, and each place may need two."""
    for files, places in ((1024, 256), (640, 256), (328, 100), (100, 1)):
        monkeypatch.setattr(server.resource, "getrlimit", lambda _, files=files: (files, files))
        assert server._places() == places
