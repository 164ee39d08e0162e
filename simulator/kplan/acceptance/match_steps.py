"""Move a lender until its walk shows what the steps of a server show: the moments and their errors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.adapt import depth_groups, sample_lengths, smooth_shifts, solve
from kplan.acceptance.by_length import match_lengths
from kplan.acceptance.fit import LENGTH_BINS
from kplan.acceptance.lent import Lender, Lent
from kplan.acceptance.statistics import Steps, recorded_k_at, shape_of, walk_steps
from kplan.acceptance.trace import ProposerTrace

Floats = NDArray[np.float64]

MIN_REACHED = 20
"""Drafts reached at a depth for its acceptance to be matched; deeper ones move with the deepest matched."""
_REQUESTS_OF_A_BIN = 40
_ROUNDS = 3
_STRETCH_LOG = 0.7
"""How far the logs of the two stretches usually lie from the lender's, for the ridge."""
_OFFER_LOG = 1.0
"""The same of a lookup's matches (log-odds) and of the chances of its offers."""
_Z95 = 1.96
_MAX_SHIFT = 3.0
_STEP = 0.1
_SEED = 20_260_109


@dataclass(frozen=True)
class Shown:
    """A recording of steps, each of them known.

    Attributes:
        trace: the recording.
        asked: (positions,) drafts asked for at each position.
        steps: its steps.
        known_k: the deepest draft verified.
    """

    trace: ProposerTrace
    asked: NDArray[np.uint8]
    steps: Steps
    known_k: int

    @classmethod
    def of(cls, trace: ProposerTrace) -> Shown:
        asked = recorded_k_at(trace)
        steps = walk_steps(trace, asked)
        return cls(trace, asked, steps, int(steps.verified.max()))

    @property
    def ks(self) -> list[int]:
        """The drafts that steps were asked for, increasing."""
        fixed = self.trace.drafted is not None
        return [self.trace.recorded_k] if fixed else np.unique(self.steps.offered).tolist()


def lent_to(shown: Shown, lender: Lender) -> tuple[Lent, float]:
    """How the lender is moved to show the recording, and the sum of squares that is left: of misses, in
    standard errors, and of the ridge.

    First to the moments, then its classes to the lengths of the outputs, then to the moments again.
    """
    edges = _length_edges(shown.trace)
    lent = Lent(
        shift=np.zeros(cells.DEPTHS),
        between=1.0,
        within=1.0,
        length_edges=edges,
        class_by_length=np.tile(lender.model.class_by_length.mean(axis=0), (len(edges) + 1, 1)),
        match=0.0,
        offer=np.zeros(cells.DEPTHS + 1),
    )
    lent, x, _ = _matched(shown, lender, lent, None)
    tilted = match_lengths(lender.moved(lent, shown.known_k), shown.trace, shown.asked)
    lent, _, left = _matched(shown, lender, replace(lent, class_by_length=tilted.class_by_length), x)
    return lent, left


def tokens_per_step(shown: Shown, lender: Lender, lent: Lent) -> float:
    """What the lender, moved so, emits per step with the drafts that were asked for."""
    made = lender.moved(lent, shown.known_k).generate(_SEED, sample_lengths(shown.trace.output_len))
    return walk_steps(made, shown.asked).acceptance_length


def sampling_error(shown: Shown, lender: Lender, lent: Lent) -> tuple[float, Lent, Lent]:
    """Half the 95% interval of tokens per step (requests as clusters), and the lender at either end of it."""
    steps = shown.steps
    tokens = np.bincount(steps.request, steps.tokens, steps.requests)
    taken = np.bincount(steps.request, minlength=steps.requests)
    residual = tokens - steps.acceptance_length * taken
    error = float(_Z95 * np.sqrt(np.sum(residual**2)) / taken.sum())
    low, high = (replace(lent, shift=lent.shift + by) for by in (-_STEP, _STEP))
    slope = (tokens_per_step(shown, lender, high) - tokens_per_step(shown, lender, low)) / (2 * _STEP)
    shift = min(error / slope, _MAX_SHIFT) if slope > 0 else _MAX_SHIFT
    return error, replace(lent, shift=lent.shift - shift), replace(lent, shift=lent.shift + shift)


def _matched(shown: Shown, lender: Lender, lent: Lent, start: Floats | None) -> tuple[Lent, Floats, float]:
    """Shifts by depth, both stretches and a lookup's offers at which the walk has the steps' moments; all of
    them as they were solved for, to start from again, and the sum of squares that is left."""
    _, reached = shown.steps.by_depth(shown.known_k)
    depths = (np.flatnonzero(reached >= MIN_REACHED) + 1).tolist()
    offers = 0 if lender.model.lookup is None else shown.known_k
    target, error = _moments(shown.steps, depths, offers)
    known = np.isfinite(target) & (error > 0)
    group, sample = depth_groups(depths), sample_lengths(shown.trace.output_len)
    n = len(depths)

    def moved(x: Floats) -> Lent:
        between, within = np.exp(x[n : n + 2])
        offer = np.zeros(cells.DEPTHS + 1)
        offer[1:offers] = x[n + 3 :]  # against those of as many drafts as were asked for, or more
        return replace(
            lent,
            shift=x[group],
            between=float(between),
            within=float(within),
            match=float(x[n + 2]) if offers else 0.0,
            offer=offer,
        )

    def reach(x: Floats) -> Floats:
        made = lender.moved(moved(x), shown.known_k).generate(_SEED, sample)
        found, _ = _moments(walk_steps(made, shown.asked), depths, offers)
        return np.nan_to_num(found[known])

    smooth = smooth_shifts(n)
    own = 1.0 / np.array([_STRETCH_LOG] * 2 + [_OFFER_LOG] * offers)
    ridge = np.zeros((len(smooth) + len(own), n + len(own)))
    ridge[: len(smooth), :n] = smooth
    ridge[len(smooth) :, n:] = np.diag(own)
    x, _, left = solve(reach, target[known], 1.0 / error[known], ridge, _ROUNDS, start)
    return moved(x), x, left


def _moments(steps: Steps, depths: list[int], offers: int) -> tuple[Floats, Floats]:
    """(D + 2 + offers,) acceptance by depth, SD between requests, lag-1 within them, and of a lookup the
    share of steps that had 1, 2, ... drafts at least among those that had one less; and standard errors."""
    accepted, reached = (counts[np.array(depths) - 1] for counts in steps.by_depth(max(depths)))
    had = np.array([np.count_nonzero(steps.offered >= o) for o in range(offers + 1)])
    shape = shape_of(steps, max(depths))
    shares = [_shares(accepted, reached), _shares(had[1:], had[:-1])]
    pairs = max(len(steps.tokens) - 2 * steps.requests, 1)
    sd_error = shape.request_sd / np.sqrt(2.0 * steps.requests)
    return (
        np.concatenate([shares[0][0], [shape.request_sd, shape.lag1_within], shares[1][0]]),
        np.concatenate([shares[0][1], [sd_error, 1.0 / np.sqrt(pairs)], shares[1][1]]),
    )


def _shares(yes: NDArray[np.int64], of: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Shares and their standard errors, which half a count on either side keeps from 0."""
    share = (yes + 0.5) / (of + 1.0)
    return yes / np.maximum(of, 1), np.sqrt(share * (1 - share) / np.maximum(of, 1))


def _length_edges(trace: ProposerTrace) -> Floats:
    """Quantiles that part the outputs into bins of enough requests each, LENGTH_BINS at most."""
    bins = int(np.clip(len(trace.output_len) // _REQUESTS_OF_A_BIN, 1, LENGTH_BINS))
    return np.unique(np.quantile(trace.output_len, np.arange(1, bins) / bins)).astype(np.float64)
