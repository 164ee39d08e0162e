"""State of one replica as flat arrays, shared by the compiled loop and the Python path.

Everything mutable lives in these arrays; a step reads them, prices itself, then commits. Counts are int64,
times are float64 seconds. Named index constants address the small counter arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

# counters (``Machine.counters``)
RUNNING = 0  # requests admitted and not finished
PREEMPTED = 1  # height of the preempted stack
ARRIVED = 2  # arrivals read from ``source`` ...
KNOWN = 3  # ... of those whose time is known
QUEUED = 4  # requests that ever entered the queue ...
ADMITTED = 5  # ... and how many of them left it: first come, first served
FUTURE = 6  # size of the heap of later arrivals
ISSUED = 7  # closed loop: requests that its clients have sent or decided to send
EXPECTED = 8  # requests this replica is to serve
FREE_BLOCKS = 9  # blocks that no request holds, those with cached prefixes included
FINISHED = 10
STEPS = 11
PREEMPTIONS = 12
DECODES = 13  # of the step being built: requests that decode ...
PREFILLS = 14  # ... and requests that bring a prompt chunk
SCHEDULED_TOKENS = 15
PEAK_BLOCKS = 16
CACHED = 17  # units of prefix that are kept though no request holds them
WINDOW_FROM = 18  # steps are measured while more than so many requests were admitted ...
WINDOW_TO = 19  # ... and at most so many
ENDED = 20  # requests that finished in the latest step
LOGGED = 21  # step records written since the log was last emptied
WINDOW_SPAN = 22  # requests that the window is expected to admit
SWITCHED = 23  # requests that changed their proposer for drafts that the coming step verifies
LAST_K = 24  # 1 + deepest draft that the latest step asked for, 0 before the first
COUNTERS = 25

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
W_SWITCHES = 13  # requests that changed their proposer
W_K_SWITCHES = 14  # steps that asked for another deepest draft than the step before
SUMS = 15

# the measured window in slices (``Machine.bins``), by the share of its requests that were admitted
BINS = 200
BIN_S = 0  # seconds
BIN_BATCH_S = 1  # batch x seconds
BIN_EMITTED = 2  # tokens emitted

REQUEST = np.dtype(
    [
        # what every step touches, on one cache line
        ("prompt_len", np.int32),
        ("output_len", np.int32),
        ("emitted", np.int32),
        ("computed", np.int32),  # tokens whose KV is in the cache
        ("blocks", np.int32),  # its own, beside those of prefixes that it shares
        ("shared", np.int32),
        ("units", np.int32),  # its units of prefix: how many, and how many are computed and seen to
        ("units_seen", np.int32),
        ("drafts", np.int32),  # drafts that its next decode step verifies
        ("steps", np.int32),  # decode steps, with the drafts verified in them and accepted
        ("proposed", np.int32),
        ("accepted", np.int32),
        ("trace_at", np.int64),  # its first position in the acceptance arrays
        ("unit_at", np.int64),  # and in the units
        # moments, NaN until they happen
        ("arrival_s", np.float64),
        ("admitted_s", np.float64),
        ("first_token_s", np.float64),
        ("finish_s", np.float64),
        ("think_s", np.float64),  # pause between the end of the request it waits for and its arrival
        ("follower", np.int64),  # the first request that waits for its end, -1 none ...
        ("sibling", np.int64),  # ... and the next that waits for the same end as it does, -1 none
        ("preempted", np.int32),
        ("cached", np.int32),  # prompt tokens that its first admission found in the cache
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

STEP = np.dtype(
    [
        ("start_s", np.float64),
        ("verify_s", np.float64),
        ("draft_s", np.float64),
        ("sampling_s", np.float64),
        ("overhead_s", np.float64),
        ("context", np.int64),  # sum over decoding requests
        ("switches", np.int64),  # requests whose drafts came from another proposer than their last ones
        ("batch", np.int32),  # requests in the step, of which ...
        ("decodes", np.int32),  # ... decoded
        ("tokens", np.int32),  # query tokens
        ("k", np.int32),  # deepest draft asked for
        ("proposed", np.int32),  # drafts verified, and accepted
        ("accepted", np.int32),
        ("emitted", np.int32),  # in all, and by the requests that decoded
        ("decode_emitted", np.int32),
        ("finished", np.int32),
        ("running", np.int32),  # when the step was built: admitted, waiting, and blocks in use
        ("waiting", np.int32),
        ("used_blocks", np.int32),
        ("preemptions", np.int32),  # so far
        ("measured", np.int32),  # 1 inside the measured window
    ],
    align=True,
)
"""One executed step, on demand."""

Requests: TypeAlias = Any
"""(n,) REQUEST records; a plain structured array, which numba takes fast. Replicas of a fleet share it."""
Rows: TypeAlias = Any
"""(max_num_seqs,) ROW records."""
Steps: TypeAlias = Any
"""(m,) STEP records."""


UNBOUNDED_LEN = 2**31 - 1
"""``Limits.max_len`` of a model without a longest context."""


class Machine(NamedTuple):
    """The queue, the running batch, the counters and the sums of one replica."""

    rows: Rows
    counters: I64  # (COUNTERS,)
    clock: F64  # (2,) seconds: now, and up to when arrivals are seen by a scheduler that runs a step ahead
    sums: F64  # (SUMS,) over the measured window
    k_steps: I64  # (max_k + 1,) decoding request-steps by drafts verified
    proposer: I64  # (max_num_seqs,) by row, the proposer that is to draft next, of several ...
    proposer_steps: I64  # ... (P,) and decoding request-steps that verified drafts of each
    batch_steps: I64  # (max_num_seqs + 1,) steps by batch size
    source: I64  # (n,) requests in order of arrival; of a closed loop, in order of issue
    queue: I64  # (n,) requests in order of admission; those from ADMITTED to QUEUED wait
    future: I64  # heap of requests that arrive later, earliest first; empty unless arrivals depend on ends
    ended: I64  # (max_num_seqs,) requests that finished in the latest step
    units: NDArray[np.int32]  # units of prefix of all requests, ``Requests.unit_at`` points into it
    held: U8  # (len(units),) 1 while the request shares that unit's blocks
    unit_state: I64  # (U + 1, 3) see kplan.engine.prefix
    log: Steps  # room for step records; none are written when it has none
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
    closed: bool  # the next request arrives when one finishes (closed loop) ...
    window_from: int  # requests admitted before the measured window opens
    window_to: int  # the window closes when more are admitted
    thinks: bool = False  # ... after a pause
    overlap: bool = False  # a step is scheduled while the one before it runs
    max_len: int = UNBOUNDED_LEN  # tokens of a request's prompt and output (max_model_len)
    unit_tokens: int = 0  # tokens of a unit of prefix; 0: no prefix cache


class Traces(NamedTuple):
    """Flat acceptance arrays that ``Requests.trace_at`` points into."""

    acc: U8
    drafted: U8  # drafts that the proposer has; empty when it always has as many as asked


class MixedTraces(NamedTuple):
    """Those of several proposers on the same requests, one behind the other.

    A request moves to the same position of another by ``apart`` for each that lies between. A type of its
    own: the loop of one proposer is compiled without what several need.
    """

    acc: U8
    drafted: U8  # drafts that each proposer has, ALWAYS: as many as asked
    apart: int  # positions of each


AnyTraces: TypeAlias = Traces | MixedTraces

ALWAYS = 255


def apart_of(traces: AnyTraces) -> int:
    """Positions of each of several proposers, 0 when there is one; compiled, a constant."""
    return traces.apart if isinstance(traces, MixedTraces) else 0


@overload(apart_of, inline="always")
def _apart_of(traces: Any) -> Any:
    def several(traces: Any) -> Any:
        return traces.apart

    def one(traces: Any) -> Any:  # noqa: ARG001 - the signature that it stands for
        return 0

    return several if "apart" in traces.fields else one
