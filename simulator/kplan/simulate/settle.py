"""How long a load takes to settle, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kplan.acceptance import MAX_K
from kplan.engine import UNBOUNDED_LEN, Limits, Load, clients_of
from kplan.engine.state import I64
from kplan.errors import InputError
from kplan.registry import PolicySpec
from kplan.simulate.server import is_off, kv_tokens_of, overlaps
from kplan.simulate.setup import Setup

MEASURED_S = 20.0
"""Seconds of an open load that are measured by default."""
TIME_CONSTANTS = 3.0
MOST_SLOPE = 0.75
LONGEST_S = 120.0
"""How long a load may take to settle: time constants waited, and bounds for loads close to saturation."""
FEWEST_IN_ALL, MOST_PER_REPLICA = 400, 100_000
"""Requests of a replication by default: bounds."""
FEWEST = 40
"""Requests of the window; with fewer, warm-up and drain are measured too."""
MOST_WARM, LEAST_END = 0.7, 0.8
"""With few requests the window starts no later, and ends no earlier, than these shares of them."""


class Settling(NamedTuple):
    """Seconds until an open load is steady, and until the last measured requests are done."""

    settle_s: float
    drain_s: float


class Window(NamedTuple):
    """Requests ``first`` up to and without ``last`` are measured, and the steps while they are admitted."""

    first: int
    last: int


def settling(setup: Setup, rate: float) -> Settling:
    """How long an open load of ``rate`` requests/s on one replica takes to settle, and to drain.

    Without speculation, the slowest policy that keeps up, the batch balances where batch = rate x output x
    step(batch) (Little's law). A disturbance decays with the time constant residence / (1 - slope), where
    slope = rate x output x d step / d batch: the closer to saturation, the slower.
    """
    lengths = setup.lengths
    work = rate * lengths.output
    step_s = setup.off_step_s
    batches = np.arange(1, len(step_s) + 1)
    keeps_up = np.flatnonzero(work * step_s <= batches)
    at = int(keeps_up[0]) if len(keeps_up) else len(batches) - 1
    near = slice(max(at - 8, 0), at + 9)
    slope = work * float(np.polyfit(batches[near], step_s[near], 1)[0])
    slowing = 1 / (1 - min(max(slope, 0.0), MOST_SLOPE))
    drain_s = lengths.longest_output * float(step_s[at])
    settle_s = max(drain_s, TIME_CONSTANTS * lengths.output * float(step_s[at]) * slowing)
    return Settling(min(settle_s, LONGEST_S), min(drain_s, LONGEST_S))


def default_requests(setup: Setup, replicas: int = 1, stretch: float = 1.0) -> int:
    """Requests of one replication when the scenario does not say.

    Open loop: enough to settle, to be measured for MEASURED_S, and to keep the load up while the last
    measured ones finish. Closed loop: ten per client.

    Args:
        stretch: times the seconds to settle, and those measured.

    Raises:
        InputError: the scenario asks for fewer requests than replicas.
    """
    scenario = setup.scenario
    if scenario.requests is not None:
        if scenario.requests < replicas * scenario.dp:
            what = "replicas" if scenario.dp == 1 else f"replicas of {scenario.dp} ranks"
            raise InputError(
                "--requests", scenario.requests, f"{replicas} {what} need at least one each", "leave it out"
            )
        return scenario.requests
    if setup.log is not None:
        return len(setup.log)
    if setup.rate is not None:
        servers = replicas * scenario.dp
        rate = setup.rate / servers
        wait = settling(setup, rate)
        seconds = stretch * (wait.settle_s + MEASURED_S) + wait.drain_s
        return servers * int(np.clip(rate * seconds, -(-FEWEST_IN_ALL // servers), MOST_PER_REPLICA))
    assert scenario.concurrency is not None
    return int(stretch * max(scenario.concurrency * 10, 100))


def window_of(
    setup: Setup,
    load: Load,
    share: I64,
    replicas: int,
    *,
    rate: float | None = None,
    stretch: float = 1.0,
) -> Window:
    """The part of ``share``, a replica's requests, that is measured: warm-up and drain are left out.

    Too few requests to leave any out are measured whole, as a load generator would report them.

    Args:
        rate: requests/s that the replica is meant to get; infinity when all are there at t = 0. None: those
            it gets. What one seed's arrivals happen to come to would make the busiest seed's window shortest.
        stretch: times the warm-up of theory that is left out.
    """
    seats = max(setup.max_num_seqs, setup.max_num_seqs_off)
    n = len(share)
    if rate is not None and np.isinf(rate):
        first, last = min(n // 2, max(n - seats, 0)), n - seats // 2
    elif load.concurrency is not None:
        clients = clients_of(load.concurrency, replicas, int(share[0]))
        first, last = int(stretch * 2 * clients), n - clients
    elif not setup.stationary:
        return Window(0, n)
    else:
        arrival_s = load.arrival_s[share]
        wait = settling(setup, rate or n / arrival_s[-1])
        first = min(int(np.searchsorted(arrival_s, stretch * wait.settle_s)), int(n * MOST_WARM))
        end_s = arrival_s[-1] - wait.drain_s
        last = max(int(np.searchsorted(arrival_s, end_s)), int(n * LEAST_END))
    return Window(first, last) if last - first >= FEWEST else Window(0, n)


def met_midway(load: Load, shares: Sequence[I64], windows: Sequence[Window], replicas: int) -> Load:
    """The same load whose clients are met midway: the first request of client i of C ends at (i + 1/2) / C.

    Clients that all start together with requests of one length stay in step for ever in a simulation, and
    none ever sees the prefill of another. Real ones drift apart: any jitter moves them, nothing moves them
    back. The shortened requests lie before the window; a window without warm-up keeps its share as it is, and
    so do clients that think.
    """
    if load.concurrency is None or load.thinks:
        return load
    output = load.output_len.copy()
    for share, window in zip(shares, windows, strict=True):
        clients = clients_of(load.concurrency, replicas, int(share[0]))
        if window.first >= clients:
            first = share[:clients]
            part = (np.arange(clients) + 0.5) / clients
            output[first] = np.maximum(1, np.ceil(output[first] * part).astype(output.dtype))
    return replace(load, output_len=output)


def limits_of(setup: Setup, spec: PolicySpec, load: Load, window: Window) -> Limits:
    """The engine's bounds for one replica that serves ``load`` under a policy."""
    block, off = setup.engine.block_size, is_off(spec)
    return Limits(
        max_num_seqs=setup.max_num_seqs_off if off else setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        block_tokens=block,
        total_blocks=kv_tokens_of(setup, spec) // block,
        max_k=0 if off else min(setup.scenario.max_k, MAX_K),
        k_now=setup.sglang,
        prefill_first=setup.sglang,
        closed=load.concurrency is not None,
        window_from=window.first,
        window_to=window.last,
        overlap=overlaps(setup, spec),
        max_len=setup.source.max_len or UNBOUNDED_LEN,
    )
