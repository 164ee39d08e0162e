"""Is the measured window steady, or does it still hold the warm-up?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.engine.state import BIN_BATCH_S, BIN_EMITTED, BIN_S

F64 = NDArray[np.float64]

BATCHED = 5
"""Observations per batch of MSER-5."""
BIAS, CHANCE = 0.05, 0.05
"""A window is not steady when leaving out what MSER-5 cuts moves a mean up by more than the share BIAS, plus
CHANCE / sqrt(series averaged): 20 s of one replica near saturation move by 5% to 10% with nothing amiss."""


@dataclass(frozen=True)
class Steadiness:
    """What MSER-5 says of a window.

    Attributes:
        cut: share of the window's slices that would have to go, 0 when it is steady as it stands.
        shift: by what share the mean (of the batch, or of the tokens per second, the larger) moves up then.
        bound: the largest shift of a steady window.
    """

    cut: float
    shift: float
    bound: float

    @property
    def steady(self) -> bool:
        """What is left of the warm-up does not move the means by more than the bound."""
        return self.shift <= self.bound


def mser5(series: F64) -> int:
    """Observations to leave out at the front of ``series`` (n,), at most half of them.

    The means of 5 neighbours each are taken, and the cut is the one that makes the squared standard error of
    the mean of what remains smallest (White, "An effective truncation heuristic for bias reduction in
    simulation output", Simulation 69, 1997; batches of 5: White, Cobb, Spratt, WSC 2000).
    """
    n = len(series) // BATCHED
    if n < 2:
        return 0
    means = series[: n * BATCHED].reshape(n, BATCHED).mean(axis=1)
    left = np.arange(n, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(np.square(means - means.mean())[::-1])[::-1]
    spread = squares - np.square(sums - left * means.mean()) / left
    return int(np.argmin((spread / np.square(left))[: n // 2 + 1])) * BATCHED


def steadiness(bins: F64, series: int) -> Steadiness:
    """Judge a window by its slices: the time-averaged batch and the tokens per second.

    A system that fills up from empty has too small a batch at first, so only a mean that moves up counts.

    Args:
        bins: (BINS, 3) seconds, batch x seconds and tokens, summed over replicas and replications that were
            measured alike (see kplan.engine.state).
        series: how many they are; the more, the less is chance taken for a trend.
    """
    bins = bins[bins[:, BIN_S] > 0]
    bound = BIAS + CHANCE / math.sqrt(series)
    worst = Steadiness(0.0, 0.0, bound)
    for column in (BIN_BATCH_S, BIN_EMITTED):
        cut = mser5(bins[:, column] / bins[:, BIN_S])
        whole, kept = bins.sum(axis=0), bins[cut:].sum(axis=0)
        if whole[column] == 0:
            continue
        shift = float(kept[column] / kept[BIN_S] / (whole[column] / whole[BIN_S]) - 1)
        if shift > worst.shift:
            worst = Steadiness(cut / len(bins), shift, bound)
    return worst
