"""What happens between machines: clients, a router, and N replicas.

Where nothing outside can reach a replica before it is done (open arrivals dealt in turn, clients bound to
one replica each), it runs in one compiled stretch. Where it matters who is busy at the moment of an arrival,
SimPy's clock runs the source, the router and the replicas step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import simpy

from kplan.engine.group import Group
from kplan.engine.kernel import PAUSED
from kplan.engine.load import Load, clients_of, new_requests
from kplan.engine.replica import Replica
from kplan.engine.state import EXPECTED, I64, WINDOW_FROM, WINDOW_SPAN, WINDOW_TO, Limits, Requests, Steps
from kplan.latency.compiled import StepCost
from kplan.policy import Policy

NEVER = 2**62
"""An admission count that is not reached."""


@dataclass(frozen=True)
class Fleet:
    """Replicas (of groups: their ranks) after a run, and the REQUEST records that they share."""

    replicas: tuple[Replica, ...]
    requests: Requests


class Route(Protocol):
    """Chooses the server of an arriving request."""

    def __call__(self, outstanding: I64, turn: int) -> int:
        """Index of a server.

        Args:
            outstanding: (servers,) requests that each has and has not finished.
            turn: requests routed so far.
        """
        ...


def round_robin(outstanding: I64, turn: int) -> int:
    """Each server in turn, whatever is ``outstanding``."""
    return turn % len(outstanding)


def least_outstanding(outstanding: I64, turn: int) -> int:
    """The server with the fewest ``outstanding`` (unfinished) requests; of several, the next in turn."""
    turned = np.roll(outstanding, -(turn % len(outstanding)))
    return (int(np.argmin(turned)) + turn) % len(outstanding)


def deal(load: Load, replicas: int) -> list[I64]:
    """The requests of each replica when they are dealt in turn; the turns of a session go to one.

    Raises:
        ValueError: fewer clients than replicas.
    """
    if load.concurrency is not None and load.concurrency < replicas:
        raise ValueError(f"{load.concurrency} clients cannot keep {replicas} replicas busy")
    if load.follows is None:
        return [np.arange(i, len(load), replicas) for i in range(replicas)]
    first = np.flatnonzero(load.follows < 0)
    place = np.empty(len(load), np.int64)
    place[first] = np.arange(len(first)) % replicas
    for turn in np.flatnonzero(load.follows >= 0):  # a turn comes after the one before
        place[turn] = place[load.follows[turn]]
    return [np.flatnonzero(place == i) for i in range(replicas)]


def serve_apart(
    load: Load,
    shares: Sequence[I64],
    limits: Sequence[Limits],
    cost: StepCost,
    policy: Callable[[], Policy],
    *,
    replicas: int | None = None,
    observe_lag: int = 0,
    compiled: bool = True,
    record: Callable[[int, Steps], None] | None = None,
) -> Fleet:
    """Serve each share of ``load`` on a replica of its own.

    Args:
        shares: requests of each replica (see :func:`deal`).
        limits: one per replica (the measured windows differ).
        policy: makes a fresh policy per replica; replicas do not share state.
        replicas: that the load was dealt to, when not all of them are simulated.
        observe_lag: steps by which a policy hears of one later than it ended.
        compiled: False runs the policy in Python, step by step, to the same bytes.
        record: is given the number of a replica and some of its STEP records.
    """
    requests = new_requests(load)
    replicas = replicas or len(shares)
    served = []
    for number, (share, bounds) in enumerate(zip(shares, limits, strict=True)):
        clients = None if load.concurrency is None else clients_of(load.concurrency, replicas, number)
        replica = Replica(
            load, bounds, cost, policy(), requests=requests, mine=share, clients=clients,
            observe_lag=observe_lag, compiled=compiled, record=_recorder(record, number),
        )  # fmt: skip
        replica.advance()
        replica.flush()
        served.append(replica)
    return Fleet(tuple(served), requests)


def serve_routed(
    load: Load,
    replicas: int,
    limits: Limits,
    cost: StepCost,
    policy: Callable[[], Policy],
    *,
    route: Route = round_robin,
    ranks: int = 1,
    observe_lag: int = 0,
    compiled: bool = True,
    record: Callable[[int, Steps], None] | None = None,
) -> Fleet:
    """Serve ``load`` on replicas that a router chooses request by request, at the moment of its arrival.

    Args:
        limits: of one replica; its window counts the requests of the whole load.
        ranks: data-parallel ranks per replica, which step together. The router sees ranks.
        observe_lag, compiled: see :func:`serve_apart`.
    """
    requests = new_requests(load)
    bounds = limits._replace(window_from=NEVER, window_to=NEVER, closed=False)
    machines = [
        Replica(
            load, bounds, cost, policy(), requests=requests, handed=True, observe_lag=observe_lag,
            compiled=compiled, record=_recorder(record, number),
        )
        for number in range(replicas * ranks)
    ]  # fmt: skip
    floor = _Floor(load, requests, machines, ranks, route, (limits.window_from, limits.window_to))
    floor.run()
    for machine in machines:
        machine.flush()
    return Fleet(tuple(machines), requests)


def _recorder(record: Callable[[int, Steps], None] | None, number: int) -> Callable[[Steps], None] | None:
    return None if record is None else lambda steps: record(number, steps)


class _Floor:
    """Source, clients, router and servers on one SimPy clock.

    SimPy's clock orders the events, and shows the machines' own times exactly (see _reach).
    """

    def __init__(
        self,
        load: Load,
        requests: Requests,
        machines: Sequence[Replica],
        ranks: int,
        route: Route,
        window: tuple[int, int],
    ) -> None:
        self._env = simpy.Environment()
        self._load, self._requests, self._machines, self._route = load, requests, machines, route
        self._servers: list[Replica | Group] = [
            machines[i] if ranks == 1 else Group(machines[i : i + ranks])
            for i in range(0, len(machines), ranks)
        ]
        self._ranks = ranks
        self._wake = [self._env.event() for _ in self._servers]
        self._outstanding = np.zeros(len(machines), np.int64)
        self._place = np.full(len(load), -1, np.int64)
        self._due: list[tuple[float, int]] = []  # a heap of who is to arrive, and when
        self._routed = self._issued = 0
        self._window = window
        for machine in machines:
            machine.machine.counters[WINDOW_SPAN] = max(1, (window[1] - window[0]) // len(machines))

    def run(self) -> None:
        """Until nothing is left to do."""
        for number in range(len(self._servers)):
            self._env.process(self._step_loop(number))
        self._env.process(self._source())
        self._env.run()

    def _source(self) -> Generator[simpy.Event, Any, None]:
        load = self._load
        if load.concurrency is not None:
            for _ in range(min(load.concurrency, len(load))):
                self._issue(0.0)
            self._arrive_due()
            return
        first = np.arange(len(load)) if load.follows is None else np.flatnonzero(load.follows < 0)
        for at_s, together in groupby(first.tolist(), key=load.arrival_s.tolist().__getitem__):
            for r in together:
                heappush(self._due, (at_s, r))
            yield from self._reach(at_s)
            self._arrive_due()

    def _issue(self, free_s: float) -> None:
        """A client that has been free since ``free_s`` sends the next request after its pause."""
        r = self._issued
        if r < len(self._load):
            self._issued += 1
            self._arrive_at(r, free_s + float(self._requests["think_s"][r]))

    def _arrive_at(self, r: int, at_s: float) -> None:
        heappush(self._due, (at_s, r))
        if at_s > self._env.now:
            self._env.process(self._later(at_s))

    def _later(self, at_s: float) -> Generator[simpy.Event, Any, None]:
        yield from self._reach(at_s)
        self._arrive_due()

    def _arrive_due(self) -> None:
        """Let everybody arrive whose moment has come; of several at once the lower number goes first."""
        while self._due and self._due[0][0] <= self._env.now:
            at_s, r = heappop(self._due)
            self._arrive(r, at_s)

    def _reach(self, at_s: float) -> Generator[simpy.Event, Any, None]:
        """Wait until SimPy's clock shows ``at_s`` to the last bit.

        SimPy adds delays up, and a sum may be rounded: a delay that would overshoot is cut, and the rest
        waited for, so that who comes at the very end of a step is in the next.
        """
        while (now_s := self._env.now) < at_s:
            delay_s = at_s - now_s
            if now_s + delay_s > at_s:
                delay_s = math.nextafter(delay_s, 0.0)
            yield self._env.timeout(delay_s)

    def _arrive(self, r: int, at_s: float) -> None:
        if self._routed == self._window[0]:
            self._set_window(WINDOW_FROM)
        before = -1 if self._load.follows is None else int(self._load.follows[r])
        # the cache of a session's earlier turns is where they were served
        rank = int(self._route(self._outstanding, self._routed) if before < 0 else self._place[before])
        self._place[r] = rank
        self._outstanding[rank] += 1
        self._routed += 1
        self._machines[rank].offer(r, at_s)
        if self._routed == self._window[1]:
            self._set_window(WINDOW_TO)
        wake = self._wake[rank // self._ranks]
        if not wake.triggered:
            wake.succeed()

    def _set_window(self, edge: int) -> None:
        for machine in self._machines:
            count = machine.machine.counters
            count[edge] = count[EXPECTED]

    def _step_loop(self, number: int) -> Generator[simpy.Event, Any, None]:
        server = self._servers[number]
        while True:
            if server.advance(steps=1) != PAUSED:
                self._wake[number] = self._env.event()
                yield self._wake[number]
                continue
            yield from self._reach(server.clock_s)
            for r in server.ended:
                self._finish(int(r))
            self._arrive_due()
            if self._env.peek() <= self._env.now:  # who arrives at this very moment is in the next step
                yield self._env.timeout(0.0)

    def _finish(self, r: int) -> None:
        self._outstanding[self._place[r]] -= 1
        end_s = float(self._requests["finish_s"][r])
        if self._load.concurrency is not None:
            self._issue(end_s)
        after = int(self._requests["follower"][r])
        while after >= 0:
            pause_s = float(self._requests["think_s"][after])
            self._arrive_at(after, max(float(self._load.arrival_s[after]), end_s + pause_s))
            after = int(self._requests["sibling"][after])
