"""Load a running engine with closed loops of fixed size, one after another, so that its steps can be timed.

In a setting, ``batch`` clients keep one request each in flight. Their first requests are cut to staggered
lengths, so that prompts arrive one by one among decodes, as in serving. Prompts are random token ids, which
no prefix cache holds; outputs have fixed lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.live.dialect import Sampling, dialect_of
from kplan.live.generate import Answer, Closed, Limits, drive
from kplan.live.metrics import Window
from kplan.live.prompts import Prompt
from kplan.live.server import Server, ServerInfo
from kplan.rng import stream
from kplan.telling import Tell

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
        rounds: requests per client after its first.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    rounds: int = 2

    def outputs(self) -> list[int]:
        """Output lengths in the order of the requests; those of the first are evenly spread."""
        first = [max(2, self.output_tokens * n // self.batch) for n in range(1, self.batch + 1)]
        return first + [self.output_tokens] * (self.rounds * self.batch)

    def __str__(self) -> str:
        return f"batch {self.batch}, prompt {self.prompt_tokens}"


@dataclass(frozen=True)
class Lap:
    """What one setting showed.

    Attributes:
        tpot_s: (n,) mean time per output token of the requests of full length that were served while all
            clients were busy.
        window: what the server counted.
        waiting: most requests that were seen to wait for a seat.
        begin, end: bytes of the step log before and after it; equal without one.
    """

    setting: Setting
    tpot_s: NDArray[np.float64]
    window: Window
    waiting: int
    begin: int
    end: int


@dataclass
class _Answers:
    """Collects the answers of a setting, and looks how many requests wait when half of them are there.

    It is ``cut`` when the time was over before the last request was sent.
    """

    setting: Setting
    look: Callable[[], int]
    waiting: int = 0
    cut: bool = False
    taken: list[Answer] = field(default_factory=list)

    def take(self, answer: Answer) -> None:
        """One more."""
        self.taken.append(answer)
        if len(self.taken) == len(self.setting.outputs()) // 2:
            self.waiting = self.look()

    def tpot_s(self) -> NDArray[np.float64]:
        """See :class:`Lap`. All clients are busy from the last first token of their first requests to the
        moment at which the last request is sent."""
        sent = sorted((one.sent_s, one.sent_s + one.chunk_s[0]) for one in self.taken)
        begin = max(first for _, first in sent[: self.setting.batch])
        end = sent[-1][0]
        inside = [
            one
            for one in self.taken
            if one.output_tokens == self.setting.output_tokens
            and one.sent_s + one.chunk_s[0] >= begin
            and (one.sent_s + one.chunk_s[-1] <= end or self.setting.batch == 1)
        ]
        return np.array([(one.chunk_s[-1] - one.chunk_s[0]) / (one.output_tokens - 1) for one in inside])


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
        self._dialect = dialect_of(info.engine, info.model)
        self._end = time.monotonic() + limit_s
        self._ids, self._vocab = stream(0, "prompts of a sweep"), vocab

    @property
    def left_s(self) -> float:
        """Time left."""
        return self._end - time.monotonic()

    def warm_up(self, setting: Setting) -> None:
        """Serve the setting with short outputs, unmeasured. Raises InputError as :meth:`laps`."""
        self._run(replace(setting, output_tokens=WARM_UP_TOKENS, rounds=1))

    def laps(self, settings: Sequence[Setting], tell: Tell) -> Iterator[Lap]:
        """Run the settings in their order until the time is used up; the rest is left out.

        A setting is begun only when the time left holds twice what the longest one before it took.

        Raises:
            InputError: the server refuses, breaks off, or is silent for too long.
        """
        longest_s = 0.0
        for number, setting in enumerate(settings):
            if self.left_s <= 2 * longest_s:
                return
            tell(f"{setting}, {self.left_s:.0f} s to the time limit", number, len(settings))
            began = time.monotonic()
            lap = self._lap(setting)
            if lap is None:
                return
            yield lap
            longest_s = max(longest_s, time.monotonic() - began)

    def _lap(self, setting: Setting) -> Lap | None:
        """The setting; None when it was cut."""
        begin, before = self._log_size(), self._server.metrics(self._info.engine)
        answers = self._run(setting)
        if answers.cut:
            return None
        window = Window(before, self._server.metrics(self._info.engine))
        return Lap(setting, answers.tpot_s(), window, answers.waiting, begin, self._log_size())

    def _run(self, setting: Setting) -> _Answers:
        answers = _Answers(setting, self._waiting)
        outputs = setting.outputs()
        drawn = self._ids.integers(FIRST_TOKEN_ID, self._vocab, (len(outputs), setting.prompt_tokens))
        prompts = [
            Prompt(index, token_ids=tuple(ids), max_tokens=tokens)
            for index, (ids, tokens) in enumerate(zip(drawn.tolist(), outputs, strict=True))
        ]
        done = drive(
            self._server.url,
            self._dialect,
            prompts,
            Sampling(setting.output_tokens, ignore_eos=True),
            Closed(setting.batch),
            answers.take,
            limits=Limits(run_s=max(self.left_s, 0.0)),
            api_key=self._server.api_key,
        )
        if done.refused:
            raise InputError(
                "--url", self._server.url, f"refuses requests of {setting} ({done.refused[0][1]})",
                "ask for shorter prompts or outputs",
            )  # fmt: skip
        answers.cut = done.out_of_time
        return answers

    def _waiting(self) -> int:
        now = self._server.metrics(self._info.engine)
        return round(now.total("waiting")) if now.has("waiting") else 0
