"""Walks over a trace: what a fixed K, or an oracle, would have emitted step by step.

One rule for all: ``c = 1; while c < output_len: c += min(acc[c], K + 1, output_len - c)``, where the drafts
verified at ``c`` are ``min(K, drafted[c])``. The walk visits positions unevenly, so its acceptance is not the
mean over positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.trace import MAX_K, ProposerTrace, need_every_position
from kplan.errors import InputError

_EMPTY = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True)
class WalkStats:
    """Counts of a walk over every request of a trace. Ratios are properties, from the counts.

    Attributes:
        requests: requests walked, those of one output token included (they have no decode step).
        steps: decode steps.
        tokens: output tokens of those steps (the prefill's first token is not among them).
        drafted: drafts verified.
        accepted: drafts that were emitted = tokens - steps.
        drafted_by_depth: (K,) int64, steps that verified a draft at depth d + 1.
        accepted_by_depth: (K,) int64, steps whose draft at depth d + 1 was accepted.
        request_steps: (n,) int64, decode steps of each request.
        request_tokens: (n,) int64, tokens of those steps.
    """

    requests: int
    steps: int
    tokens: int
    drafted: int
    accepted: int
    drafted_by_depth: NDArray[np.int64]
    accepted_by_depth: NDArray[np.int64]
    request_steps: NDArray[np.int64]
    request_tokens: NDArray[np.int64]

    @property
    def acceptance_length(self) -> float:
        """Tokens per decode step, bonus included; NaN when no request has a decode step."""
        return self.tokens / self.steps if self.steps else float("nan")

    @property
    def drafted_per_step(self) -> float:
        """Drafts verified per decode step; NaN when there is none."""
        return self.drafted / self.steps if self.steps else float("nan")


def walk(trace: ProposerTrace, k: int) -> WalkStats:
    """Walk every request with ``k`` drafts asked for in every step.

    Above ``trace.recorded_k`` the trace is censored, and the tokens counted are a lower bound.

    Raises:
        InputError: ``k`` is not in 0..254.
    """
    check_k(k)
    return _stats(trace, k, oracle=False)


def oracle_walk(trace: ProposerTrace, max_k: int) -> WalkStats:
    """Walk with exactly as many drafts as will be accepted, at most ``max_k``: no draft is wasted.

    Raises:
        InputError: as in :func:`walk`.
    """
    check_k(max_k)
    return _stats(trace, max_k, oracle=True)


def step_tokens(trace: ProposerTrace, max_k: int) -> NDArray[np.float64]:
    """(max_k + 1,) mean tokens per decode step of the walk at each fixed K; entry 0 is 1.

    Raises:
        InputError: as in :func:`walk`, or no request has a decode step.
    """
    check_k(max_k)
    if not np.any(trace.output_len > 1):
        raise InputError(
            "trace", "no request with 2 output tokens", "a decode step is needed", "use longer outputs"
        )
    means = [_stats(trace, k, oracle=False).acceptance_length for k in range(1, max_k + 1)]
    return np.array([1.0, *means])


def check_k(k: int) -> None:
    """Raise InputError unless ``k`` is in 0..254."""
    if not 0 <= k <= MAX_K:
        raise InputError("K", k, f"0..{MAX_K} is accepted")


def _stats(trace: ProposerTrace, k: int, *, oracle: bool) -> WalkStats:
    need_every_position(trace, "a walk")
    has_drafted = trace.drafted is not None
    drafted = trace.drafted if trace.drafted is not None else _EMPTY
    totals = _walk(trace.output_len, trace.offsets, trace.acc, drafted, has_drafted, k, oracle)
    drafted_by_depth, accepted_by_depth, request_steps, request_tokens = totals
    steps, tokens = int(request_steps.sum()), int(request_tokens.sum())
    return WalkStats(
        requests=len(trace.output_len),
        steps=steps,
        tokens=tokens,
        drafted=int(drafted_by_depth.sum()),
        accepted=tokens - steps,
        drafted_by_depth=drafted_by_depth,
        accepted_by_depth=accepted_by_depth,
        request_steps=request_steps,
        request_tokens=request_tokens,
    )


@njit(cache=True)
def _walk(
    output_len: NDArray[np.int32],
    offsets: NDArray[np.int64],
    acc: NDArray[np.uint8],
    drafted: NDArray[np.uint8],
    has_drafted: bool,
    k: int,
    oracle: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Counts by depth (K,) and by request (n,). uint8 is widened before any sum."""
    n = len(output_len)
    verified_at = np.zeros(k + 1, np.int64)
    emitted_at = np.zeros(k + 1, np.int64)
    request_steps = np.zeros(n, np.int64)
    request_tokens = np.zeros(n, np.int64)
    for r in range(n):
        start, length = offsets[r], int(output_len[r])
        c, steps = 1, 0
        while c < length:
            emitted = int(min(int(acc[start + c]), k + 1, length - c))
            if oracle:
                verified = emitted - 1
            elif has_drafted:
                verified = int(min(int(drafted[start + c]), k))
            else:
                verified = k
            verified_at[verified] += 1
            emitted_at[emitted - 1] += 1
            c += emitted
            steps += 1
        request_steps[r] = steps
        request_tokens[r] = length - 1
    # Steps with exactly d drafts -> steps with at least d drafts.
    for d in range(k - 1, -1, -1):
        verified_at[d] += verified_at[d + 1]
        emitted_at[d] += emitted_at[d + 1]
    return verified_at[1:], emitted_at[1:], request_steps, request_tokens
