"""A server that answers as vLLM 0.32 or SGLang 0.5.23 do, as far as kplan.live asks, or misbehaves as told.

    with FakeServer(Engine(k=4), Faults(fail=lambda path, nth: 500 if nth > 3 else None)) as fake:
        ... fake.url; fake.engine.alpha = 0.3 changes what is accepted from then on ...

What it emits follows from the prompt alone: the same prompt gets the same tokens and the same acceptance, at
any concurrency. Tokens and steps of every request are kept in ``done``, so that a test knows the truth.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.live_fake.fake_http import Handler, Quiet
from tests.live_fake.fake_kind import Engine, Faults, never
from tests.live_fake.fake_metrics import Counts
from tests.live_fake.fake_streams import FIRST_TOKEN, VOCABULARY, chat_tokens, token_ids

__all__ = [
    "FIRST_TOKEN",
    "VOCABULARY",
    "Done",
    "Engine",
    "FakeServer",
    "Faults",
    "chat_tokens",
    "never",
    "token_ids",
]


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

        class Bound(Handler):
            fake = owner

        self._http = Quiet(("127.0.0.1", 0), Bound)
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
            shown = Counts(self.engine, self.faults, self.counts, self.accepted_at, self.running)
            return shown.text()
