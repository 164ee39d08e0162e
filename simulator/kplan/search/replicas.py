"""How many replicas a load needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from kplan.errors import InfeasibleError
from kplan.registry import PolicySpec
from kplan.search.evaluate import ATTAINMENT, evaluate, slo_share
from kplan.search.phrases import slo_text
from kplan.simulate import UNBOUNDED, Drawn, Setup, with_load

MAX_REPLICAS = 256
ALONE = 1000
"""Requests on which a nearly idle replica is judged."""


class Verdict(Protocol):
    """What was found on so many replicas."""

    @property
    def replicas(self) -> int: ...
    @property
    def best(self) -> object | None:
        """None when nothing serves the load there."""
        ...


V = TypeVar("V", bound=Verdict)


def fewest(setup: Setup, sustained: float, on: Callable[[int], V], may_meet: Callable[[], bool]) -> V:
    """The verdict on the fewest replicas that serve an open load within the SLOs.

    Args:
        sustained: most requests/s that one replica sustains under any policy that the engine runs.
        on: judges a number of replicas.
        may_meet: whether the SLOs may be met at all; asked when the fewest that keep up miss them.

    Raises:
        InfeasibleError: no number of replicas up to MAX_REPLICAS meets the SLOs.
    """
    assert setup.rate is not None
    enough = math.ceil(setup.rate / sustained)
    if enough > MAX_REPLICAS:
        raise InfeasibleError(
            f"{setup.rate:g} QPS needs {enough} replicas, more than {MAX_REPLICAS}: "
            "split the load, use more GPUs per replica (--tp) or a faster drafter"
        )
    too_few = enough - 1
    judged = on(max(1, enough))
    while judged.best is None:
        too_few = judged.replicas
        if too_few == MAX_REPLICAS or not may_meet():
            raise InfeasibleError(
                f"no number of replicas up to {MAX_REPLICAS} meets {slo_text(setup.scenario)}: "
                "loosen the SLO, use more GPUs per replica (--tp) or a faster drafter"
            )
        judged = on(min(too_few + max(1, too_few // 4), MAX_REPLICAS))
    while judged.replicas - too_few > 1:
        middle = on((judged.replicas + too_few) // 2)
        if middle.best is None:
            too_few = middle.replicas
        else:
            judged = middle
    return judged


def alone_may_meet(setup: Setup, runnable: Sequence[PolicySpec], sample: Drawn) -> bool:
    """Whether any policy that the engine can run may meet the SLOs with one request at a time.

    False only when fewer requests than ATTAINMENT meet them by more than chance explains (3 sigma).
    """
    alone = with_load(setup, concurrency=1, dp=1)
    n = min(ALONE, len(sample.prompt_len))
    least = ATTAINMENT - 3 * math.sqrt(ATTAINMENT * (1 - ATTAINMENT) / n)
    first = replace(sample.take(n), follows=None)  # alone, no turn waits for the one before
    return any(slo_share(alone, evaluate(alone, spec, [first], 1, UNBOUNDED)) >= least for spec in runnable)
