"""What the exactly known model pair must emit and accept, worked out without the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A target and a draft model by their greedy successors (see in_engine/make_pair.py).

    Attributes:
        folder: holds the folders ``target`` and ``draft`` that an engine loads.
        target: token -> the target's next token.
        draft: token -> the draft's next token.
        cycle: the normal tokens in the order that the target emits them.
    """

    folder: Path
    target: tuple[int, ...]
    draft: tuple[int, ...]
    cycle: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> Pair:
        """Read ``folder/pair.json``."""
        maps = json.loads((folder / "pair.json").read_text())
        target = tuple(maps["target"])
        first = len(target) - 1
        cycle, token = [first], target[first]
        while token != first:
            cycle.append(token)
            token = target[token]
        return cls(folder, target, tuple(maps["draft"]), tuple(cycle))

    @property
    def alpha(self) -> float:
        """Share of the cycle's tokens after which the draft is right."""
        return sum(self.target[t] == self.draft[t] for t in self.cycle) / len(self.cycle)


@dataclass(frozen=True)
class Walk:
    """One request decoded greedily: its tokens, how many drafts were verified, how many tokens they gave."""

    tokens: tuple[int, ...]
    drafts: int
    accepted: int


def walk(pair: Pair, last_prompt_token: int, output_tokens: int, k: int) -> Walk:
    """Decode with ``k`` drafts verified in every step; the prefill emits the first token.

    A step's drafts are accepted up to the first wrong one, also when the output ends inside them.
    """
    tokens = [pair.target[last_prompt_token]]
    drafts = accepted = 0
    while len(tokens) < output_tokens:
        good = 0
        token = tokens[-1]
        while good < k and pair.draft[token] == pair.target[token]:
            token = pair.target[token]
            good += 1
        drafts, accepted = drafts + 1, accepted + good
        for _ in range(good + 1):
            tokens.append(pair.target[tokens[-1]])
    return Walk(tuple(tokens[:output_tokens]), drafts, accepted)


def geometric_mean_accepted(alpha: float, k: int) -> float:
    """Mean accepted tokens of a draft of ``k``, each right with probability ``alpha`` independently."""
    return sum(alpha**i for i in range(1, k + 1))
