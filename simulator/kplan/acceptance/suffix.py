"""Suffix decoding replayed over token ids: exact greedy acceptance without a GPU.

The rule of vLLM's proposer (``vllm/v1/spec_decode/suffix_decoding.py``, 0.32.0) and of the trees that it
calls (Arctic Inference 0.1.1, ``SuffixTree::speculate``). Two trees count strings of at most ``tree_depth``
tokens: one holds the request (prompt and output so far), one every earlier output and this one. For each
length m of the text's end that occurs, follow the most frequent continuation for at most ``spec_factor * m``
tokens, while the product of frequencies is at least ``min_probability``. The draft with the highest sum of
these products wins; of equal ones the longer match, and the request's own tree before the global one.

A server runs requests side by side, so its global tree also holds parts of outputs that are under way; here
each request sees all outputs before it, in the order given, as far as the cache still holds them: the oldest
goes when one more begins than ``max_cached_requests`` (``SuffixDecodingCache`` of Arctic Inference 0.1.1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.suffix_order import SuffixTree
from kplan.acceptance.suffix_tree import END, append, find, new_tree, remove, restart, with_room
from kplan.acceptance.trace import MAX_K
from kplan.errors import InputError
from kplan.jit import bare

_CHUNK_TOKENS = 256


@dataclass(frozen=True)
class SuffixRule:
    """Settings of suffix decoding; the defaults are vLLM's.

    Attributes:
        k: drafts at most, 1..254; vLLM takes the tree depth when it is not told.
        tree_depth: tokens of a match and its draft together, >= 2 (with 1 nothing is ever drafted).
        spec_factor: drafts per matched token, >= 0.
        min_probability: of a draft by the counts, 0..1.
        max_cached_requests: outputs in the global tree, that of the running request included; 0: there is no
            such tree.
    """

    k: int = 24
    tree_depth: int = 24
    spec_factor: float = 1.0
    min_probability: float = 0.1
    max_cached_requests: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise InputError("K", self.k, f"1..{MAX_K} is accepted")
        if not 2 <= self.tree_depth <= 1024:
            raise InputError("tree depth", self.tree_depth, "2..1024 is accepted")
        if not 0 <= self.spec_factor <= MAX_K:
            raise InputError("spec factor", self.spec_factor, f"0..{MAX_K} is accepted")
        if not 0 <= self.min_probability <= 1:
            raise InputError("min probability", self.min_probability, "0..1 is accepted")
        if self.max_cached_requests < 0:
            raise InputError(
                "max cached requests", self.max_cached_requests, "at least 0 is needed", "0 caches no output"
            )


class SuffixReplay:
    """Replays requests in their order; the outputs that the cache holds are the global tree of the next."""

    def __init__(self, rule: SuffixRule) -> None:
        self._rule = rule
        self._global = new_tree(rule.tree_depth)
        self._store = np.empty(0, np.int32)
        self._stored = 0
        self._cached: deque[slice] = deque()

    def replay(
        self, prompt: NDArray[np.int32], generated: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Replay the proposer at every output position of the next request.

        Args:
            prompt: (P,) token ids, >= 0.
            generated: (L,) token ids, L >= 1.

        Returns:
            acc: (L,) uint8 tokens that a step at each position emits, bonus included, never past the output.
            drafted: (L,) uint8 drafts on offer (0: none). Position 0 is the prefill: acc 1, drafted 0.

        Raises:
            InputError: nothing generated, or a negative id.
        """
        if len(generated) == 0:
            raise InputError("generated tokens", 0, "at least 1 is needed", "drop the request")
        text = np.concatenate([np.asarray(prompt, np.int32), np.asarray(generated, np.int32)])
        if text.min() < 0:
            raise InputError("token id", int(text.min()), "at least 0 is needed")
        rule, outputs = self._rule, len(generated)
        acc, drafted = np.ones(outputs, np.uint8), np.zeros(outputs, np.uint8)
        cached = rule.max_cached_requests > 0
        base = self._keep(text[len(prompt) :]) if cached else 0
        own = new_tree(rule.tree_depth)
        for start in range(0, len(text), _CHUNK_TOKENS):
            stop = min(start + _CHUNK_TOKENS, len(text))
            own = with_room(own, stop - start)
            if cached:
                self._global = with_room(self._global, stop - start)
            _replay(
                own, self._global, cached, text, self._store, base, len(prompt), start, stop,
                rule.k, np.float32(rule.spec_factor), np.float32(rule.min_probability), acc, drafted,
            )  # fmt: skip
        return acc, drafted

    def _keep(self, generated: NDArray[np.int32]) -> int:
        """Put the output behind the earlier ones and return where it starts; the oldest may have to go."""
        if len(self._cached) == self._rule.max_cached_requests:
            remove(self._global, self._store[self._cached.popleft()])
        base, end = self._stored, self._stored + len(generated) + 1
        if end > len(self._store):
            longer = np.empty(max(end, 3 * len(self._store) // 2), np.int32)
            longer[:base] = self._store[:base]
            self._store = longer
        self._store[base : end - 1] = generated
        self._store[end - 1] = END
        self._stored = end
        self._cached.append(slice(base, end - 1))
        restart(self._global)
        return base


@bare
def _replay(
    own: SuffixTree,
    earlier: SuffixTree,
    use_earlier: bool,
    text: NDArray[np.int32],
    store: NDArray[np.int32],
    base: int,
    prompt_len: int,
    start: int,
    stop: int,
    k: int,
    factor: np.float32,
    least: np.float32,
    acc: NDArray[np.uint8],
    drafted: NDArray[np.uint8],
) -> None:
    """Append ``text[start:stop]`` token by token; after each output token draft what follows."""
    for at in range(start, stop):
        append(own, text, at)
        known, i = at + 1, at + 1 - prompt_len
        if i < 1:
            continue
        if use_earlier:
            append(earlier, store, base + i - 1)
        if known == len(text):
            return
        score, offer, hits = _best(own, text, known, text, known, known, k, factor, least)
        if use_earlier:
            limit = base + i
            rival, rival_offer, rival_hits = _best(earlier, store, limit, text, known, i, k, factor, least)
            if rival > score:
                offer, hits = rival_offer, rival_hits
        drafted[i] = offer
        acc[i] = min(hits + 1, len(text) - known)


@bare
def _best(
    tree: SuffixTree,
    store: NDArray[np.int32],
    limit: int,
    text: NDArray[np.int32],
    known: int,
    inside: int,
    k: int,
    factor: np.float32,
    least: np.float32,
) -> tuple[np.float32, int, int]:
    """The draft of one tree with the highest score, as :func:`_draft` returns it.

    The last ``inside`` of the ``known`` tokens are the end of the sequence that grows in the tree.
    """
    best, offer, hits = np.float32(0), 0, 0
    for m in range(1, min(len(tree.active) - 1, known)):
        node, behind = np.int64(-1), np.int64(-1)
        if m <= inside:
            node = np.int64(tree.active[m])
        else:
            node, behind = find(tree, store, limit, text, known - m, known)
        if node < 0:  # it occurs nowhere else, so nothing is known to follow it
            break
        most = min(k, int(m * factor + 1e-6))
        score, drafts, right = _draft(tree, store, limit, node, behind, m, most, least, text, known)
        if score >= best:
            best, offer, hits = score, drafts, right
    return best, offer, hits


@bare
def _draft(
    tree: SuffixTree,
    store: NDArray[np.int32],
    limit: int,
    node: np.int64,
    behind: np.int64,
    matched: int,
    most: int,
    least: np.float32,
    text: NDArray[np.int32],
    known: int,
) -> tuple[np.float32, int, int]:
    """Follow the most frequent continuation: score, drafts, and how many of the first ones are right."""
    most = min(most, len(tree.active) - 1 - matched)
    chance, score = np.float32(1), np.float32(0)
    drafts, hits = 0, 0
    while drafts < most:
        if behind < 0:
            behind = tree.ref[node]
        if behind >= 0:
            if behind >= limit or store[behind] == END:
                break
            token = store[behind]
            behind += 1
        else:
            child = tree.first[node]
            if child < 0:
                break
            chance *= np.float32(tree.counts[child]) / np.float32(tree.counts[node])
            if chance < least:
                break
            token, node = tree.token[child], np.int64(child)
        score += chance
        if hits == drafts and known + hits < len(text) and token == text[known + hits]:
            hits += 1
        drafts += 1
    return score, drafts, hits
