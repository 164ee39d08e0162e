"""The chances of each draft, and a trace moved to other ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace
from kplan.acceptance.adapt import expit, logit
from kplan.rng import stream

ROUNDS = 4
"""Corrections of the aim."""
_HALVINGS = 40
_WIDEST = 12.0


@dataclass(frozen=True)
class Chances:
    """What a server accepts.

    Attributes:
        hazard: (K,) chance of draft d, given that those before it were accepted (drafts of every length).
        offered: share of a request's steps that verified a draft.
    """

    hazard: NDArray[np.float64]
    offered: float

    @property
    def accepted_at(self) -> NDArray[np.float64]:
        """(K,) share of the drafts whose positions 1..d were all accepted."""
        return np.asarray(np.cumprod(self.hazard))

    def shifted(self, shift: float) -> Chances:
        """The log-odds of every draft moved alike."""
        return replace(self, hazard=expit(logit(self.hazard) + shift))

    def with_first(self, share: float) -> Chances:
        """Moved until the first draft is accepted with chance ``share``."""
        first = logit(np.array([share, self.hazard[0]]))
        return self.shifted(float(first[0] - first[1]))

    def with_length(self, tokens: float) -> Chances:
        """Moved until a draft of K brings ``tokens``, the bonus included; the nearest that can be had."""
        low, high = -_WIDEST, _WIDEST
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            short = 1.0 + self.shifted(middle).accepted_at.sum() < tokens
            low, high = (middle, high) if short else (low, middle)
        return self.shifted((low + high) / 2)

    @classmethod
    def mean(cls, several: Sequence[Chances]) -> Chances:
        """The mean over draws."""
        return cls(
            np.mean([one.hazard for one in several], axis=0), float(np.mean([one.offered for one in several]))
        )

    @classmethod
    def from_counts(cls, accepted_at: Sequence[float] | NDArray[np.float64], offered: float) -> Chances:
        """Of a server's shares by position (K,), none above the one before."""
        shares = np.array([1.0, *accepted_at])
        above = shares[:-1]
        hazard = np.divide(shares[1:], above, out=np.zeros(len(above)), where=above > 0)
        return cls(np.minimum(hazard, 1.0), offered)


def chances_of(trace: ProposerTrace, k: int) -> Chances:
    """Those along the walk with ``k`` drafts in every step.

    Steps so close to the output's end that the trace is cut there are left out: a server counts what it
    accepts beyond the end, a trace does not know it.
    """
    at = trace.offsets[:-1] + 1
    end = trace.offsets[1:]
    accepted = np.zeros(k, np.int64)
    drafts = steps = 0
    while len(at):
        whole = end - at > k
        right = trace.acc[at].astype(np.int64) - 1
        offer = np.full(len(at), k) if trace.drafted is None else np.minimum(trace.drafted[at], k)
        right = np.minimum(right, offer)
        drafting = whole & (offer > 0)
        accepted += np.bincount(right[drafting], minlength=k + 1)[:0:-1].cumsum()[::-1]
        drafts += int(drafting.sum())
        steps += int(whole.sum())
        at = at + right + 1
        going = at < end
        at, end = at[going], end[going]
    return Chances.from_counts(accepted / max(drafts, 1), drafts / max(steps, 1))


def reshaped(trace: ProposerTrace, wanted: Chances, number: int) -> ProposerTrace:
    """A trace that accepts what is ``wanted`` along its walk with K drafts.

    A draft that has become less likely is kept with the quotient of the chances; one that has become more
    likely is made right with what is missing to it. Requests and stretches that accept more than others
    still do. Positions are moved, and the walk visits them unevenly: the aim is corrected by what it reached.

    Args:
        wanted: (K,) chances.
        number: of the draw.
    """
    own = aim = chances_of(trace, len(wanted.hazard))
    moved = trace
    for round_ in range(ROUNDS):
        reached = chances_of(moved, len(wanted.hazard)) if round_ else own
        aim = Chances(
            expit(logit(aim.hazard) + logit(wanted.hazard) - logit(reached.hazard)),
            float(np.clip(aim.offered * wanted.offered / max(reached.offered, 1e-9), 0.0, 1.0)),
        )
        moved = _moved(trace, own, aim, stream(number, "measured acceptance"))
    return moved


def _moved(trace: ProposerTrace, own: Chances, other: Chances, rng: np.random.Generator) -> ProposerTrace:
    """One pass of :func:`reshaped`: what was accepted with chance ``own`` now is with ``other``."""
    before = trace.acc.astype(np.int64) - 1
    after = np.zeros(len(before), np.int64)
    alive = np.ones(len(before), np.bool_)
    for depth, want in enumerate(other.hazard):
        have = own.hazard[depth]
        draw = rng.random(len(before))
        kept = draw * have < want
        mended = draw * (1.0 - have) < want - have
        known = before >= depth  # those before it were right in the trace too
        right = np.where(known, np.where(before > depth, kept, mended), draw < want)
        alive &= right
        after += alive
    drafted = trace.drafted
    if drafted is not None:
        drafted = _offered(drafted, own.offered, other.offered, len(other.hazard), rng)
        after = np.minimum(after, drafted)
    acc = (after + 1).astype(np.uint8)
    acc[trace.offsets[:-1]] = 1  # the prefill's
    return replace(trace, acc=acc, drafted=drafted, recorded_k=max(trace.recorded_k, len(other.hazard)))


def _offered(
    drafted: NDArray[np.uint8], have: float, want: float, k: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """What a lookup offers, moved in the same way; offers that are added have ``k`` drafts."""
    draw = rng.random(len(drafted))
    kept = np.where(draw * have < want, drafted, 0)
    added = np.where(draw * (1.0 - have) < want - have, k, 0)
    return np.where(drafted > 0, kept, added).astype(np.uint8)
