"""A server that answers whatever a test says: bytes that no engine would send."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.live_fake.fake import Engine, FakeServer

MODELS = json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}).encode()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    routes: Mapping[str, Answer]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it
        """Nothing."""

    def do_GET(self) -> None:
        """Answer as the route says; 404 without one."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.routes.get(self.path, (404, b""))
        if callable(answer):
            answer(self)
            return
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """The same."""
        self.do_GET()


Answer = bytes | tuple[int, bytes] | Callable[[Handler], None]


def chunks(*pieces: bytes, times: int = 1, pause_s: float = 0.0, status: int = 200, **headers: str) -> Answer:
    """``pieces``, ``times`` over, each as a chunk of its own."""

    def answer(request: Handler) -> None:
        request.send_response(status)
        request.send_header("Transfer-Encoding", "chunked")
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        for piece in pieces * times:
            request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(pause_s)
        request.wfile.write(b"0\r\n\r\n")

    return answer


def event(**fields: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def vllm(answer: Answer, **others: Answer) -> dict[str, Answer]:
    """The routes of a vLLM that answers every completion so; ``others`` by path, ``_`` for ``/``."""
    with FakeServer(Engine()) as fake:
        counted = fake.metrics_text().encode()
    usual: dict[str, Answer] = {
        "/v1/models": MODELS,
        "/metrics": counted,
        "/version": b'{"version": "0.32.0"}',
    }
    return (
        usual | {"/v1/completions": answer} | {f"/{key.replace('_', '/')}": to for key, to in others.items()}
    )


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Hostile:
    """The server; it runs while the ``with`` block does."""

    def __init__(self, routes: Mapping[str, Answer]) -> None:
        bound = type("Bound", (Handler,), {"routes": routes})
        self._http = _Quiet(("127.0.0.1", 0), bound)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
