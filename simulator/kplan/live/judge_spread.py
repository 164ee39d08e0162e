"""How far a measured mean may be off by chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from kplan.live.bench_serve import Traffic
from kplan.live.workload import F64

MOST_BLOCKS, FEWEST_BLOCKS = 20, 5
"""Blocks of neighbouring requests that an interval rests on: bounds."""


@dataclass(frozen=True)
class Measure:
    """A measured value and the half width of its 95% interval: 0 where it was counted, not sampled; None
    where the run says nothing of its own spread."""

    value: float
    half: float | None


def median_of(values: F64) -> Measure:
    """Median, with the half width of its interval from the medians of consecutive blocks."""
    blocks = min(MOST_BLOCKS, len(values) // FEWEST_BLOCKS)
    middle = float(np.median(values))
    if blocks < FEWEST_BLOCKS:
        return Measure(middle, None)
    medians = np.array([np.median(block) for block in np.array_split(values, blocks)])
    error = float(np.std(medians, ddof=1)) / np.sqrt(blocks)
    return Measure(middle, float(stdtrit(blocks - 1, 0.975)) * float(error))


def scaled(value: float, relative: float | None) -> Measure:
    """A value whose interval is that share of it to either side."""
    return Measure(value, None if relative is None else abs(value) * relative)


class Spread:
    """How far means over a run's requests may be off by chance: batch means of neighbouring requests.

    Requests share their batches, so single ones are no independent draws. Blocks of at least two rounds of
    the clients are taken for such; fewer than FEWEST_BLOCKS of them say nothing.
    """

    def __init__(self, traffic: Traffic, clients: int | None) -> None:
        n = len(traffic)
        busy = float((traffic.ttft_s + traffic.decode_s).sum())
        together = clients or max(1.0, busy / max(traffic.duration_s, 1e-9))
        self.blocks = int(min(MOST_BLOCKS, n // max(2 * together, 4)))
        order = np.arange(n) if traffic.start_s is None else np.argsort(traffic.start_s, kind="stable")
        self._block = np.empty(n, np.int64)
        self._block[order] = np.arange(n) * self.blocks // n
        self._quantile = float(stdtrit(max(self.blocks - 1, 1), 0.975))

    def relative(self, top: F64, bottom: F64) -> float | None:
        """Half width of the interval of sum(top) / sum(bottom), as a share of it."""
        if self.blocks < FEWEST_BLOCKS:
            return None
        above, below = (np.bincount(self._block, one, self.blocks) for one in (top, bottom))
        if not above.sum() or not below.sum():
            return 0.0
        ratio = above.sum() / below.sum()
        left = above - ratio * below  # the ratio estimator's residuals
        error = np.sqrt(self.blocks / (self.blocks - 1) * np.square(left).sum()) / below.sum()
        return float(self._quantile * error / ratio)

    def mean(self, values: F64, rows: NDArray[np.bool_]) -> Measure:
        """Mean of ``values`` (m,), which the requests ``rows`` (n,) have."""
        whole = np.zeros(len(rows))
        whole[rows] = values
        relative = self.relative(whole, rows.astype(np.float64))
        return scaled(float(values.mean()), relative)
