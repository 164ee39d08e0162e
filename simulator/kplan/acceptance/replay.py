"""Lookup proposers replayed over whole request logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.columns import pack, request_names
from kplan.acceptance.loops import is_loopy
from kplan.acceptance.ngram import check_ngram, replay_ngram
from kplan.acceptance.suffix import SuffixReplay, SuffixRule
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

_Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class NgramRule:
    """Settings of n-gram lookup, under vLLM's names; the rule is :mod:`kplan.acceptance.ngram`'s.

    Attributes:
        k: drafts at most, 1..254.
        prompt_lookup_min: shortest n-gram that counts as a match, >= 1.
        prompt_lookup_max: longest n-gram looked for, >= prompt_lookup_min.
    """

    k: int = 20
    prompt_lookup_min: int = 3
    prompt_lookup_max: int = 7

    def __post_init__(self) -> None:
        check_ngram(self.prompt_lookup_min, self.prompt_lookup_max, self.k)


@dataclass(frozen=True)
class Requests:
    """Token ids of ``n`` requests in the order in which they were served.

    Attributes:
        request_id: (n,) names.
        prompts: n arrays of int32 ids, each of at least one.
        outputs: n arrays of int32 ids, each of at least one.
        source: where they come from.
        tokenizer: name of what made the ids, "" when unknown.
        notes: what was left out, with counts.
    """

    request_id: tuple[str, ...]
    prompts: tuple[NDArray[np.int32], ...]
    outputs: tuple[NDArray[np.int32], ...]
    source: str
    tokenizer: str = ""
    notes: tuple[str, ...] = ()


def replay_requests(
    requests: Requests,
    rule: NgramRule | SuffixRule,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> TraceSet:
    """Replay one proposer at every output position; ``recorded_k`` is the rule's K.

    Requests are independent and replayed side by side, except by suffix decoding that caches outputs, which
    needs their order and runs on one core. Neither changes the result.

    Args:
        workers: threads (the loops are compiled and hold no lock); None: as many as cores.
        progress: told how many output positions are done, of how many.

    Raises:
        InputError: no request, or ``workers`` below 1.
    """
    if not requests.outputs:
        raise InputError("requests", 0, "at least 1 is needed")
    if workers is not None and workers < 1:
        raise InputError("workers", workers, "at least 1 is needed")
    total, done = sum(map(len, requests.outputs)), 0
    acc: list[NDArray[np.uint8]] = []
    drafted: list[NDArray[np.uint8]] = []
    for emitted, offered in _each(requests, rule, workers or os.cpu_count() or 1):
        acc.append(emitted)
        drafted.append(offered)
        done += len(emitted)
        progress(done, total)
    loopy = np.array([is_loopy(output) for output in requests.outputs], np.bool_)
    notes = [*requests.notes]
    if loopy.any():
        notes.append(f"{int(loopy.sum())} rows degenerate into repetition (loopy)")
    name = "ngram" if isinstance(rule, NgramRule) else "suffix"
    return TraceSet(
        request_id=request_names(requests.request_id, requests.source),
        prompt_len=np.array([len(prompt) for prompt in requests.prompts], np.int32),
        proposers={name: pack(acc, drafted, np.ones(len(acc), np.bool_), rule.k)},
        provenance=Provenance(Kind.MEASURED, requests.source, f"replayed over token ids: {rule}"),
        tokenizer=requests.tokenizer,
        notes=(*notes, *_caveats(requests, rule)),
        loopy=loopy,
    )


def _each(requests: Requests, rule: NgramRule | SuffixRule, workers: int) -> Iterator[_Arrays]:
    """Acceptance and drafts of every request, in their order."""
    pairs = zip(requests.prompts, requests.outputs, strict=True)
    if isinstance(rule, SuffixRule) and rule.max_cached_requests:
        replay = SuffixReplay(rule)
        for prompt, output in pairs:
            yield replay.replay(prompt, output)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        yield from pool.map(lambda pair: _alone(rule, *pair), pairs)
    finally:
        pool.shutdown(cancel_futures=True)


def _alone(rule: NgramRule | SuffixRule, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> _Arrays:
    if isinstance(rule, SuffixRule):
        return SuffixReplay(rule).replay(prompt, output)
    return replay_ngram(
        prompt, output, lookup_min=rule.prompt_lookup_min, lookup_max=rule.prompt_lookup_max, k=rule.k
    )


def _caveats(requests: Requests, rule: NgramRule | SuffixRule) -> list[str]:
    """What the replay of this rule does not know about the server."""
    if isinstance(rule, NgramRule):
        return []
    notes = [
        f"suffix: exact at K={rule.k}; with a smaller K a server may choose another match, as K cuts scores"
    ]
    if rule.max_cached_requests:
        known = "every output before it in the log"
        if len(requests.outputs) > rule.max_cached_requests:
            known = f"the last {rule.max_cached_requests - 1} outputs before it in the log"
        beside = "a server also knows parts of those that run beside it"
        notes.append(f"suffix: each request knows {known}; {beside}")
    return notes
