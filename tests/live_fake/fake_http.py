"""The fake server's HTTP: what it answers at each path, and the faults that strike there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.live_fake.fake_streams import (
    SglangStream,
    Stream,
    VllmStream,
    chat_tokens,
    merged,
    sglang_request,
    token_ids,
    vllm_request,
)

if TYPE_CHECKING:
    from tests.live_fake.fake import FakeServer


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class Handler(BaseHTTPRequestHandler):
    fake: FakeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it
        """Nothing."""

    def _arrived(self) -> bool:
        """Count the request; True when it was answered with a fault already."""
        fake, path = self.fake, self.path
        with fake._lock:
            fake.asked[path] += 1
            nth = fake.asked[path]
        fake._closed.wait(fake.faults.wait_s(path, nth))
        status = fake.faults.fail(path, nth)
        key = fake.engine.api_key
        if status is None and key is not None and self.headers["Authorization"] != f"Bearer {key}":
            status = 401
        if status is not None:
            self._json({"error": {"message": "as told", "code": status}}, status)
        return status is not None

    def do_GET(self) -> None:
        """Answer what kplan.live reads."""
        if self._arrived():
            return
        engine, vllm = self.fake.engine, self.fake.engine.name == "vllm"
        if self.path == "/v1/models":
            served = {"id": engine.model, "owned_by": engine.name, "max_model_len": engine.max_model_len}
            self._json({"object": "list", "data": [served]})
        elif self.path == "/health":
            self._json({})
        elif self.path == "/metrics" and engine.metrics:
            self._send(self.fake.metrics_text().encode(), "text/plain")
        elif self.path == "/version" and vllm:
            self._json({"version": engine.version})
        elif self.path == "/server_info" and not vllm:
            on = engine.k > 0
            self._json(
                {
                    "version": engine.version,
                    "speculative_algorithm": "EAGLE" if on else None,
                    "speculative_num_steps": engine.k if on else None,
                    "speculative_eagle_topk": 1 if on else None,
                    "speculative_num_draft_tokens": engine.k + 1 if on else None,
                    "speculative_adaptive": engine.k_of is not None,
                    "stream_interval": engine.steps_at_a_time,
                }
            )
        else:
            self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        """Generate, or tokenize."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._arrived():
            return
        vllm = self.fake.engine.name == "vllm"
        if self.path in ("/tokenize", "/v1/tokenize"):
            ids = chat_tokens(body["messages"]) if "messages" in body else token_ids(body["prompt"])
            self._json({"tokens": ids, "count": len(ids), "max_model_len": self.fake.engine.max_model_len})
        elif self.path in ("/v1/completions", "/v1/chat/completions") and vllm:
            self._generate(body, *vllm_request(body))
        elif self.path == "/generate" and not vllm:
            self._generate(body, *sglang_request(body))
        else:
            self._json({"detail": "Not Found"}, 404)

    def _generate(self, body: dict[str, Any], prompt: list[int], most: int, ignore_eos: bool) -> None:
        fake = self.fake
        engine = fake.engine
        if engine.name == "vllm" and body.get("model") != engine.model:
            self._json({"error": {"message": f"The model `{body.get('model')}` does not exist."}}, 404)
            return
        if len(prompt) + most > engine.max_model_len:
            message = f"maximum context length is {engine.max_model_len} tokens"
            self._json({"error": {"message": message}}, 400)
            return
        with fake._lock:
            fake.asked["generations"] += 1
            nth = fake.asked["generations"]
            fake.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        writer = VllmStream if engine.name == "vllm" else SglangStream
        stream = writer(engine, body, prompt, f"fake-{nth}", chat=self.path.endswith("chat/completions"))
        running = fake.generate(tuple(prompt), most, stream.steps, ignore_eos=ignore_eos)
        try:
            self._stream(stream, running, nth)
        finally:
            running.close()  # a request that was cut runs no longer

    def _stream(self, stream: Stream, running: Iterator[list[int]], nth: int) -> None:
        fake, faults = self.fake, self.fake.faults
        cut, stall, dies = faults.cut_after(nth), faults.stall_after(nth), faults.error_after(nth)
        for sent, chunk in enumerate(merged(running, fake.engine.steps_at_a_time)):
            if sent == cut:
                self.close_connection = True
                return
            if sent == stall:
                while fake.faults is faults and not fake._closed.wait(0.05):
                    pass
                self.close_connection = True
                return
            if sent == dies:
                self._event({"error": {"message": "EngineCore died", "code": 500}})
                self._chunk(b"data: [DONE]\n\n")
                self._chunk(b"")
                return
            for event in stream.chunk(chunk):
                self._event(event)
        for event in stream.end():
            self._event(event)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
