"""A WSGI server whose threads see whole requests alone; connections wait at its :class:`Door`."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler

from kplan.dashboard.door import OPEN, Door, Visit
from kplan.dashboard.wire import reply
from kplan.errors import InputError
from kplan.interrupts import shielded

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

GONE = "kplan.gone"
"""Key of a request's environment: the event that is set once whoever asked went away."""


class Handler(WSGIRequestHandler):
    """Works on the request that a visit holds, and leaves the answer in memory; nothing is logged."""

    protocol_version = "HTTP/1.0"
    server_version, sys_version = "kplan", ""
    error_content_type, error_message_format = "text/plain; charset=utf-8", "error: %(explain)s\n"
    request: Visit
    server: BoundedServer

    def setup(self) -> None:
        """Read from, and write to, memory."""
        self.connection = self.server.drained
        self._answer = io.BytesIO()
        self.rfile, self.wfile = io.BytesIO(bytes(self.request.got)), self._answer

    def finish(self) -> None:
        """The door sends the answer; there is none where the address is no address."""
        self.server.door.answer(self.request, self._answer.getvalue() or reply(400, "this is no address"))

    def make_environ(self) -> WSGIEnvironment:
        """As of its base, with the news that the client went away."""
        return {**super().make_environ(), GONE: self.request.gone}

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (its base's name)
        """Requests are not logged: an address says what somebody asked."""


class BoundedServer(BaseWSGIServer):
    """Serves ``app`` on a socket that is bound.

    Args:
        end: called before waiting for what is worked on, so that it need not be waited for long.
    """

    multithread = True

    def __init__(self, app: WSGIApplication, bound: socket.socket, end: Callable[[], None]) -> None:
        host, port = bound.getsockname()[:2]
        bound.listen(OPEN)
        self._end = end
        # a thread for every place: those who wait for an answer keep nobody else from a file of the page
        self._threads = ThreadPoolExecutor(OPEN, thread_name_prefix="kplan-http")
        super().__init__(host, port, app, handler=Handler, fd=bound.fileno())
        self.door = Door(self.socket, self._begin)
        self.drained, other = socket.socketpair()  # where werkzeug looks for what was not read: nothing
        other.close()

    def _begin(self, visit: Visit) -> None:
        self._threads.submit(self._serve, visit)

    def _serve(self, visit: Visit) -> None:
        asked: Any = visit  # in place of the socket that a handler usually reads
        with suppress(ValueError):  # an address that is none: it was answered
            Handler(asked, visit.address, self)

    def serve(self) -> None:
        """Serve until Ctrl-C or :meth:`shutdown`; what is worked on ends, what waits is dropped."""
        try:
            self.door.run()
        except KeyboardInterrupt:
            pass
        finally:
            with shielded():
                self.socket.close()
                self._end()
                self._threads.shutdown(wait=True, cancel_futures=True)
                self.door.close()
                self.drained.close()

    def shutdown(self) -> None:
        """End :meth:`serve`, from another thread."""
        self.door.end()


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
