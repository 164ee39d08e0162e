"""When requests are sent to a server, and how long they are waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from kplan.config.scenario import MIN_QPS
from kplan.errors import InputError
from kplan.rng import stream

MOST_CONCURRENCY = 4096
"""Requests in flight at most."""
MOST_S = 30 * 86_400.0
"""Longest wait of any kind."""
GRACE_S = 60.0
"""What requests in flight get when the time is over."""


class Pace(Protocol):
    """When requests are sent."""

    def clients(self) -> int:
        """Requests in flight at most."""
        ...

    def starts(self) -> Iterator[float]:
        """Second at which each next request may begin."""
        ...


@dataclass(frozen=True)
class Closed:
    """``concurrency`` clients that each keep one request in flight."""

    concurrency: int

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MOST_CONCURRENCY:
            bound = f"1..{MOST_CONCURRENCY} is accepted"
            raise InputError("--concurrency", self.concurrency, bound, "8 is usual")

    def clients(self) -> int:
        """Requests in flight at most."""
        return self.concurrency

    def starts(self) -> Iterator[float]:
        """Second at which each next request may begin: at once."""
        while True:
            yield 0.0


@dataclass(frozen=True)
class Open:
    """Poisson arrivals at ``qps`` requests per second."""

    qps: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not MIN_QPS <= self.qps <= 1000.0:
            raise InputError("--qps", self.qps, f"{MIN_QPS:g} to 1000 is accepted")

    def clients(self) -> int:
        """Requests in flight at most."""
        return MOST_CONCURRENCY

    def starts(self) -> Iterator[float]:
        """Second at which each next request begins."""
        rng, at_s = stream(self.seed, "live", "arrivals"), 0.0
        while True:
            at_s += float(rng.exponential(1.0 / self.qps))
            yield at_s


@dataclass(frozen=True)
class Limits:
    """How long is waited, and how often tried.

    Attributes:
        silence_s: longest wait for the first token, and between chunks.
        request_s: longest request.
        run_s: no request is begun after it; None: no limit. Those in flight get :data:`GRACE_S` more.
        tries: times a request is sent, the first included.

    Raises:
        InputError: a time that is no number of seconds, or more than MOST_S.
    """

    silence_s: float = 120.0
    request_s: float = 1200.0
    run_s: float | None = None
    tries: int = 4

    def __post_init__(self) -> None:
        for option, value in (("--silence-s", self.silence_s), ("--limit-s", self.run_s)):
            if value is not None and not value <= MOST_S:
                raise InputError(option, value, f"at most {MOST_S:.0f} seconds are waited")
