"""Load a running engine with closed loops of fixed size, one after another, so that its steps can be timed.

In a setting, ``batch`` clients keep one request each in flight. Their first requests are cut to staggered
lengths, so that prompts arrive one by one among decodes, as in serving. Prompts are random token ids, which no
prefix cache holds; outputs have fixed lengths. Answers are streamed, as they mostly are in serving; of the
chunks only the first and the last moment are kept: a busy server hands over several at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.live.metrics import Window, read_metrics
from kplan.live.server import Server, ServerInfo, client_options, unreachable
from kplan.rng import stream

CHUNK = b"data: {"
"""How every chunk of a stream begins that holds tokens."""
WARM_UP_TOKENS = 16
"""Output of the requests that go first and are not measured: an engine's first steps are slow."""
FIRST_TOKEN_ID = 16
"""Lower ids are left out of prompts: they are often special tokens."""


@dataclass(frozen=True)
class Setting:
    """One closed loop.

    Attributes:
        batch: requests in flight.
        prompt_tokens, output_tokens: of every request (the first of a client is shorter).
        rounds: requests that the first client to be through has finished after its first.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    rounds: int = 2

    def first_output(self, client: int) -> int:
        """Output of the first request of client 0..batch-1: evenly spread up to the full length."""
        return max(2, self.output_tokens * (client + 1) // self.batch)

    def __str__(self) -> str:
        return f"batch {self.batch}, prompt {self.prompt_tokens}"


@dataclass(frozen=True)
class Lap:
    """What one setting showed.

    Attributes:
        tpot_s: (n,) mean time per output token of requests of full length while all clients were busy.
        window: what the server counted.
        waiting: requests that waited for a seat at the end of that time.
        begin, end: bytes of the step log before and after it; equal without one.
    """

    setting: Setting
    tpot_s: NDArray[np.float64]
    window: Window
    waiting: int
    begin: int
    end: int


@dataclass
class _Progress:
    """What the clients of a setting share.

    Attributes:
        stopped: no more requests are sent, as the first client is through.
        waiting: requests without a seat then.
        tpot_s: of the requests of full length that ended before.
    """

    setting: Setting
    stopped: bool = False
    waiting: int = 0
    tpot_s: list[float] = field(default_factory=list)


class Driver:
    """Runs settings against a server.

    Args:
        vocab: token ids below it are prompts.
        log_size: bytes of the step log so far.
        limit_s: time for all settings together.
    """

    def __init__(
        self, server: Server, info: ServerInfo, vocab: int, log_size: Callable[[], int], limit_s: float
    ) -> None:
        self._server, self._info, self._log_size = server, info, log_size
        self._end = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._ids = stream(0, "prompts of a sweep")
        self._vocab = vocab

    @property
    def left_s(self) -> float:
        """Time left."""
        return self._end - time.monotonic()

    def warm_up(self, batch: int, prompt_tokens: int) -> None:
        """Serve ``batch`` short requests that are not measured. Raises InputError as :meth:`laps`."""
        self._run(Setting(batch, prompt_tokens, WARM_UP_TOKENS, rounds=1))

    def laps(self, settings: list[Setting], tell: Callable[[str], None]) -> Iterator[Lap]:
        """Run the settings in their order until the time is used up; the rest is left out.

        A setting is begun only when the time left holds twice what the one before it took.

        Raises:
            InputError: the server refuses, breaks off, or does not answer in the time.
        """
        took_s = 0.0
        for number, setting in enumerate(settings, start=1):
            if self.left_s < 2 * took_s:
                return
            tell(f"{setting} ({number} of {len(settings)}), {self.left_s:.0f} s left")
            began = time.monotonic()
            yield self._lap(setting)
            took_s = time.monotonic() - began

    def _lap(self, setting: Setting) -> Lap:
        begin, before = self._log_size(), self._server.metrics(self._info.engine)
        progress = self._run(setting)
        window = Window(before, self._server.metrics(self._info.engine))
        return Lap(setting, np.array(progress.tpot_s), window, progress.waiting, begin, self._log_size())

    def _run(self, setting: Setting) -> _Progress:
        progress = _Progress(setting)
        try:
            asyncio.run(self._drive(progress))
        except TimeoutError:
            raise InputError(
                "--limit-s",
                f"{self._limit_s:g}",
                f"is too short for {setting}",
                "allow more, or fewer batches",
            ) from None
        except httpx.HTTPError as error:
            raise unreachable(self._server.url, error) from None
        return progress

    async def _drive(self, progress: _Progress) -> None:
        left_s = max(self.left_s, 1.0)
        options = client_options(self._server.url, self._server.api_key, answer_s=left_s)
        limits = httpx.Limits(max_connections=None)
        async with (
            asyncio.timeout(left_s),
            httpx.AsyncClient(base_url=self._server.url, limits=limits, **options) as client,
        ):
            await asyncio.gather(*(self._serve(client, progress, n) for n in range(progress.setting.batch)))

    async def _serve(self, client: httpx.AsyncClient, progress: _Progress, number: int) -> None:
        """One client: requests one after another until the first client is through."""
        setting = progress.setting
        await self._ask(client, setting.prompt_tokens, setting.first_output(number))
        for _ in range(setting.rounds):
            if progress.stopped:
                return
            seconds = await self._ask(client, setting.prompt_tokens, setting.output_tokens)
            if not progress.stopped:
                progress.tpot_s.append(seconds / (setting.output_tokens - 1))
        if not progress.stopped:
            progress.stopped = True
            now = read_metrics((await client.get("/metrics")).text, self._info.engine)
            progress.waiting = round(now.total("waiting")) if now.has("waiting") else 0

    async def _ask(self, client: httpx.AsyncClient, prompt_tokens: int, output_tokens: int) -> float:
        """Send one request; seconds from its first token to its last."""
        body = {
            "model": self._info.model,
            "prompt": self._ids.integers(FIRST_TOKEN_ID, self._vocab, prompt_tokens).tolist(),
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        first = last = None
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != httpx.codes.OK:
                text = (await reply.aread()).decode(errors="replace")
                raise InputError(
                    "--url",
                    self._server.url + "/v1/completions",
                    f"answers {reply.status_code}: {' '.join(text.split())[:200]}",
                    "look at the server's log",
                )
            async for data in reply.aiter_raw():
                if CHUNK in data:
                    last = time.monotonic()
                    first = first or last
        if first is None or last is None:
            raise InputError("--url", self._server.url, "streams no tokens", "is it vLLM or SGLang?")
        return last - first
