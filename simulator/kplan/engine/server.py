"""What happens between machines, on SimPy's clock: a source, a router, and N replicas.

A replica is one SimPy process. Between two moments at which the outside can reach it, it runs its own
compiled step loop and then sleeps until its clock; with arrivals that do not depend on the replicas' state
(an open-loop source behind a round-robin router, or clients bound to one replica each) nothing can reach it
before it is done, so it runs in one stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import simpy

from kplan.engine import kernel
from kplan.engine.replica import Replica
from kplan.engine.state import Limits, Load
from kplan.latency.compiled import StepCost
from kplan.policy import Policy


@dataclass(frozen=True)
class Fleet:
    """Replicas after a run; ``end_s`` is when the last of them fell silent."""

    replicas: tuple[Replica, ...]
    end_s: float


def split_round_robin(load: Load, replicas: int) -> list[Load]:
    """Deal the requests to ``replicas`` in turn; a closed loop's clients are dealt the same way.

    Raises:
        ValueError: fewer clients than replicas.
    """
    if replicas == 1:
        return [load]
    if load.concurrency is not None and load.concurrency < replicas:
        raise ValueError(f"{load.concurrency} clients cannot keep {replicas} replicas busy")
    parts = []
    for i in range(replicas):
        rows = np.arange(i, len(load), replicas)
        clients = None
        if load.concurrency is not None:
            clients = len(range(i, load.concurrency, replicas))
        parts.append(
            replace(
                load,
                arrival_s=load.arrival_s[rows],
                prompt_len=load.prompt_len[rows],
                output_len=load.output_len[rows],
                trace_at=load.trace_at[rows],
                concurrency=clients,
            )
        )
    return parts


def serve(
    loads: Sequence[Load],
    limits: Sequence[Limits],
    cost: StepCost,
    policy: Callable[[], Policy],
    *,
    observe_lag: int = 0,
    compiled: bool = True,
) -> Fleet:
    """Serve each load on a replica of its own and return them all when the last one is done.

    Args:
        loads: one per replica.
        limits: one per replica (the measured windows differ).
        policy: makes a fresh policy per replica; replicas do not share state.
    """
    env = simpy.Environment()
    replicas = tuple(
        Replica(load, bounds, cost, policy(), observe_lag=observe_lag, compiled=compiled)
        for load, bounds in zip(loads, limits, strict=True)
    )
    for replica in replicas:
        env.process(_step_loop(env, replica))
    env.run()
    return Fleet(replicas, float(env.now))


def _step_loop(env: simpy.Environment, replica: Replica) -> Generator[simpy.Event, None, None]:
    while True:
        status = replica.advance()
        if replica.clock_s > env.now:
            yield env.timeout(replica.clock_s - env.now)
        if status != kernel.PAUSED:
            return
