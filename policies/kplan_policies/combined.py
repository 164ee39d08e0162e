"""Policies over several proposers: which one drafts for each request, and how deep."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from kplan.policy import F64, I64, PolicyInfo, StepOutcome, StepView
from kplan.space import FloatRange, IntRange
from kplan_policies._text import checked_float, checked_int, checked_k, policy_text

WHY_NOT = "no released engine switches proposers per step"


class CombinedOracle:
    """Each request drafts what will be accepted, from the proposer that gives most at the fewest seconds.

    A lookup takes no passes, so the model drafter drafts only for those that get more from it. Its passes are
    as many as its deepest request asks for: they are cut at the depth with the most tokens per second, as
    ``oracle`` does, and who gets no more at that depth than was looked up takes the lookup's.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="the better of several proposers for every request, knowing what will be accepted",
        source="combined oracle of SpecDecode-Bench (arXiv:2601.11580 Fig. 12); the cut in depth is kplan's",
        why_not="it looks at the future, which no engine can",
        needs_future=True,
        combines=True,
    )
    text = "combined-oracle"

    def choose_k(self, step: StepView) -> tuple[I64, I64]:
        """(B,) proposers and (B,) K.

        Raises:
            ValueError: the engine did not give ``future_by_proposer``.
        """
        if step.future_by_proposer is None:
            raise ValueError("combined-oracle needs step.future_by_proposer (info.needs_future asks for it)")
        model = step.lookups.index(False)
        best_lookup, looked = _longest_lookup(step.future_by_proposer, model)
        drafted = step.future_by_proposer[model]
        # who drafts at a cut d: (max_k + 1, B), those whose lookup gives less
        depths = np.arange(step.max_k + 1)
        reached = np.minimum(drafted, depths[:, None])
        drafts = reached > looked
        tokens = step.batch + np.maximum(reached, looked).sum(axis=1)
        seconds = step.cost.seconds_of_mixes(tokens, depths, np.count_nonzero(drafts, axis=1))
        cut = int(np.argmax(tokens / seconds))
        return np.where(drafts[cut], model, best_lookup), np.where(drafts[cut], reached[cut], looked)


class MatchElse:
    """A lookup drafts what it matched where that is at least ``n`` tokens, else the model drafter ``k``.

    Args:
        n: tokens of a match that the lookup must offer.
        k: drafts of the model drafter.

    Raises:
        ValueError: n below 1, or k outside 0..254.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="looks up where at least n tokens match, drafts k with the model drafter elsewhere",
        source="kplan; the rule that users ask of engines that hold both",
        why_not=WHY_NOT,
        combines=True,
    )

    def __init__(self, n: Annotated[int, IntRange(1, 8)] = 3, k: Annotated[int, IntRange(0, 7)] = 3) -> None:
        self.n, self.k = checked_int("n", n, 1), checked_k(k)

    @property
    def text(self) -> str:
        """``match-else``, with the values that are not the default's."""
        return policy_text("match-else", self)

    @property
    def max_k(self) -> int:
        """The largest K that it names itself."""
        return self.k

    def choose_k(self, step: StepView) -> tuple[I64, I64]:
        """(B,) proposers and (B,) K."""
        model = step.lookups.index(False)
        best_lookup, looked = _longest_lookup(step.offered, model)
        matched = looked >= self.n
        return np.where(matched, best_lookup, model), np.where(matched, looked, self.k)


class BestExpected:
    """The proposers and the depths with the most expected tokens per second for the batch.

    Of each proposer it keeps the chance that the draft at each depth is accepted once those before it were:
    accepted over examined drafts at that depth, summed over the batch and decayed by ``1 - weight`` per step
    that examined any. Lookups and the model drafter are cut at depths of their own, for a looked-up token
    costs its verification alone and a drafted one a pass too: the lookups' cut has the best rate where nobody
    drafts with the model, and given that, the model drafter's depth has; the smaller one on a tie. A request
    takes the proposer whose drafts are worth more at these depths, the lookup on a tie.

    A proposer that is not used is not observed: after ``probe_every`` steps without it, a token of it is
    tried for every request that it offers one.

    Args:
        weight: weight of the newest observed step in the running counts.
        start_acceptance: the chances before anything was observed, worth one examined draft at each depth.
        probe_every: steps in a row without a proposer until it is tried again.

    Raises:
        ValueError: weight outside 0.001..1, start_acceptance outside 0..1, probe_every below 1.
    """

    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="the proposers and depths with the most expected tokens per second, by recent acceptance",
        source="kplan; SmartSpec's greedy rule (arXiv:2406.14066) over several proposers",
        why_not=WHY_NOT,
        combines=True,
    )

    def __init__(
        self,
        weight: Annotated[float, FloatRange(0.01, 0.5, log=True)] = 0.05,
        start_acceptance: Annotated[float, FloatRange(0.1, 0.95)] = 0.7,
        probe_every: Annotated[int, IntRange(8, 512)] = 64,
    ) -> None:
        self.weight = checked_float("weight", weight, 0.001, 1.0)
        self.start_acceptance = checked_float("start_acceptance", start_acceptance, 0.0, 1.0)
        self.probe_every = checked_int("probe_every", probe_every, 1)
        self._counts: F64 = np.zeros((2, 0, 0))  # (2, P, max_k) accepted and examined, by depth
        self._unseen: I64 = np.zeros(0, np.int64)  # (P,) steps since each was observed
        self._looked: I64 = np.zeros((0, 0), np.int64)  # by cut and cell (see _start), drafts ...
        self._found: I64 = np.zeros((0, 0), np.int64)  # ... and where ``expected`` says what they are worth

    @property
    def text(self) -> str:
        """``best-expected``, with the values that are not the default's."""
        return policy_text("best-expected", self)

    def _start(self, proposers: int, max_k: int) -> None:
        """Begin without observations. A cell is a proposer and a number of tokens that it matched."""
        self._counts = np.ones((2, proposers, max_k))
        self._counts[0] = self.start_acceptance
        self._unseen = np.zeros(proposers, np.int64)
        depths = np.arange(max_k + 1)
        self._looked = np.minimum(np.tile(depths, proposers), depths[:, None])
        self._found = self._looked + np.repeat(np.arange(proposers) * len(depths), len(depths))

    def choose_k(self, step: StepView) -> tuple[I64, I64]:
        """(B,) proposers and (B,) K."""
        proposers, depths, model = len(step.proposers), step.max_k + 1, step.lookups.index(False)
        if self._counts.shape[1:] != (proposers, step.max_k):
            self._start(proposers, step.max_k)
        worth = self.expected()
        lookup, matched = _longest_lookup(step.offered, model)
        # requests are alike that matched as much with the same lookup: sums are over cells, not requests
        cell, proposes = lookup * depths + matched, step.offered[model] > 0
        requests = np.bincount(cell[proposes], minlength=proposers * depths)
        found = worth.take(self._found)
        nobody = np.zeros(depths, np.int64)
        seconds = step.cost.seconds_of_mixes(step.batch + self._looked @ requests, nobody, nobody)
        cut = int(np.argmax((step.batch + found @ requests) / seconds))
        found, looked = found[cut], self._looked[cut]
        deep, gained = np.arange(depths), worth[model][:, None]
        drafts = gained > found
        verified = np.where(drafts, deep[:, None], looked) @ requests
        seconds = step.cost.seconds_of_mixes(step.batch + verified, deep, drafts @ requests)
        depth = int(np.argmax((step.batch + np.maximum(gained, found) @ requests) / seconds))
        by_model = drafts[depth][cell] & proposes
        proposer = np.where(by_model, model, lookup)
        return self._tried_again(step.offered, proposer, np.where(by_model, depth, looked[cell]))

    def _tried_again(self, offered: I64, proposer: I64, k: I64) -> tuple[I64, I64]:
        """The choice, with a token of the proposer unseen for longest where that is too long ago."""
        self._unseen += 1
        if self._unseen.max() <= self.probe_every:
            return proposer, k
        has = offered > 0
        tried = int(np.argmax(np.where(has.any(axis=1), self._unseen, 0)))
        if self._unseen[tried] <= self.probe_every:
            return proposer, k
        self._unseen[tried] = 0
        return np.where(has[tried], tried, proposer), np.where(has[tried], 1, k)

    def expected(self) -> F64:
        """(P, max_k + 1) drafts that each proposer's first K are expected to have accepted."""
        accepted, examined = self._counts
        worth = np.zeros((accepted.shape[0], accepted.shape[1] + 1))
        np.cumsum(np.cumprod(accepted / examined, axis=1), axis=1, out=worth[:, 1:])
        return worth

    def observe(self, outcome: StepOutcome) -> None:
        """Add the step's accepted and examined drafts, by proposer and depth, to the running counts."""
        _, proposers, max_k = self._counts.shape
        width = max_k + 1
        row = outcome.proposer * width
        # a draft at depth j is examined where j - 1 were accepted and j proposed
        examined = row + np.minimum(outcome.proposed, outcome.accepted + 1)
        cells = np.concatenate((row + outcome.accepted, examined + proposers * width))
        ends = np.bincount(cells, minlength=2 * proposers * width).reshape(2, proposers, width)
        reached = ends[:, :, ::-1].cumsum(axis=2)[:, :, -2::-1]
        kept = np.where(reached[1] > 0, 1 - self.weight, 1.0)
        self._counts = kept * self._counts + self.weight * reached
        self._unseen[reached[1].any(axis=1)] = 0


def _longest_lookup(drafts: I64, model: int) -> tuple[I64 | int, I64]:
    """The lookup with the most of ``drafts`` (P, B), the first on a tie, (B,) or the only one, and (B,) how
    many they are."""
    if len(drafts) == 2:
        return 1 - model, drafts[1 - model]
    lookups = np.where(np.arange(len(drafts)) == model, -1, drafts.T)
    best = lookups.argmax(axis=1)
    return best, drafts[best, np.arange(len(best))]
