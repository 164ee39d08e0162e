"""The requests of a fleet, and the fresh arrays that serve them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kplan.engine.state import (
    BINS,
    COUNTERS,
    EXPECTED,
    F64,
    FREE_BLOCKS,
    FUTURE,
    I64,
    ISSUED,
    KNOWN,
    REQUEST,
    ROW,
    STEP,
    SUMS,
    W_CLOSE_S,
    W_OPEN_S,
    WINDOW_FROM,
    WINDOW_SPAN,
    WINDOW_TO,
    AnyTraces,
    Limits,
    Machine,
    Requests,
)
from kplan.errors import InputError
from kplan.jit import records
from kplan.workload import Prefix


@dataclass(frozen=True)
class Load:
    """Requests handed to a fleet.

    Attributes:
        arrival_s: (n,) sorted seconds; of a request that waits for another's end, the earliest moment.
            Ignored in a closed loop.
        prompt_len, output_len: (n,) tokens, >= 1.
        trace_at: (n,) first position in ``traces``.
        traces: flat acceptance arrays.
        proposers: their names, in order; ``trace_at`` points into the last.
        concurrency: clients of a closed loop, or None for an open one.
        think_s: (n,) pause before the request, after the end it waits for; None: no pause.
        follows: (n,) lower index of the request whose end it waits for, -1 none; None: none waits.
        prefix: what the requests' beginnings share, None: nothing.
    """

    arrival_s: F64
    prompt_len: I64
    output_len: I64
    trace_at: I64
    traces: AnyTraces
    concurrency: int | None = None
    think_s: F64 | None = None
    follows: I64 | None = None
    prefix: Prefix | None = None
    proposers: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.prompt_len)

    @property
    def thinks(self) -> bool:
        """Clients of the closed loop pause between two requests."""
        return self.concurrency is not None and self.think_s is not None and bool(self.think_s.any())


def new_requests(load: Load) -> Requests:
    """Fresh request rows for ``load``."""
    requests = records(len(load), REQUEST)
    for given in ("prompt_len", "output_len", "trace_at"):
        requests[given] = getattr(load, given)
    requests["arrival_s"] = load.arrival_s if load.concurrency is None else np.inf
    requests["follower"] = requests["sibling"] = -1
    if load.think_s is not None:
        requests["think_s"] = load.think_s
    if load.follows is not None:
        waits = np.flatnonzero(load.follows >= 0)
        waits = waits[np.argsort(load.follows[waits], kind="stable")]
        parents, first = np.unique(load.follows[waits], return_index=True)
        requests["follower"][parents] = waits[first]
        same = load.follows[waits[1:]] == load.follows[waits[:-1]]
        requests["sibling"][waits[:-1][same]] = waits[1:][same]
    if load.prefix is not None:
        requests["unit_at"] = load.prefix.offsets[:-1]
        requests["units"] = np.diff(load.prefix.offsets)
    for moment in ("admitted_s", "first_token_s", "finish_s"):
        requests[moment] = np.nan
    return requests


def clients_of(concurrency: int, replicas: int, number: int) -> int:
    """Of ``concurrency`` clients of a closed loop, those bound to replica ``number`` of ``replicas``."""
    return len(range(number, concurrency, replicas))


MOST_DRAFTED = 2**31 - 1
"""What ``REQUEST.proposed`` holds: a step drafts ``max_k`` at most and emits a token at least."""


def check_fits(load: Load, limits: Limits) -> None:
    """Refuse what can never be served.

    Raises:
        InputError: a request needs more KV tokens than the replica has, is longer than the engine allows, or
            may draft more than is counted;
            a unit of prefix is not made of whole blocks; requests of a closed loop wait for others.
    """
    if load.concurrency is not None and load.follows is not None:
        raise InputError(
            "concurrency", load.concurrency, "requests that wait for another's end come by themselves",
            "serve them in an open loop, or drop their sessions",
        )  # fmt: skip
    if limits.unit_tokens % limits.block_tokens:
        raise InputError(
            "unit of prefix", limits.unit_tokens, f"must be whole blocks of {limits.block_tokens} tokens",
            "describe the prefixes in units of that size",
        )  # fmt: skip
    if not len(load):
        return
    longest = int(np.max(load.prompt_len + load.output_len))
    if longest > limits.max_len:
        raise InputError(
            "request length", longest, f"the engine allows {limits.max_len} tokens",
            "raise max_model_len, or use a shorter workload",
        )  # fmt: skip
    drafted = int(np.max(load.output_len)) * limits.max_k
    if drafted > MOST_DRAFTED:
        raise InputError(
            "output length", int(np.max(load.output_len)),
            f"at K = {limits.max_k} one request may draft {drafted} tokens, and {MOST_DRAFTED} are counted",
            "lower --max-k, or end requests earlier (--max-model-len)",
        )  # fmt: skip
    largest = longest + limits.max_k + 1
    capacity = limits.total_blocks * limits.block_tokens
    if largest > capacity:
        raise InputError(
            "request length", largest, f"the KV cache of one replica holds {capacity} tokens",
            "use more GPUs per replica (--tp), fewer drafts, or end requests earlier (--max-model-len)",
        )  # fmt: skip


def new_machine(
    requests: Requests,
    load: Load,
    limits: Limits,
    mine: I64 | None = None,
    clients: int | None = None,
    log_steps: int = 0,
) -> Machine:
    """An idle replica.

    Args:
        requests: shared by all replicas; the arrival times of a closed loop's first requests are set.
        mine: requests that this replica serves, in order of arrival; None: it is handed them one by one.
        clients: of a closed loop, bound to this replica; None: all of them.
        log_steps: room for step records.
    """
    seqs, ks, n = limits.max_num_seqs, limits.max_k + 1, len(load)
    count = np.zeros(COUNTERS, np.int64)
    count[FREE_BLOCKS] = limits.total_blocks
    count[WINDOW_FROM], count[WINDOW_TO] = limits.window_from, limits.window_to
    count[WINDOW_SPAN] = max(1, limits.window_to - limits.window_from)
    source = np.zeros(n, np.int64) if mine is None else mine.astype(np.int64)
    waits = load.follows is not None or limits.thinks
    future = np.zeros(n if waits and mine is not None else 0, np.int64)
    if mine is not None:
        count[EXPECTED] = len(mine)
        if limits.closed:
            first = source[: load.concurrency if clients is None else clients]
            count[ISSUED] = len(first)
            requests["arrival_s"][first] = requests["think_s"][first] if limits.thinks else 0.0
            if limits.thinks:
                count[FUTURE] = len(first)
                future[: len(first)] = first[np.argsort(requests["arrival_s"][first], kind="stable")]
            else:
                count[KNOWN] = len(first)
        else:
            source = source if load.follows is None else source[load.follows[source] < 0]
            count[KNOWN] = len(source)
    sums = np.zeros(SUMS)
    sums[W_OPEN_S] = sums[W_CLOSE_S] = np.nan
    prefix = load.prefix if limits.unit_tokens > 0 else None
    units = np.zeros(0, np.int32) if prefix is None else prefix.ids
    distinct = int(units.max(initial=-1)) + 1
    unit_state = np.zeros((distinct + 1, 3), np.int64)
    unit_state[distinct] = distinct  # an empty ring

    def ints(n: int) -> I64:
        return np.zeros(n, np.int64)

    return Machine(
        rows=records(seqs, ROW),
        counters=count,
        clock=np.zeros(2),
        sums=sums,
        k_steps=ints(ks),
        proposer=np.full(seqs, len(load.proposers) - 1),
        proposer_steps=ints(len(load.proposers)),
        batch_steps=ints(seqs + 1),
        bins=np.zeros((BINS, 3)),
        source=source,
        queue=ints(n if mine is None else len(mine)),
        future=future,
        ended=ints(seqs),
        units=units,
        held=np.zeros(len(units), np.uint8),
        unit_state=unit_state,
        log=records(log_steps, STEP),
    )
