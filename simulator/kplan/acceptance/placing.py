"""Where the steps of a request stood: the order a server reports, put at output positions.

The prefill emits the first token, so the first decode step stands at position 1; a step that accepts a drafts
moves on by a + 1. Engines leave steps without a draft out of their lists, so a list alone places steps only
when no such step is missing; the sizes of streamed chunks (one a step) place them in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """Steps of one request at their places.

    Attributes:
        position: (s,) output tokens that existed, increasing, >= 1.
        accepted: (s,) drafts accepted.
        drafted: (s,) drafts verified, >= accepted; 0: a step without a draft.
        guessed: steps without a draft whose place among steps that accepted nothing is not known.
    """

    position: Ints
    accepted: Ints
    drafted: Ints
    guessed: int = 0


def place_in_order(accepted: Ints, drafted: Ints, output_len: int, *, may_skip: bool) -> Steps | None:
    """Steps one after another from position 1; None when they do not fill the output exactly.

    Args:
        accepted: (s,) of every step that verified drafts, in order; the last may run past the output.
        drafted: (s,) drafts of each.
        output_len: tokens of the output, the prefill's included.
        may_skip: steps without a draft may be missing. What the last step ran past the output could then
            hide some, so only a last step that emitted one token proves that there are none.
    """
    if not len(accepted):
        return Steps(accepted, accepted, drafted) if output_len == 1 else None
    starts = 1 + np.concatenate([[0], np.cumsum(accepted + 1)]).astype(np.int64)
    latest = starts[-2] + 1 if may_skip else starts[-1]
    return Steps(starts[:-1], accepted, drafted) if starts[-2] < output_len <= latest else None


def place_by_chunks(chunks: Ints, accepted: Ints, drafted: Ints, output_len: int) -> Steps | None:
    """Steps placed by the sizes of streamed chunks; None when the two do not fit each other.

    A chunk of one token is a step without a draft or one that accepted nothing. In a run of such chunks the
    counts of both are known and their order is not: the steps with a draft are put first.

    Args:
        chunks: (c,) tokens of each chunk, the prefill's first.
        accepted: (s,) of every step that verified drafts, in order; the last may be cut by the output's end.
        drafted: (s,) drafts of each.
        output_len: tokens of the output.
    """
    if chunks[0] != 1 or int(chunks.sum()) != output_len:
        return None
    steps = len(chunks) - 1
    step_accepted, step_drafted = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    used = 0
    for i, size in enumerate(chunks[1:].tolist()):
        left = len(accepted) - used
        cut = i == steps - 1 and left == 1 and size <= accepted[used] + 1
        if left and (cut or size == accepted[used] + 1):
            step_accepted[i], step_drafted[i] = accepted[used], drafted[used]
            used += 1
        elif size != 1:
            return None
    if used < len(accepted):
        return None
    position = np.concatenate([[1], 1 + np.cumsum(chunks[1:])])[:-1].astype(np.int64)
    return Steps(position, step_accepted, step_drafted, _guessed(step_accepted, step_drafted))


def _guessed(accepted: Ints, drafted: Ints) -> int:
    """Steps without a draft that share a run of one-token steps with steps that drafted in vain."""
    guessed, without, failed = 0, 0, 0
    for a, d in zip([*accepted.tolist(), 1], [*drafted.tolist(), 1], strict=True):
        if d == 0:
            without += 1
        elif a == 0:
            failed += 1
        else:
            guessed += without if failed else 0
            without = failed = 0
    return guessed
