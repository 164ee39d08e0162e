"""Requests driven against a server, at a concurrency or at a rate, their answers streamed and timed.

A request that was turned away (429, 503) or cut off is sent again a few times; what the server breaks on ends
the run in one line. What had been answered by then was handed on, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx

from kplan.errors import InputError
from kplan.live.apart import run_apart
from kplan.live.dialect import Dialect, Sampling, Stream
from kplan.live.events import events, said_by
from kplan.live.load import GRACE_S, Closed, Limits, Open, Pace
from kplan.live.prompts import Prompt
from kplan.live.server import DENIED, PAUSE_S, client_options, without_key
from kplan.live.told import StreamError

__all__ = ["Answer", "Closed", "Driven", "Limits", "Open", "drive"]

_USUAL = Limits()
_TURNED_AWAY = (429, 503)
_UNUSABLE = (400, 413, 422)
_MOST_SAID = 200
"""Letters of what a server says of a request that it does not serve."""


@dataclass(frozen=True)
class Answer:
    """One request as it was answered. Times in seconds.

    Attributes:
        prompt: what was asked.
        prompt_token_ids, token_ids: of prompt and output.
        chunks: (c,) tokens of each streamed chunk.
        chunk_s: (c,) arrival of each since the request was sent.
        sent_s: when it was sent, since the run began.
        finish_reason: ``length`` or ``stop``.
        prompt_tokens, output_tokens: by the engine's count.
        told: the engine's words: vLLM's id, usage, metrics; SGLang's meta_info.
    """

    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    chunks: tuple[int, ...]
    chunk_s: tuple[float, ...]
    sent_s: float
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    told: Mapping[str, Any]


@dataclass
class Driven:
    """What happened beside the answers.

    Attributes:
        answered: requests answered.
        refused: (index of the prompt, what the server said) of those it will not serve, as too long ones.
        broken: streams that had begun and broke off; what the server counted for them is not known.
        out_of_time: the time was over before every prompt was answered.
    """

    answered: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)
    broken: int = 0
    out_of_time: bool = False


def drive(
    url: str,
    dialect: Dialect,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    load: Pace,
    take: Callable[[Answer], None],
    *,
    limits: Limits = _USUAL,
    api_key: str | None = None,
) -> Driven:
    """Send every prompt once and hand each answer to ``take`` as it is complete.

    Args:
        url: base of the server.
        prompts: in the order they are sent.
        take: called in one thread (not this one), one answer at a time.

    Raises:
        InputError: the server cannot be reached, breaks (500, an error in a stream), is silent for too long,
            or turns a request away at every try.
        KeyboardInterrupt, SystemExit: requests in flight were given up.
    """
    run = _Run(url, dialect, sampling, limits, take, api_key)
    run_apart(lambda: run.all(prompts, load))
    return run.driven


class _AwayError(Exception):
    """The request may be sent again."""


class _Run:
    def __init__(
        self,
        url: str,
        dialect: Dialect,
        sampling: Sampling,
        limits: Limits,
        take: Callable[[Answer], None],
        api_key: str | None,
    ) -> None:
        self.url, self.dialect, self.sampling, self.limits, self.take = url, dialect, sampling, limits, take
        self.api_key = api_key
        self.driven = Driven()

    async def all(self, prompts: Sequence[Prompt], load: Pace) -> None:
        """Send every prompt."""
        options = client_options(self.url, self.api_key, self.limits.silence_s)
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        jobs = zip(prompts, load.starts(), strict=False)
        self.begin_s = time.perf_counter()
        end_s = None if self.limits.run_s is None else self.limits.run_s + GRACE_S
        try:
            async with (
                httpx.AsyncClient(base_url=self.url, limits=pool, **options) as client,
                asyncio.timeout(end_s),
                asyncio.TaskGroup() as clients,
            ):
                for _ in range(min(load.clients(), len(prompts))):
                    clients.create_task(self._client(client, jobs))
        except TimeoutError:
            self.driven.out_of_time = True
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _client(self, client: httpx.AsyncClient, jobs: Iterator[tuple[Prompt, float]]) -> None:
        for prompt, start_s in jobs:
            await asyncio.sleep(max(0.0, start_s - self._now_s()))
            if self.limits.run_s is not None and self._now_s() >= self.limits.run_s:
                self.driven.out_of_time = True
                return
            answer = await self._answer(client, prompt)
            if answer is not None:
                self.driven.answered += 1
                self.take(answer)

    def _now_s(self) -> float:
        return time.perf_counter() - self.begin_s

    async def _answer(self, client: httpx.AsyncClient, prompt: Prompt) -> Answer | None:
        pause_s = PAUSE_S
        for left in reversed(range(self.limits.tries)):
            try:
                return await self._ask(client, prompt)
            except _AwayError as why:
                if not left:
                    self._fail(prompt, f"{why}, at each of {self.limits.tries} tries", "is it up, and idle?")
                await asyncio.sleep(pause_s)
                pause_s *= 2
        return None

    async def _ask(self, client: httpx.AsyncClient, prompt: Prompt) -> Answer | None:
        """One try; None where the server will not serve this prompt. Raises _AwayError, InputError."""
        path, body = self.dialect.request(prompt, self.sampling)
        stream, sent_s = (
            Stream(prompt.max_tokens or self.sampling.max_tokens, prompt.token_ids),
            self._now_s(),
        )
        whole, quiet = False, asyncio.timeout(self.limits.silence_s)
        try:
            async with (
                asyncio.timeout(self.limits.request_s),
                quiet,
                client.stream("POST", path, json=body) as reply,
            ):
                if reply.status_code != httpx.codes.OK:
                    await self._not_ok(reply, prompt)
                    return None
                async for event in events(reply, self.api_key):
                    known = len(stream.token_ids)
                    self.dialect.feed(stream, event, self._now_s() - sent_s)
                    if len(stream.token_ids) > known:  # words without a token are no sign of life
                        quiet.reschedule(asyncio.get_running_loop().time() + self.limits.silence_s)
                prompt_tokens, output_tokens = self._complete(stream)
                whole = True
        except StreamError as why:
            self._fail(prompt, f"failed ({why})", "look at the server's log")
        except (httpx.ConnectTimeout, httpx.PoolTimeout):
            raise _AwayError("found no connection") from None
        except (httpx.TimeoutException, TimeoutError) as why:
            if quiet.expired() or isinstance(why, httpx.TimeoutException):
                self._fail(prompt, f"was silent for {self.limits.silence_s:g} s", "is the server stuck?")
            self._fail(prompt, f"was not answered in {self.limits.request_s:g} s", "ask for fewer tokens")
        except httpx.HTTPError as why:
            raise _AwayError(f"broke off ({str(why) or type(why).__name__})") from None
        finally:
            self.driven.broken += bool(stream.chunks) and not whole
        return Answer(
            prompt=prompt,
            prompt_token_ids=tuple(stream.prompt_token_ids or prompt.token_ids or ()),
            token_ids=tuple(stream.token_ids),
            chunks=tuple(stream.chunks),
            chunk_s=tuple(stream.chunk_s),
            sent_s=sent_s,
            finish_reason=stream.finish_reason,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            told=stream.told,
        )

    def _complete(self, stream: Stream) -> tuple[int, int]:
        """Tokens of prompt and output. Raises _AwayError for a stream that ended early, StreamError."""
        if not stream.finish_reason:
            raise _AwayError("broke off")
        if not stream.token_ids:
            raise StreamError("ended without a token")
        prompt_tokens, output_tokens = self.dialect.counts(stream)
        if output_tokens != len(stream.token_ids):
            raise StreamError(f"sent {len(stream.token_ids)} token ids and counted {output_tokens}")
        return prompt_tokens, output_tokens

    async def _not_ok(self, reply: httpx.Response, prompt: Prompt) -> None:
        """Note a prompt that the server refuses. Raises _AwayError, InputError for anything else."""
        status = reply.status_code
        said = without_key(f"{status} {await said_by(reply) or reply.reason_phrase}", self.api_key)[
            :_MOST_SAID
        ]
        if status in _TURNED_AWAY:
            raise _AwayError(f"was turned away ({said})")
        if status not in _UNUSABLE:
            fix = "give --api-key-env" if status in DENIED else "look at the server's log"
            self._fail(prompt, f"was answered {said}", fix)
        self.driven.refused.append((prompt.index, said))

    def _fail(self, prompt: Prompt, what: str, fix: str) -> NoReturn:
        said = f"the request of prompt {prompt.index + 1} {without_key(what, self.api_key)}"
        raise InputError("--url", self.url, said, fix)
