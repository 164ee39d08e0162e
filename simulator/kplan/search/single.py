"""``kplan simulate``: one policy on one load, with no speculation beside it on the same requests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kplan.config.plan import PolicyResult
from kplan.config.scenario import Scenario
from kplan.registry import parse_policy
from kplan.search.evaluate import capacity, evaluate, result
from kplan.simulate import default_requests, draw_requests, prepare


@dataclass(frozen=True)
class SingleRun:
    """One policy's record and what was simulated for it (``off``, run for the speedup, not counted)."""

    result: PolicyResult
    requests: int
    steps: int
    output_tokens: int


def simulate_one(scenario: Scenario, progress: Callable[[str], None] = lambda _: None) -> SingleRun:
    """Simulate ``scenario.policy``.

    Raises:
        InputError: a name or a combination that no profile covers.
        InfeasibleError: the weights do not fit.
    """
    spec, off = parse_policy(scenario.policy), parse_policy("off")
    progress("loading profiles and pricing steps")
    setup = prepare(scenario)
    n = default_requests(setup)
    drawn = [draw_requests(setup, n, scenario.seed + i) for i in range(scenario.replications)]
    replicas = scenario.replicas or 1
    done = []
    for each in [off] if spec.text == off.text else [off, spec]:
        progress(f"simulating {each.text}")
        limit = capacity(setup, each, drawn[0]) * replicas if scenario.qps is not None else math.inf
        done.append(evaluate(setup, each, drawn, replicas, limit))
    mine = done[-1]
    return SingleRun(
        result=result(setup, mine, done[0], setup.engine.name),
        requests=sum(run.requests for run in mine.runs),
        steps=sum(run.steps for run in mine.runs),
        output_tokens=sum(run.output_tokens for run in mine.runs),
    )
