"""A server that answers as vLLM 0.32 or SGLang 0.5.23 do, as far as kplan.live asks, or misbehaves as told.

    with FakeServer(Engine(k=4), Faults(fail=lambda path, nth: 500 if nth > 3 else None)) as fake:
        ... fake.url; fake.engine.alpha = 0.3 changes what is accepted from then on ...

What it emits follows from the prompt alone: the same prompt gets the same tokens and the same acceptance, at
any concurrency. Tokens and steps of every request are kept in ``done``, so that a test knows the truth.
"""

from __future__ import annotations

import json
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

VOCABULARY = 5000
FIRST_TOKEN = 4
"""Tokens below it are special."""


@dataclass
class Engine:
    """What the server is. Fields may be changed while it runs.

    Attributes:
        name: ``vllm`` or ``sglang``.
        k: drafts a step; 0: without speculation.
        alpha: chance that a draft is accepted, given that those before it were.
        k_of: drafts of a step by the number of running requests (a table); None: always ``k``.
        offers: chance that the proposer has a draft to offer (below 1: n-gram).
        detail: vLLM's ``--per-request-spec-decode-metrics``: none, summary or detailed.
        metrics: whether /metrics is there.
        output_len: tokens after which the model stops by itself, unless ``ignore_eos``; None: never.
        step_s: seconds of a step.
        max_model_len: longest prompt and output together.
        steps_at_a_time: steps whose tokens are sent as one chunk (stream interval, or a slow reader).
    """

    name: str = "vllm"
    model: str = "fake-model"
    version: str = "0.32.0"
    k: int = 4
    alpha: float = 0.7
    k_of: Callable[[int], int] | None = None
    offers: float = 1.0
    detail: str = "detailed"
    metrics: bool = True
    output_len: int | None = None
    step_s: float = 0.0
    max_model_len: int = 4096
    steps_at_a_time: int = 1
    api_key: str | None = None


def never(_: int) -> None:
    """The fault of a request that has none."""


@dataclass
class Faults:
    """How the server misbehaves. ``nth`` counts the requests of a path, or the generations, from 1.

    Attributes:
        fail: (path, nth) -> HTTP status to answer with, None: as usual.
        wait_s: (path, nth) -> seconds before the answer.
        cut_after: nth generation -> chunks after which the connection breaks, None: never.
        stall_after: nth generation -> chunks after which nothing more comes, until other faults are set.
        error_after: nth generation -> chunks after which an error is streamed, as vLLM does when it dies.
        missing: names of series that /metrics leaves out.
    """

    fail: Callable[[str, int], int | None] = lambda _, __: None
    wait_s: Callable[[str, int], float] = lambda _, __: 0.0
    cut_after: Callable[[int], int | None] = never
    stall_after: Callable[[int], int | None] = never
    error_after: Callable[[int], int | None] = never
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Done:
    """A generation as it was: ``steps`` are (drafted, accepted) of every step after the prefill."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]


@dataclass
class FakeServer:
    """The server; it runs while the ``with`` block does."""

    engine: Engine = field(default_factory=Engine)
    faults: Faults = field(default_factory=Faults)
    done: list[Done] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    """Requests by path."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """What was posted to generate."""
    counts: Counter[str] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    running: int = 0
    most_running: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        owner = self

        class Bound(_Handler):
            fake = owner

        self._http = _Quiet(("127.0.0.1", 0), Bound)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def restart_counters(self) -> None:
        """What a server that was started anew has counted: nothing."""
        with self._lock:
            self.counts.clear()
            self.accepted_at.clear()

    def serve_another(self, requests: int = 3, tokens: int = 40) -> None:
        """Count as if another client had been served."""
        for i in range(requests):
            for _ in self.generate(tuple(range(10 + i, 30 + i)), tokens, [], ignore_eos=True):
                pass

    def generate(
        self, prompt: tuple[int, ...], most: int, steps: list[tuple[int, int]], *, ignore_eos: bool
    ) -> Generator[list[int], None, None]:
        """Tokens of each step, the prefill's first; fills ``steps`` and counts as the engine does."""
        engine, rng = self.engine, random.Random(repr(prompt))
        text = random.Random(f"text {prompt!r}")
        wanted = most if ignore_eos or engine.output_len is None else min(most, engine.output_len)
        tokens: list[int] = []
        begin = time.monotonic()
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            self._closed.wait(engine.step_s)
            before = first = time.monotonic()
            while len(tokens) < wanted:
                drafted = accepted = 0
                if tokens:
                    drafted = self._drafts(rng)
                    while accepted < drafted and rng.random() < engine.alpha:
                        accepted += 1
                    steps.append((drafted, accepted))
                    self._closed.wait(engine.step_s)
                left = wanted - len(tokens)
                emitted = [text.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(min(accepted + 1, left))]
                now = time.monotonic()
                self._count_step(bool(tokens), drafted, accepted, len(emitted), now - before)
                before = now
                tokens += emitted
                yield emitted
            self._count_request(len(prompt), len(tokens), first - begin, before - first)
            self.done.append(Done(prompt, tuple(tokens), tuple(steps)))
        finally:
            with self._lock:
                self.running -= 1

    def _drafts(self, rng: random.Random) -> int:
        engine = self.engine
        offered = rng.random() < engine.offers
        k = engine.k if engine.k_of is None else min(engine.k, engine.k_of(self.running))
        return k if offered else 0

    def _count_step(self, decoding: bool, drafted: int, accepted: int, emitted: int, step_s: float) -> None:
        with self._lock:
            self.counts["steps"] += 1
            self.counts["step_tokens"] += drafted + 1
            self.counts["output_tokens"] += emitted
            if decoding:
                # vLLM samples the gap once a step, SGLang once a token
                self.counts["emissions"] += 1 if self.engine.name == "vllm" else emitted
                self.counts["emission_s"] += step_s
            if drafted:
                self.counts["drafts"] += 1
                self.counts["draft_tokens"] += drafted
                self.counts["accepted_tokens"] += accepted
                self.accepted_at.update(range(accepted))

    def _count_request(self, prompt: int, output: int, ttft_s: float, decode_s: float) -> None:
        with self._lock:
            self.counts["prompt_tokens"] += prompt
            self.counts["requests"] += 1
            self.counts["ttft_s"] += ttft_s
            self.counts["e2e_s"] += ttft_s + decode_s
            self.counts["tpot_s"] += decode_s / max(output - 1, 1)

    def metrics_text(self) -> str:
        """What /metrics answers."""
        with self._lock:
            lines = list(self._vllm_metrics() if self.engine.name == "vllm" else self._sglang_metrics())
        return "\n".join(line for line in lines if not self._left_out(line)) + "\n"

    def _left_out(self, line: str) -> bool:
        return line.split("{")[0] in self.faults.missing

    def _vllm_metrics(self) -> Iterator[str]:
        labels = f'engine="0",model_name="{self.engine.model}"'
        yield "# HELP python_info Python platform information"
        yield "# TYPE python_info gauge"
        yield 'python_info{implementation="CPython"} 1.0'
        for name, kind in (("num_requests_running", self.running), ("num_requests_waiting", 0)):
            yield f"# TYPE vllm:{name} gauge"
            yield f"vllm:{name}{{{labels}}} {kind}"
        yield f"vllm:kv_cache_usage_perc{{{labels}}} {min(1.0, self.running / 64)}"
        counters = {
            "num_preemptions": 0,
            "prompt_tokens": self.counts["prompt_tokens"],
            "generation_tokens": self.counts["output_tokens"],
        }
        if self.engine.k:
            counters |= {
                "spec_decode_num_drafts": self.counts["drafts"],
                "spec_decode_num_draft_tokens": self.counts["draft_tokens"],
                "spec_decode_num_accepted_tokens": self.counts["accepted_tokens"],
            }
        for name, value in counters.items():
            yield f"# TYPE vllm:{name}_total counter"
            yield f"vllm:{name}_total{{{labels}}} {float(value)}"
        for reason in ("stop", "length", "abort"):
            value = self.counts["requests"] if reason == "length" else 0
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(value)}'
        for at in range(self.engine.k):
            yield (
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{at}"}} '
                f"{float(self.accepted_at[at])}"
            )
        requests = self.counts["requests"]
        yield from self._histogram("vllm:iteration_tokens_total", labels, "steps", "step_tokens")
        yield from self._histogram("vllm:inter_token_latency_seconds", labels, "emissions", "emission_s")
        for name in ("time_to_first_token_seconds", "request_time_per_output_token_seconds"):
            key = "ttft_s" if name.startswith("time") else "tpot_s"
            yield from self._histogram(f"vllm:{name}", labels, "requests", key)
        yield f"vllm:e2e_request_latency_seconds_count{{{labels}}} {float(requests)}"
        yield f"vllm:e2e_request_latency_seconds_sum{{{labels}}} {float(self.counts['e2e_s'])}"

    def _sglang_metrics(self) -> Iterator[str]:
        labels = f'model_name="{self.engine.model}",tp_rank="0"'
        gauges = {"num_running_reqs": self.running, "num_queue_reqs": 0, "token_usage": 0.1}
        for name, value in gauges.items():
            yield f"# TYPE sglang:{name} gauge"
            yield f"sglang:{name}{{{labels}}} {float(value)}"
        counters = {
            "prompt_tokens": self.counts["prompt_tokens"],
            "generation_tokens": self.counts["output_tokens"],
        }
        if self.engine.k:
            counters["spec_verify_calls"] = self.counts["drafts"]
        for name, value in counters.items():
            yield f"# TYPE sglang:{name}_total counter"
            yield f"sglang:{name}_total{{{labels}}} {float(value)}"
        for name, count, total in (
            ("inter_token_latency_seconds", "emissions", "emission_s"),
            ("time_to_first_token_seconds", "requests", "ttft_s"),
            ("request_time_per_output_token_seconds", "requests", "tpot_s"),
            ("e2e_request_latency_seconds", "requests", "e2e_s"),
        ):
            yield from self._histogram(f"sglang:{name}", labels, count, total)

    def _histogram(self, name: str, labels: str, count: str, total: str) -> Iterator[str]:
        counted = float(self.counts[count])
        yield f"# TYPE {name} histogram"
        yield f'{name}_bucket{{{labels},le="0.5"}} {counted}'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {counted}'
        yield f"{name}_count{{{labels}}} {counted}"
        yield f"{name}_sum{{{labels}}} {float(self.counts[total])}"


def token_ids(text: str) -> list[int]:
    """The tokens of a text, one a word: "w17" is 17, any other word a number of its own."""
    words = text.split()
    return [
        int(word[1:])
        if word[:1] == "w" and word[1:].isdigit()
        else FIRST_TOKEN + zlib.crc32(word.encode()) % (VOCABULARY - FIRST_TOKEN)
        for word in words
    ] or [0]


def chat_tokens(messages: list[dict[str, Any]]) -> list[int]:
    """The tokens of a conversation: special ones around each message."""
    ids: list[int] = []
    for message in messages:
        ids += [1, *token_ids(str(message["content"])), 2]
    return [*ids, 1]


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
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
            self._generate(body, *_vllm_request(body))
        elif self.path == "/generate" and not vllm:
            self._generate(body, *_sglang_request(body))
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
        writer = _VllmStream if engine.name == "vllm" else _SglangStream
        stream = writer(engine, body, prompt, f"fake-{nth}", chat=self.path.endswith("chat/completions"))
        running = fake.generate(tuple(prompt), most, stream.steps, ignore_eos=ignore_eos)
        try:
            self._stream(stream, running, nth)
        finally:
            running.close()  # a request that was cut runs no longer

    def _stream(self, stream: _Stream, running: Iterator[list[int]], nth: int) -> None:
        fake, faults = self.fake, self.fake.faults
        cut, stall, dies = faults.cut_after(nth), faults.stall_after(nth), faults.error_after(nth)
        for sent, chunk in enumerate(_merged(running, fake.engine.steps_at_a_time)):
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


class _Stream:
    """The events of one streamed answer."""

    def __init__(
        self, engine: Engine, body: dict[str, Any], prompt: list[int], name: str, *, chat: bool
    ) -> None:
        self.engine, self.body, self.prompt, self.name, self.chat = engine, body, prompt, name, chat
        self.tokens: list[int] = []
        self.steps: list[tuple[int, int]] = []

    def chunk(self, tokens: list[int]) -> Iterator[dict[str, Any]]:
        """Events that tell of new tokens."""
        raise NotImplementedError

    def end(self) -> Iterator[dict[str, Any]]:
        """Events after the last token."""
        raise NotImplementedError

    def histogram(self) -> list[int]:
        """(k + 1,) steps with a draft by accepted drafts."""
        counts = Counter(accepted for drafted, accepted in self.steps if drafted)
        return [counts[j] for j in range(self.engine.k + 1)]


class _VllmStream(_Stream):
    def _event(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": self.name, "object": kind, "model": self.engine.model, "choices": choices, **more}

    def chunk(self, tokens: list[int]) -> Iterator[dict[str, Any]]:
        ids = bool(self.body.get("return_token_ids"))
        text = "".join(f"w{token} " for token in tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        if self.chat:
            if not self.tokens:
                role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield self._event([role], prompt_token_ids=self.prompt if ids else None)
            choice["delta"] = {"content": text}
        else:
            choice |= {"text": text, "prompt_token_ids": self.prompt if ids and not self.tokens else None}
        choice["token_ids"] = tokens if ids else None
        self.tokens += tokens
        if len(self.tokens) >= self.body["max_tokens"]:
            choice["finish_reason"] = "length"
        yield self._event([choice])

    def end(self) -> Iterator[dict[str, Any]]:
        reason = "length" if len(self.tokens) >= self.body["max_tokens"] else "stop"
        last: dict[str, Any] = {"index": 0, "finish_reason": reason, "token_ids": []}
        last |= {"delta": {}} if self.chat else {"text": ""}
        if reason == "stop":
            yield self._event([last])
        if not self.body.get("stream_options", {}).get("include_usage"):
            return
        usage = {"prompt_tokens": len(self.prompt), "completion_tokens": len(self.tokens)}
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
        told = self._acceptance()
        metrics = {} if told is None else {"metrics": {"speculative_decoding": told}}
        yield self._event([], usage=usage, **metrics)

    def _acceptance(self) -> dict[str, Any] | None:
        if self.engine.detail == "none" or not self.engine.k:
            return None
        verified = [(drafted, accepted) for drafted, accepted in self.steps if drafted]
        drafts, kept = sum(d for d, _ in verified), sum(a for _, a in verified)
        told: dict[str, Any] = {
            "mean_acceptance_length": 1.0 + kept / len(verified) if verified else 1.0,
            "draft_acceptance_rate": kept / drafts if drafts else 0.0,
            "acceptance_histogram": self.histogram(),
            "num_spec_steps": len(verified),
            "num_accepted_draft_tokens": kept,
            "num_draft_tokens": drafts,
            "num_spec_tokens": self.engine.k,
        }
        if self.engine.detail == "detailed" and verified:
            told["per_step_accepted"] = [a for _, a in verified]
            told["per_step_drafted"] = [d for d, _ in verified]
        return told


class _SglangStream(_Stream):
    def chunk(self, tokens: list[int]) -> Iterator[dict[str, Any]]:
        self.tokens += tokens
        yield self._event(None)

    def end(self) -> Iterator[dict[str, Any]]:
        most = self.body["sampling_params"]["max_new_tokens"]
        yield self._event({"type": "length" if len(self.tokens) >= most else "stop"})

    def _event(self, reason: dict[str, Any] | None) -> dict[str, Any]:
        told = {
            "id": self.name,
            "prompt_tokens": len(self.prompt),
            "completion_tokens": len(self.tokens),
            "finish_reason": reason,
        }
        if self.steps and self.engine.k:
            kept = sum(accepted for _, accepted in self.steps)
            told |= {
                "spec_num_correct_drafts": kept,
                "spec_num_proposed_drafts": len(self.steps) * self.engine.k,
                "spec_verify_ct": len(self.steps),
                "spec_correct_drafts_histogram": self.histogram(),
            }
        return {"text": "", "output_ids": list(self.tokens), "meta_info": told}


def _vllm_request(body: dict[str, Any]) -> tuple[list[int], int, bool]:
    if "messages" in body:
        prompt = chat_tokens(body["messages"])
    else:
        prompt = body["prompt"] if isinstance(body["prompt"], list) else token_ids(body["prompt"])
    return prompt, int(body["max_tokens"]), bool(body.get("ignore_eos"))


def _sglang_request(body: dict[str, Any]) -> tuple[list[int], int, bool]:
    prompt = body["input_ids"] if "input_ids" in body else token_ids(body["text"])
    sampling = body["sampling_params"]
    return prompt, int(sampling["max_new_tokens"]), bool(sampling.get("ignore_eos"))


def _merged(steps: Iterator[list[int]], at_a_time: int) -> Iterator[list[int]]:
    """The prefill's chunk, then chunks of ``at_a_time`` steps."""
    held: list[int] = []
    count = 0
    for i, tokens in enumerate(steps):
        held += tokens
        count += 1
        if i == 0 or count == at_a_time:
            yield held
            held, count = [], 0
    if held:
        yield held
