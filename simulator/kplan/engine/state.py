"""State of one replica as flat arrays, shared by the compiled loop and the Python path.

Everything mutable lives in these arrays; a step reads them, prices itself, then commits. Counts are int64,
times are float64 seconds. Named index constants address the small counter arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

# counters (``Machine.counters``)
RUNNING = 0  # requests admitted and not finished
PREEMPTED = 1  # height of the preempted stack
NEXT_WAITING = 2  # first request never admitted
KNOWN = 3  # requests whose arrival time is known
FREE_BLOCKS = 4
FINISHED = 5
STEPS = 6
PREEMPTIONS = 7
DECODES = 8  # of the step being built: requests that decode ...
PREFILLS = 9  # ... and requests that bring a prompt chunk
SCHEDULED_TOKENS = 10
PEAK_BLOCKS = 11
COUNTERS = 12

# window sums (``Machine.sums``)
VERIFY_S = 0
DRAFT_S = 1
SAMPLING_S = 2
OVERHEAD_S = 3
W_STEPS = 4
W_BATCH = 5  # sum of batch sizes
W_DECODES = 6  # request-steps that decoded
W_EMITTED = 7  # tokens emitted, the first ones included
W_DECODE_EMITTED = 8  # tokens emitted by decoding request-steps
W_PROPOSED = 9
W_CONTEXT = 10  # sum of contexts over decoding request-steps
W_OPEN_S = 11
W_CLOSE_S = 12
SUMS = 13

# the measured window in slices (``Machine.bins``), by the share of its requests that were admitted
BINS = 200
BIN_S = 0  # seconds
BIN_BATCH_S = 1  # batch x seconds
BIN_EMITTED = 2  # tokens emitted

REQUEST = np.dtype(
    [
        ("prompt_len", np.int32),
        ("output_len", np.int32),
        ("emitted", np.int32),
        ("computed", np.int32),  # tokens whose KV is in the cache
        ("blocks", np.int32),
        ("drafts", np.int32),  # drafts that its next decode step verifies
        ("steps", np.int32),  # decode steps, with the drafts verified in them and accepted
        ("proposed", np.int32),
        ("accepted", np.int32),
        ("preempted", np.int32),
        ("trace_at", np.int64),  # its first position in the acceptance arrays
        ("arrival_s", np.float64),
        ("admitted_s", np.float64),  # NaN until it happens, as the two below
        ("first_token_s", np.float64),
        ("finish_s", np.float64),
    ],
    align=True,
)
"""One request. Records, not columns: a step touches most fields of few requests."""

ROW = np.dtype(
    [
        ("running", np.int64),  # request number, in order of admission
        ("chunk", np.int64),  # query tokens of the step being built, 0 = not scheduled
        ("decodes", np.int64),  # 1 when the request decodes in this step, 0 when it prefills
        ("proposed", np.int64),  # drafts that the latest step verified ...
        ("accepted", np.int64),  # ... and how many of them were right
        ("stack", np.int64),  # a stack of its own: preempted requests, the next to be admitted on top
    ]
)
"""One seat of the running batch."""

Requests: TypeAlias = Any
"""(n,) REQUEST records in order of arrival; a plain structured array, which numba takes fast."""
Rows: TypeAlias = Any
"""(max_num_seqs,) ROW records."""


class Machine(NamedTuple):
    """The running batch, the counters and the sums of one replica."""

    rows: Rows
    counters: I64  # (COUNTERS,)
    clock: F64  # (1,) seconds
    sums: F64  # (SUMS,) over the measured window
    k_steps: I64  # (max_k + 1,) decoding request-steps by drafts verified
    batch_steps: I64  # (max_num_seqs + 1,) steps by batch size
    bins: F64  # (BINS, 3) seconds, batch x seconds and tokens emitted, in slices of the measured window


class Limits(NamedTuple):
    """The engine's bounds and its flavour."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int
    total_blocks: int
    max_k: int
    k_now: bool  # K governs this step's drafts (SGLang); else the next step's (vLLM)
    prefill_first: bool  # a waiting prompt is run before and without decodes (SGLang); else mixed (vLLM)
    closed: bool  # the next request arrives when one finishes (closed loop)
    window_from: int  # first request of the measured window
    window_to: int  # the window closes when this request is admitted


class Traces(NamedTuple):
    """Flat acceptance arrays that ``Requests.trace_at`` points into."""

    acc: U8
    drafted: U8  # 255 where the proposer always has as many as asked


@dataclass(frozen=True)
class Load:
    """Requests handed to one replica.

    Attributes:
        arrival_s: (n,) sorted seconds; ignored in a closed loop.
        prompt_len, output_len: (n,) tokens, >= 1.
        trace_at: (n,) first position in ``traces``.
        traces: flat acceptance arrays.
        concurrency: clients of a closed loop, or None for an open one.
    """

    arrival_s: F64
    prompt_len: I64
    output_len: I64
    trace_at: I64
    traces: Traces
    concurrency: int | None = None

    def __len__(self) -> int:
        return len(self.prompt_len)


def new_requests(load: Load) -> Requests:
    """Fresh request rows for ``load``."""
    requests = np.zeros(len(load), REQUEST)
    for given in ("prompt_len", "output_len", "trace_at"):
        requests[given] = getattr(load, given)
    if load.concurrency is None:
        requests["arrival_s"] = load.arrival_s
    else:
        requests["arrival_s"] = np.inf
        requests["arrival_s"][: load.concurrency] = 0.0
    for moment in ("admitted_s", "first_token_s", "finish_s"):
        requests[moment] = np.nan
    return requests


def new_machine(load: Load, limits: Limits) -> Machine:
    """An idle replica; refuses requests that can never fit its KV cache.

    Raises:
        InputError: a request needs more KV tokens than the replica has.
    """
    seqs, ks = limits.max_num_seqs, limits.max_k + 1
    if len(load):
        largest = int(np.max(load.prompt_len + load.output_len)) + limits.max_k + 1
        capacity = limits.total_blocks * limits.block_tokens
        if largest > capacity:
            raise InputError(
                "request length", largest, f"the KV cache of one replica holds {capacity} tokens",
                "use more GPUs per replica (--tp), a shorter workload, or fewer drafts",
            )  # fmt: skip
    count = np.zeros(COUNTERS, np.int64)
    count[FREE_BLOCKS] = limits.total_blocks
    count[KNOWN] = len(load) if load.concurrency is None else min(load.concurrency, len(load))
    sums = np.zeros(SUMS)
    sums[W_OPEN_S] = sums[W_CLOSE_S] = np.nan

    def ints(n: int) -> I64:
        return np.zeros(n, np.int64)

    return Machine(
        rows=np.zeros(seqs, ROW),
        counters=count,
        clock=np.zeros(1),
        sums=sums,
        k_steps=ints(ks),
        batch_steps=ints(seqs + 1),
        bins=np.zeros((BINS, 3)),
    )
