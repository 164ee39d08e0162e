"""kplan's own client in place of the engine's load generator, and the warm-up before either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kplan.errors import InputError
from kplan.live.bench_serve import Traffic
from kplan.live.dialect import Sampling, dialect_of
from kplan.live.generate import Answer, drive
from kplan.live.load import MOST_CONCURRENCY, Closed, Limits
from kplan.live.prompts import Prompt, random_prompts, tokenize
from kplan.live.server import Server, ServerInfo
from kplan.live.workload import F64, Demand

WARM_REQUESTS, WARM_TOKENS = 4, 16
"""Sent before anything is measured; the first request of a server is slow."""


@dataclass(frozen=True)
class Moments:
    """Requests at given moments.

    Attributes:
        at_s: (n,) seconds, not falling.
    """

    at_s: F64

    def clients(self) -> int:
        """Requests in flight at most."""
        return MOST_CONCURRENCY

    def starts(self) -> Iterator[float]:
        """Second at which each next request begins."""
        yield from self.at_s.tolist()


def warm_up(server: Server, info: ServerInfo, sent: Demand, limit_s: float, api_key: str | None) -> None:
    """A few short requests, together. Raises InputError when the server does not answer them."""
    first = replace(
        sent,
        prompt_len=sent.prompt_len[:WARM_REQUESTS],
        output_len=np.minimum(sent.output_len[:WARM_REQUESTS], WARM_TOKENS),
        arrival_s=None,
        concurrency=WARM_REQUESTS,
        prompts=None,  # those that are measured must not be cached
    )
    send(server, info, first, limit_s, api_key, seed=1)


def send(
    server: Server,
    info: ServerInfo,
    sent: Demand,
    limit_s: float,
    api_key: str | None,
    seed: int = 0,
    told: Callable[[int, int], None] = lambda *_: None,
) -> Traffic:
    """Send all requests by kplan's own client, greedily and to their full length.

    Args:
        seed: of random tokens, where no prompts are given.
        told: how many requests are answered, of how many.

    Raises:
        InputError: a request failed, was refused or broke off, or the time was over.
    """
    answers: dict[int, Answer] = {}
    prompts = _prompts(server, info, sent, seed)

    def take(answer: Answer) -> None:
        answers[answer.prompt.index] = answer
        told(len(answers), len(sent))

    pace = Moments(sent.arrival_s) if sent.arrival_s is not None else Closed(sent.concurrency or 1)
    driven = drive(
        server.url,
        dialect_of(info.engine, info.model),
        prompts,
        Sampling(max_tokens=1, ignore_eos=True),
        pace,
        take,
        limits=Limits(silence_s=limit_s, request_s=limit_s, run_s=limit_s, tries=1),
        api_key=api_key,
    )
    if driven.refused:
        index, said = driven.refused[0]
        raise InputError(
            "load", f"request {index + 1}", f"the server refused it: {said}", "plan for shorter requests"
        )
    if driven.out_of_time or len(answers) < len(sent):
        raise InputError(
            "--limit-s", f"{limit_s:.0f} s left for the load",
            f"{len(answers)} of {len(sent)} requests were done by then", "raise it, or send fewer --requests",
        )  # fmt: skip
    return _traffic([answers[index] for index in range(len(sent))])


def _prompts(server: Server, info: ServerInfo, sent: Demand, seed: int) -> list[Prompt]:
    if sent.prompts is None:
        return list(random_prompts(server, sent.prompt_len.tolist(), sent.output_len.tolist(), seed))
    asked = [
        replace(prompt, index=index, max_tokens=int(tokens))
        for index, (prompt, tokens) in enumerate(zip(sent.prompts, sent.output_len, strict=True))
    ]
    return tokenize(server, asked) if info.engine == "sglang" else asked


def _traffic(answers: list[Answer]) -> Traffic:
    start = np.array([one.sent_s for one in answers])
    first, last = (np.array([one.chunk_s[at] for one in answers]) for at in (0, -1))
    return Traffic(
        start_s=start - start.min(),
        ttft_s=first,
        decode_s=last - first,
        prompt_len=np.array([one.prompt_tokens for one in answers]),
        output_len=np.array([one.output_tokens for one in answers]),
        chunks=np.array([len(one.chunks) - 1 for one in answers]),
        duration_s=float((start + last).max() - start.min()),
        source="kplan's own client",
    )
