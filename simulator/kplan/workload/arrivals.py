"""Arrival times of an open loop."""

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

    Gaps have mean 1 / rate and squared coefficient of variation 1 / burstiness.

    Raises:
        InputError: rate or burstiness not positive and finite, or n < 1.
    """
    for what, value in (("rate", rate), ("burstiness", burstiness)):
        if not (np.isfinite(value) and value > 0):
            raise InputError(what, value, "a positive number is needed")
    if n < 1:
        raise InputError("requests", n, "at least 1 is needed")
    draws = stream(seed, "arrivals")
    if burstiness == 1.0:
        gaps = draws.standard_exponential(n)
    else:
        gaps = draws.standard_gamma(burstiness, n) / burstiness
    return np.asarray(np.cumsum(gaps) / rate, np.float64)
