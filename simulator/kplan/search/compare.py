"""Simulate several policies on one load, on the same requests, for as long as the load takes to be steady."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kplan.registry import PolicySpec
from kplan.search.evaluate import Evaluated, evaluate
from kplan.simulate import (
    MOST_WARM,
    UNBOUNDED,
    Drawn,
    Setup,
    Sustained,
    default_requests,
    draw_requests,
    settling,
)
from kplan.telling import Tell

STRETCHES = (1.0, 2.0, 4.0)
"""Times the warm-up and the measured seconds of theory, tried in turn until every policy is steady."""


def compare(
    setup: Setup,
    specs: Sequence[PolicySpec],
    replicas: int,
    sustained: Mapping[str, Sustained],
    progress: Tell,
) -> tuple[tuple[Drawn, ...], tuple[Evaluated, ...]]:
    """Run every policy once per replication.

    When one that keeps up is not steady yet, all are run again with a longer warm-up and window: common
    random numbers need the same requests for every policy. A number of requests that was asked for is kept.

    Args:
        sustained: requests/s of one replica by policy text; a policy that is not there has no bound.

    Returns:
        The requests of each replication, and the policies in the order of ``specs``.
    """
    scenario = setup.scenario
    for stretch in STRETCHES:
        progress(f"drawing requests for {scenario.replications} replications")
        drawn = draw_all(setup, replicas, stretch)
        done = []
        for i, spec in enumerate(specs):
            progress(
                f"simulating {spec.text} on {replicas} replica{'s' if replicas > 1 else ''}", i, len(specs)
            )
            limit = sustained.get(spec.text, UNBOUNDED).of(replicas)
            done.append(evaluate(setup, spec, drawn, replicas, limit))
        if (
            scenario.requests is not None
            or not setup.stationary
            or all(one.saturated or one.steadiness.steady for one in done)
        ):
            break
    return drawn, tuple(done)


def draw_all(setup: Setup, replicas: int, stretch: float = 1.0) -> tuple[Drawn, ...]:
    """The requests of every replication, as many as the load takes to be steady in theory, times ``stretch``;
    a number that was asked for is kept."""
    n, scenario = default_requests(setup, replicas, stretch), setup.scenario
    return tuple(draw_requests(setup, n, scenario.seed + i, stretch) for i in range(scenario.replications))


def unsteady_note(setup: Setup, replicas: int, drawn: Sequence[Drawn], done: Evaluated) -> list[str]:
    """One sentence when a policy that keeps up was measured too early, else none.

    Too early: with so few requests that the warm-up of theory would leave no window, or with a window that
    MSER-5 says holds some of the warm-up.
    """
    if done.saturated or not setup.stationary:
        return []
    n, qps = len(drawn[0].prompt_len), setup.rate
    free = setup.scenario.model_copy(update={"requests": None})
    enough = default_requests(replace(setup, scenario=free), replicas)
    if qps is not None:
        settle_s = settling(setup, qps / replicas / setup.scenario.dp).settle_s
        if MOST_WARM * n / qps < settle_s:
            return [
                f"{n} requests arrive within {n / qps:.3g} s, and this load takes up to {settle_s:.3g} s to "
                "settle: the means are those of a server that fills up; use --requests "
                f"{max(enough, n + 1)} or more."
            ]
    found = done.steadiness
    if found.steady:
        return []
    return [
        f"{done.spec.text} had not settled: without the first {found.cut:.0%} of its window the mean moves "
        f"up by {found.shift:.0%}, more than {found.bound:.0%}; use --requests {max(enough, 2 * n)}."
    ]
