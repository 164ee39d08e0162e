"""A WSGI server of so many threads; connections on top wait, too many of those are told that it is busy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler

from kplan.errors import InputError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

THREADS = 32
OPEN = 256
"""Connections that are served or wait."""
PATIENCE_S = 10.0
"""Seconds without a byte after which a connection is dropped."""
_BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nContent-Length: 5\r\n"
    b"\r\nbusy\n"
)


class Handler(WSGIRequestHandler):
    """One request a connection, so that an idle browser holds no thread; nothing is logged."""

    protocol_version = "HTTP/1.0"
    timeout = PATIENCE_S
    server_version, sys_version = "kplan", ""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (its base's name)
        """Requests are not logged: an address may hold a token."""


class BoundedServer(BaseWSGIServer):
    """Serves ``app`` on a socket that is bound."""

    multithread = True
    request_queue_size = OPEN

    def __init__(self, app: WSGIApplication, bound: socket.socket) -> None:
        host, port = bound.getsockname()[:2]
        bound.listen(OPEN)
        self._open = threading.BoundedSemaphore(OPEN)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kplan-http")
        super().__init__(host, port, app, handler=Handler, fd=bound.fileno())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to the threads, or say that there are too many."""
        if not self._open.acquire(blocking=False):
            self._turn_away(request)
            return
        self._threads.submit(self._serve, request, client_address)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):  # the client went away, or sent what is no request
            pass
        finally:
            self.shutdown_request(request)
            self._open.release()

    def _turn_away(self, request: Any) -> None:
        try:
            request.settimeout(1.0)
            request.sendall(_BUSY)
        except OSError:
            pass
        finally:
            self.shutdown_request(request)

    def serve(self) -> None:
        """Serve until Ctrl-C or ``shutdown``; what is being served ends, what waits is dropped."""
        try:
            self.serve_forever()
        finally:
            self._threads.shutdown(wait=True, cancel_futures=True)


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
