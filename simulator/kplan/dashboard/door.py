"""Connections without threads: a request is read whole before anybody works on it, and its answer is sent
while nobody waits for whoever reads it.

So a client that dribbles its request, or never reads its answer, holds a socket for a bounded time and no
thread; when every place is taken, the one that has dawdled longest gives its own to whoever comes.
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from kplan.dashboard.wire import RefusedError, missing, reply

OPEN = 256
"""Connections at once."""
READ_S = 10.0
"""Seconds within which a request must be whole."""
SEND_S, SEND_IDLE_S = 120.0, 10.0
"""Seconds within which an answer must be read, and within which some of it must."""
LINGER_S = 1.0
"""Seconds in which what a refused client still sends is thrown away, so that it can read why."""
DAWDLE_S = 1.0
"""Seconds that whoever reads an answer has before its place may be given away."""
SENDING_BYTES = 64 * 2**20
"""Bytes of answers that wait to be read, of all connections together."""
_CHUNK = 65_536
_TURN_S = 0.01


@dataclass(eq=False)
class Visit:
    """One connection.

    Attributes:
        since_s, until_s: when what it does was begun, and when it must have ended.
        got: of the request, until it is whole.
        left: of the answer; None before there is one.
        served: somebody works on the answer.
        last: nothing more is said; what comes is thrown away.
        gone: set once the client went away.
    """

    socket: socket.socket
    address: tuple[str, int]
    since_s: float
    until_s: float
    got: bytearray = field(default_factory=bytearray)
    left: memoryview | None = None
    served: bool = False
    last: bool = False
    gone: threading.Event = field(default_factory=threading.Event)


class Door:
    """Reads requests from ``listening`` and sends answers, in the thread that calls :meth:`run`.

    Args:
        serve: begins to work on a visit whose ``got`` is whole, elsewhere; :meth:`answer` ends it.
    """

    def __init__(self, listening: socket.socket, serve: Callable[[Visit], None]) -> None:
        self._serve = serve
        self._listening = listening
        self._visits: dict[Visit, None] = {}  # in the order in which they came
        self._answers: SimpleQueue[tuple[Visit, bytes]] = SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._ending = False
        for one in (self._listening, self._woken, self._wake):
            one.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def answer(self, visit: Visit, answer: bytes) -> None:
        """Send ``answer`` and close; from any thread."""
        self._answers.put((visit, answer))
        self._nudge()

    def end(self) -> None:
        """Let :meth:`run` return; from any thread."""
        self._ending = True
        self._nudge()

    def _nudge(self) -> None:
        with suppress(OSError):  # full: it will wake; closed: it has ended
            self._wake.send(b"x")

    def run(self) -> None:
        """Until :meth:`end`."""
        while not self._ending:
            for key, events in self._selector.select(self._patience_s()):
                if key.fileobj is self._listening:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(_CHUNK)
                elif key.data in self._visits:
                    self._move(key.data, events)
            self._send_answers()
            now = time.monotonic()
            for visit in [one for one in self._visits if not one.served and one.until_s <= now]:
                self._expire(visit)

    def close(self) -> None:
        """Send what answers there are, as far as they are read at once, and drop every connection."""
        self._send_answers()
        for visit in list(self._visits):
            self._drop(visit)
        self._selector.close()
        self._woken.close()
        self._wake.close()

    def _patience_s(self) -> float | None:
        ends = [one.until_s for one in self._visits if not one.served]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept(self) -> None:
        try:
            connected, address = self._listening.accept()
        except OSError as error:
            # it went away meanwhile; or this process may open no more
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room(time.monotonic()):
                time.sleep(_TURN_S)
            return
        connected.setblocking(False)
        now = time.monotonic()
        visit = Visit(connected, address[:2], now, now + READ_S)
        if len(self._visits) >= OPEN and not self._make_room(now):
            with suppress(OSError):
                connected.send(reply(503, "busy; ask again"))
            connected.close()
            return
        self._visits[visit] = None
        self._selector.register(connected, selectors.EVENT_READ, visit)

    def _make_room(self, now: float) -> bool:
        """Drop who has dawdled longest: over its request, over an answer to be read, over going."""
        for visit in self._visits:
            patience_s = 0.0 if visit.left is None or visit.last else DAWDLE_S
            if not visit.served and now - visit.since_s >= patience_s:
                self._drop(visit)
                return True
        return False

    def _move(self, visit: Visit, events: int) -> None:
        """Go on with what the connection is ready for."""
        try:
            if events & selectors.EVENT_WRITE:
                self._write(visit)
            else:
                self._read(visit)
        except BlockingIOError:
            pass
        except RefusedError as refused:
            self._send(visit, refused.reply, last=True)
        except OSError:
            self._drop(visit)

    def _read(self, visit: Visit) -> None:
        came = visit.socket.recv(_CHUNK)
        if not came:
            self._drop(visit)
        elif visit.served:  # more than was asked for: it is not read, nor is a going away noticed
            self._selector.unregister(visit.socket)
        elif not visit.last:
            visit.got += came
            if missing(visit.got) == 0:
                visit.served = True
                self._serve(visit)

    def _send_answers(self) -> None:
        while True:
            try:
                visit, answer = self._answers.get_nowait()
            except Empty:
                return
            if visit in self._visits:
                self._send(visit, answer)
                self._bound_sending()

    def _bound_sending(self) -> None:
        """Drop the longest unread answers while there are too many bytes of them; the newest is kept."""
        sending = [(one, len(one.left)) for one in self._visits if one.left]
        sending.sort(key=lambda pair: pair[0].since_s)
        held = sum(size for _, size in sending)
        for visit, size in sending[:-1]:
            if held <= SENDING_BYTES:
                return
            held -= size
            self._drop(visit)

    def _send(self, visit: Visit, answer: bytes, last: bool = False) -> None:
        now = time.monotonic()
        visit.served, visit.last, visit.left = False, last, memoryview(answer)
        visit.got.clear()
        visit.since_s, visit.until_s = now, now + SEND_IDLE_S
        self._listen(visit, selectors.EVENT_WRITE)
        self._move(visit, selectors.EVENT_WRITE)

    def _write(self, visit: Visit) -> None:
        assert visit.left is not None
        visit.left = visit.left[visit.socket.send(visit.left[: 4 * _CHUNK]) :]
        now = time.monotonic()
        visit.until_s = min(visit.since_s + SEND_S, now + SEND_IDLE_S)
        if visit.left:
            return
        if not visit.last:
            self._drop(visit)
            return
        visit.socket.shutdown(socket.SHUT_WR)
        visit.since_s, visit.until_s = now, now + LINGER_S
        self._listen(visit, selectors.EVENT_READ)

    def _listen(self, visit: Visit, events: int) -> None:
        known = visit.socket in self._selector.get_map()
        (self._selector.modify if known else self._selector.register)(visit.socket, events, visit)

    def _expire(self, visit: Visit) -> None:
        """Its time is over: whoever has asked nothing yet is told so."""
        if visit.left is None and visit.got:
            self._send(visit, reply(408, f"a request must be whole within {READ_S:g} s"), last=True)
        else:
            self._drop(visit)

    def _drop(self, visit: Visit) -> None:
        visit.gone.set()
        visit.left = None
        self._visits.pop(visit, None)
        if visit.socket in self._selector.get_map():
            self._selector.unregister(visit.socket)
        visit.socket.close()
