"""What a policy tried is worth: paired against another, within its constraints, and chosen with care."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.metrics import mean_interval
from kplan.registry import parse_policy
from kplan.search.candidates import TIE
from kplan.search.cases import Point
from kplan.search.choose import simplicity
from kplan.search.evaluate import ATTAINMENT

FIGURES: Mapping[str, Callable[[Point], float]] = {
    "tpot": lambda point: point.tpot_s,
    "ttft": lambda point: point.ttft_s,
    "throughput": lambda point: 1 / point.tok_s,
    "cost": lambda point: 1 / point.tok_s,
}
"""Objective -> a figure that is better when lower, up to a factor that policies of one case share: throughput
is what the replicas sustain, and the cost of a token the GPU-seconds that it takes there."""


@dataclass(frozen=True)
class Tried:
    """A policy and what it measured, by replication and case."""

    policy: str
    points: tuple[tuple[Point, ...], ...]

    @property
    def overload(self) -> float:
        """By how much the load of the worst case exceeds what counts as sustained; above 0 it saturates."""
        return self._worst(lambda point: point.overload)

    @property
    def missed(self) -> float:
        """Share of the requests that lacks for the SLOs in the worst case; above 0 they are missed."""
        return self._worst(lambda point: ATTAINMENT - point.met)

    @property
    def feasible(self) -> bool:
        """Every case keeps up and meets the SLOs."""
        return self.overload <= 0 and self.missed <= 0

    @property
    def mean_k(self) -> float:
        """Drafts per request and step, over all cases."""
        return float(np.mean([point.mean_k for row in self.points for point in row]))

    @property
    def output_tokens(self) -> int:
        """Tokens emitted in all."""
        return sum(point.output_tokens for row in self.points for point in row)

    def _worst(self, figure: Callable[[Point], float]) -> float:
        return float(np.array([[figure(point) for point in row] for row in self.points]).mean(axis=0).max())


def log_ratios(mine: Tried, base: Tried, objective: str) -> NDArray[np.float64]:
    """(R,) mean over the cases of log(figure of ``mine`` / figure of ``base``), by replication they share.

    Each replication runs both on the same requests, so the ratio is free of what the requests are like; in
    the mean of logarithms every case weighs alike, and the base drops out of any comparison of two policies.
    """
    figure = FIGURES[objective]
    return np.array(
        [
            np.mean([math.log(figure(one) / figure(two)) for one, two in zip(own, other, strict=True)])
            for own, other in zip(mine.points, base.points, strict=False)
        ]
    )


@dataclass(frozen=True)
class Ratio:
    """Geometric mean over the cases of one policy's figure over another's, with its paired 95% interval."""

    mean: float
    ci95: tuple[float, float] | None

    @property
    def width(self) -> float:
        """Of the interval; infinite with one replication."""
        return math.inf if self.ci95 is None else self.ci95[1] - self.ci95[0]


def ratio(mine: Tried, base: Tried, objective: str) -> Ratio:
    """The figure of ``mine`` over that of ``base``: below 1 it is better."""
    logs = log_ratios(mine, base, objective)
    mean = float(np.exp(logs.mean()))
    return Ratio(mean, mean_interval(np.exp(logs), mean))


def worse(mine: Tried, best: Tried, objective: str) -> bool:
    """Whether ``mine`` may be stopped: its paired interval lies above 1, or it cannot serve the load."""
    if best.feasible and not mine.feasible:
        return True
    found = ratio(mine, best, objective)
    return found.ci95 is not None and found.ci95[0] > 1.0 and mine.feasible == best.feasible


def lowest(tried: Sequence[Tried], base: Tried, objective: str) -> Tried | None:
    """The best mean among those that keep up and meet the SLOs, the first of equals; None when none does."""
    fit = [one for one in tried if one.feasible]
    return min(fit, key=lambda one: float(log_ratios(one, base, objective).mean()), default=None)


def careful(tried: Sequence[Tried], base: Tried, objective: str) -> Tried | None:
    """The simplest policy, then the smallest mean K, among those as good as the best.

    As good: within 1%, or with a paired interval that holds 1.
    """
    best = lowest(tried, base, objective)
    if best is None:
        return None

    def as_good(one: Tried) -> bool:
        found = ratio(one, best, objective)
        return found.mean <= 1 + TIE or (found.ci95 is not None and found.ci95[0] <= 1.0)

    fit = [one for one in tried if one.feasible and as_good(one)]
    return min(fit, key=lambda one: (simplicity(parse_policy(one.policy)), one.mean_k))


def front(tried: Sequence[Tried], base: Tried, objectives: Sequence[str]) -> list[Tried]:
    """Those that no other beats in every objective, by the first one; of equals the first."""
    fit = [one for one in tried if one.feasible]
    values = np.array([[float(log_ratios(one, base, name).mean()) for name in objectives] for one in fit])
    kept = []
    for i in range(len(fit)):
        as_good = (values <= values[i]).all(axis=1)
        better = as_good & (values < values[i]).any(axis=1)
        same = (values == values[i]).all(axis=1)
        if not better.any() and not same[:i].any():
            kept.append(i)
    return [fit[i] for i in sorted(kept, key=lambda i: float(values[i, 0]))]
