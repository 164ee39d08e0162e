"""Arrival times of an open loop, and the pauses of a closed one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.rng import stream


def poisson(rate: float, n: int, seed: int) -> NDArray[np.float64]:
    """(n,) sorted arrival times in seconds of a Poisson process of ``rate`` requests per second.

    The first k times are the same for every n >= k, and times scale with 1 / rate under one seed, so loads
    are compared under common random numbers.

    Raises:
        InputError: rate not positive and finite, or n < 1.
    """
    return gamma(rate, n, seed, burstiness=1.0)


def gamma(rate: float, n: int, seed: int, burstiness: float) -> NDArray[np.float64]:
    """Arrivals with gamma gaps, as ``vllm bench serve --burstiness``: 1 is Poisson, below 1 is burstier.

    Gaps have mean 1 / rate (s) and squared coefficient of variation 1 / burstiness; ``seed`` draws them.

    Raises:
        InputError: rate or burstiness not positive and finite, or n < 1.
    """
    _check(n, rate=rate, burstiness=burstiness)
    draws = stream(seed, "arrivals")
    if burstiness == 1.0:
        gaps = draws.standard_exponential(n)
    else:
        gaps = draws.standard_gamma(burstiness, n) / burstiness
    return np.asarray(np.cumsum(gaps) / rate, np.float64)


def constant(rate: float, n: int) -> NDArray[np.float64]:
    """(n,) arrivals 1 / rate apart, the first after one such gap: the limit of :func:`gamma` without bursts.

    Raises:
        InputError: rate not positive and finite, or n < 1.
    """
    _check(n, rate=rate)
    return np.arange(1, n + 1) / rate


def ramp(rate_from: float, rate_to: float, n: int, seed: int) -> NDArray[np.float64]:
    """(n,) sorted arrivals of a Poisson process whose rate goes linearly from ``rate_from`` to ``rate_to``.

    The ramp takes T = 2 n / (rate_from + rate_to) seconds, in which n requests are expected; those that come
    later come at ``rate_to``. The integrated rate rate_from t + (rate_to - rate_from) t^2 / (2 T) is inverted
    at the times of a Poisson process of rate 1 (those of :func:`poisson` for ``seed``), which is exact. Times
    scale with 1 / rate when both rates are scaled.

    Raises:
        InputError: a rate not positive and finite, or n < 1.
    """
    _check(n, rate_from=rate_from, rate_to=rate_to)
    unit = poisson(1.0, n, seed)
    length = 2.0 * n / (rate_from + rate_to)
    slope = (rate_to - rate_from) / length
    inside = np.minimum(unit, n)
    # the root of the quadratic in the form that no cancellation spoils, and that holds for slope 0
    on_ramp = 2.0 * inside / (rate_from + np.sqrt(rate_from**2 + 2.0 * slope * inside))
    return np.asarray(on_ramp + (unit - inside) / rate_to, np.float64)


def think_times(mean_s: float, n: int, seed: int) -> NDArray[np.float64]:
    """(n,) exponential pauses in seconds; under a ``seed`` request i's is the same for every n > i.

    They are proportional to ``mean_s``.

    Raises:
        InputError: mean_s negative or not finite, or n < 1.
    """
    if not (np.isfinite(mean_s) and mean_s >= 0):
        raise InputError("think time", mean_s, "a number >= 0 is needed")
    _check(n)
    return np.asarray(mean_s * stream(seed, "think").standard_exponential(n), np.float64)


def _check(n: int, **rates: float) -> None:
    for what, value in rates.items():
        if not (np.isfinite(value) and value > 0):
            raise InputError(what, value, "a positive number is needed")
    if n < 1:
        raise InputError("requests", n, "at least 1 is needed")
