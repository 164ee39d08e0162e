"""N-gram (prompt lookup) drafting replayed over token ids: exact greedy acceptance without a GPU.

vLLM's rule (``vllm/v1/spec_decode/ngram_proposer.py``): of the n-grams that end the text, take the longest
(``prompt_lookup_max`` down to ``prompt_lookup_min``) that occurs earlier, at its earliest occurrence, and
propose the K tokens that follow it there, or as many as the text holds.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.trace import MAX_K
from kplan.errors import InputError


def replay_ngram(
    prompt: NDArray[np.int32],
    generated: NDArray[np.int32],
    *,
    lookup_min: int,
    lookup_max: int,
    k: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Replay the proposer at every output position of one request.

    Args:
        prompt: (P,) token ids.
        generated: (L,) token ids, L >= 1.
        lookup_min: shortest n-gram that counts as a match, >= 1.
        lookup_max: longest n-gram looked for, >= lookup_min.
        k: drafts asked for, 1..254.

    Returns:
        acc: (L,) uint8 tokens that a step at each position emits, bonus included, never past the output.
        drafted: (L,) uint8 drafts on offer (0: no match). Position 0 is the prefill: acc 1, drafted 0.

    Raises:
        InputError: lookup bounds or K out of range, or nothing generated.
    """
    check_ngram(lookup_min, lookup_max, k)
    if len(generated) == 0:
        raise InputError("generated tokens", 0, "at least 1 is needed", "drop the request")
    text = np.concatenate([np.asarray(prompt, np.int32), np.asarray(generated, np.int32)])
    return _replay(text, *_occurrences(text), len(prompt), lookup_min, lookup_max, k)


MOST_TOKENS = 10_000_000
"""No match is longer than the longest request."""


def check_ngram(lookup_min: int, lookup_max: int, k: int) -> None:
    """Refuse lookup bounds or a K that are out of range."""
    if not 1 <= lookup_min <= lookup_max <= MOST_TOKENS:
        bound = f"1 <= min <= max <= {MOST_TOKENS} is needed"
        raise InputError("n-gram lookup", f"{lookup_min}..{lookup_max}", bound)
    if not 1 <= k <= MAX_K:
        raise InputError("K", k, f"1..{MAX_K} is accepted")


def _occurrences(text: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) where each token of (n,) ``text`` stands first, and (n,) where it stands next, n: nowhere."""
    order = np.argsort(text, kind="stable")
    begins = np.append(True, text[order[1:]] != text[order[:-1]])
    first, after = np.empty_like(order), np.full_like(order, len(text))
    first[order] = order[begins][np.cumsum(begins) - 1]
    after[order[:-1][~begins[1:]]] = order[1:][~begins[1:]]
    return first, after


@njit(cache=True, nogil=True)
def _replay(
    text: NDArray[np.int32],
    first: NDArray[np.int64],
    after: NDArray[np.int64],
    prompt_len: int,
    lookup_min: int,
    lookup_max: int,
    k: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    total = len(text)
    outputs = total - prompt_len
    acc = np.ones(outputs, np.uint8)
    drafted = np.zeros(outputs, np.uint8)
    for i in range(1, outputs):
        known = prompt_len + i
        follow = _match(text, first, after, known, lookup_min, lookup_max)
        if follow < 0:
            continue
        offer = min(k, known - follow)
        hits = 0
        # Emission stops at the end of the output, whatever the draft still holds.
        while hits < offer and known + hits < total and text[follow + hits] == text[known + hits]:
            hits += 1
        drafted[i] = offer
        acc[i] = min(hits + 1, total - known)
    return acc, drafted


@njit(cache=True)
def _match(
    text: NDArray[np.int32],
    first: NDArray[np.int64],
    after: NDArray[np.int64],
    known: int,
    lookup_min: int,
    lookup_max: int,
) -> int:
    """Where the draft starts: after the earliest occurrence of the longest match; -1 if there is none."""
    best, follow = lookup_min - 1, -1
    at = first[known - 1]
    while at < known - 1:
        n = 1
        while n < lookup_max and n <= at and text[at - n] == text[known - 1 - n]:
            n += 1
        if n > best:
            best, follow = n, at + 1
            if n == lookup_max:
                break
        at = after[at]
    return follow
