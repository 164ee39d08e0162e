"""The page's WSGI server: waitress, which reads a request whole before a thread sees it, and sends an answer
while no thread waits for whoever reads it. Here are its bounds, who gives up a place, and how it ends.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer

from kplan.errors import InputError
from kplan.interrupts import shielded

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

GONE = "waitress.client_disconnected"
"""Key of a request's environment: tells, when called, whether whoever asked went away."""
OPEN = 256
"""Connections at once, and threads: those who wait for an answer keep nobody else from a file of the page."""
LONGEST_HEAD = 32_768
"""Bytes of a request's first line and headers."""
LARGEST_BODY = 65_536
"""Bytes of a request after its head."""
SILENT_S = 10
"""Seconds in which a client that nobody works for must send or read something."""
LIFE_S = 120.0
"""Seconds after which a connection is closed once nobody works for it: dribbling does not prolong it."""
DAWDLE_S = 1.0
"""Seconds that a connection which is sent an answer is left in peace, before it may lose its place."""
UNREAD_BYTES = 256 * 2**20
"""Bytes of answers that wait to be read, of all connections together."""
_IN_MEMORY_BYTES = 2**18
"""Of one connection's unread answers; the rest waits in a temporary file."""
_BLOCKING_BYTES = 2**20
"""Unread bytes of a connection above which its next request waits, in a thread."""
_SPARE_FILES = 128
"""Files that this process opens beside its connections."""
_LEAVE_S, _TURN_S = 1.0, 0.05
_LONGEST_FAULT = 200


class _Parser(HTTPRequestParser):  # type: ignore[misc]  # its base has no types
    """Refuses an address or a length that its base trips over (a bracket, 5,000 digits) as it does others."""

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError:
            raise ParsingError("the address or the length cannot be read") from None


class _Channel(HTTPChannel):  # type: ignore[misc]  # its base has no types
    parser_class = _Parser

    def gives_way(self, now_s: float) -> bool:
        """Whether it may lose its place: nobody works for it, and it had its time to read an answer."""
        if self.total_outbufs_len:
            return bool(now_s - self.creation_time >= DAWDLE_S)
        return not self.requests


class BoundedServer(TcpWSGIServer):  # type: ignore[misc]  # its base has no types
    """Serves ``app`` on a socket that is bound.

    When every place is taken, the oldest connection that nobody works for gives up its own; when all are
    worked for, whoever comes waits, unaccepted, until one is free. A client that is refused while it still
    sends may find its connection reset before it has read why.

    Args:
        end: called before waiting for what is worked on, so that it need not be waited for long.
    """

    channel_class = _Channel

    def __init__(self, app: WSGIApplication, bound: socket.socket, end: Callable[[], None]) -> None:
        self._end, self._ending = end, False
        self._places = _places()
        _tell_faults_in_a_line()
        super().__init__(
            app,
            map={},
            _sock=bound,
            bind_socket=False,
            sockinfo=(bound.family, bound.type, bound.proto, bound.getsockname()),
            threads=self._places,
            connection_limit=self._places + 3,  # who comes last, and the listening socket and the trigger
            max_request_header_size=LONGEST_HEAD,
            max_request_body_size=LARGEST_BODY + 1,  # it refuses from there on
            channel_timeout=SILENT_S,
            cleanup_interval=1,
            channel_request_lookahead=1,  # while it works for somebody, it notices that they went away
            outbuf_overflow=_IN_MEMORY_BYTES,
            outbuf_high_watermark=_BLOCKING_BYTES,
            asyncore_use_poll=True,  # select takes no file above 1023
            log_socket_errors=False,
            expose_tracebacks=False,
            ident="kplan",
        )

    @property
    def port(self) -> int:
        """On which it listens."""
        return int(self.effective_port)

    def serve(self) -> None:
        """Serve until Ctrl-C or :meth:`shutdown`; what is worked on ends, what waits is dropped."""
        try:
            while not self._ending:
                self._turn(self.adj.asyncore_loop_timeout)
        except KeyboardInterrupt:
            pass
        finally:
            with shielded():
                self._leave()

    def shutdown(self) -> None:
        """End :meth:`serve`, from another thread."""
        self._ending = True
        self.pull_trigger()

    def _turn(self, timeout_s: float) -> None:
        self._make_room(time.time())  # waitress' own clock
        wasyncore.loop(timeout_s, use_poll=True, map=self._map, count=1)

    def _make_room(self, now_s: float) -> None:
        """Close who reads nothing, even where a thread waits for that, and who has been here long; where all
        places are taken, or too much is unread, who has dawdled longest, but not whoever came last.

        At once: waitress closes whoever can be written to, which who reads nothing never can. And between two
        turns of its loop: within one, a newcomer may get the number of the closed file, and its news.
        """
        for one in list(self.active_channels.values()):
            unread = one.total_outbufs_len and one.last_activity < now_s - SILENT_S
            if unread or (not one.requests and one.creation_time < now_s - LIFE_S):
                one.handle_close()
        older = list(self.active_channels.values())[:-1]
        unread_bytes = sum(one.total_outbufs_len for one in older)
        if len(older) >= self._places or unread_bytes > UNREAD_BYTES:
            leaving = [one for one in older if one.gives_way(now_s)]
            if leaving:
                min(leaving, key=lambda one: one.creation_time).handle_close()

    def _leave(self) -> None:
        """Refuse whoever comes, end what is worked on, send the answers there are to those who read them."""
        wasyncore.dispatcher.close(self)
        self.accepting = False
        self._end()
        threads = self.task_dispatcher
        threads.set_thread_count(0)
        until_s = time.monotonic() + _LEAVE_S
        while time.monotonic() < until_s and (
            threads.threads or any(one.total_outbufs_len for one in self.active_channels.values())
        ):
            self._turn(_TURN_S)
        for one in list(self.active_channels.values()):
            one.handle_close()  # a thread that waits until it is read goes on
        threads.shutdown()
        self.trigger.close()


class _OneLine(logging.Formatter):
    """A fault without its frames, and without what was asked."""

    def format(self, record: logging.LogRecord) -> str:
        fault = record.exc_info[1] if record.exc_info else None
        what = record.getMessage() if fault is None else f"{type(fault).__name__}: {fault}"
        return f"error: a connection of the page failed ({' '.join(what.split())[:_LONGEST_FAULT]})"


def _tell_faults_in_a_line() -> None:
    """Of waitress only faults are told: floods are no news, and an address says what somebody asked."""
    logger = logging.getLogger("waitress")
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logger.handlers = [handler]


def _places() -> int:
    """OPEN, or fewer where this process may not open two files for each: its socket, and what is unread."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return OPEN
    return max(1, min(OPEN, (files - _SPARE_FILES) // 2))


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to ``host`` and ``port`` (0: any that is free).

    Raises:
        InputError: the port is in use or not ours, or the host is no address of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "is no address"
        raise InputError("--host", host, why, "give one of this machine") from None
    with bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError as error:
            what = f"cannot be listened on ({error.strerror})"
            raise InputError("--port", f"{port} of {host}", what, "give another --port, or --host") from None
        yield bound
