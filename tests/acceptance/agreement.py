"""Whether a replay of n-gram lookup drafts and accepts what a server did, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.ngram import replay_ngram
from kplan.acceptance.replay import NgramRule

Ids = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True)
class Served:
    """What a server told of one request.

    Attributes:
        prompt, output: token ids.
        accepted, drafted: of each step that had a draft, in order.
        chunks: tokens of each streamed chunk, the prefill's first.
    """

    prompt: Ids
    output: Ids
    accepted: Sequence[int]
    drafted: Sequence[int]
    chunks: Sequence[int]


@dataclass(frozen=True)
class Agreement:
    """Steps of the replay beside those of the server.

    Attributes:
        steps: steps after the prefill, with a draft or without.
        with_draft: those that had one.
        cut: last steps of a request that accepted more than the output had room for: the server counts them
            before it cuts the output at its length or its end token, the replay after.
        merged: steps whose tokens came in one chunk with those of the step before (a reader that was late).
        different: what else differs, a line each.
    """

    steps: int
    with_draft: int
    cut: int
    merged: int
    different: tuple[str, ...]


def agreement(requests: Sequence[Served], rule: NgramRule) -> Agreement:
    """Replay every request by ``rule`` and compare each of its steps."""
    steps = with_draft = cut = merged = 0
    different: list[str] = []
    for number, served in enumerate(requests, start=1):
        emitted, drafted = walked(served.prompt, served.output, rule)
        steps += len(emitted)
        told = list(zip(served.accepted, served.drafted, strict=True))
        mine = [(e - 1, d) for e, d in zip(emitted, drafted, strict=True) if d]
        with_draft += len(told)
        ends, chunk_ends = np.cumsum([1, *emitted]).tolist(), np.cumsum(served.chunks).tolist()
        if set(chunk_ends) <= set(ends) and chunk_ends[-1] == ends[-1]:
            merged += len(ends) - len(chunk_ends)
        else:
            different.append(f"request {number}: chunks {list(served.chunks)}, replayed {[1, *emitted]}")
        if mine == told:
            continue
        longer = mine[:-1] == told[:-1] and mine[-1][1] == told[-1][1] and mine[-1][0] < told[-1][0]
        if longer and drafted[-1]:
            cut += 1
        else:
            different.append(f"request {number}: (accepted, drafted) {told}, replayed {mine}")
    return Agreement(steps, with_draft, cut, merged, tuple(different))


def walked(prompt: Ids, output: Ids, rule: NgramRule) -> tuple[list[int], list[int]]:
    """Tokens emitted and drafted by each step after the prefill, in order."""
    acc, offered = replay_ngram(
        np.asarray(prompt, np.int32),
        np.asarray(output, np.int32),
        lookup_min=rule.prompt_lookup_min,
        lookup_max=rule.prompt_lookup_max,
        k=rule.k,
    )
    emitted, drafted, position = [], [], 1
    while position < len(acc):
        emitted.append(int(acc[position]))
        drafted.append(int(offered[position]))
        position += emitted[-1]
    return emitted, drafted
