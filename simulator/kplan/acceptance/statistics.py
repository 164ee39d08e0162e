"""What a trace looks like along the walk: the numbers a fitted model is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.trace import MAX_K, ProposerTrace, need_every_position
from kplan.acceptance.walk import check_k

JUDGED_K = (1, 3, 5, 7)
MIN_STEPS = 10


@dataclass(frozen=True)
class WalkShape:
    """Shape of the walk at one K.

    Attributes:
        k: drafts asked for.
        acceptance_length: tokens per decode step over all steps.
        lag1: autocorrelation of the tokens of neighbouring steps of a request, about the overall mean (so it
            holds what differs between requests as well as persistence within one).
        lag1_within: the same about each request's own mean.
        request_sd: standard deviation over requests (of at least 10 steps) of their own acceptance length.
    """

    k: int
    acceptance_length: float
    lag1: float
    lag1_within: float
    request_sd: float


@dataclass(frozen=True)
class Steps:
    """Decode steps of a walk, request by request.

    Attributes:
        requests: requests walked.
        tokens: (s,) tokens emitted, bonus included.
        offered: (s,) drafts verified: those asked for, or as many as a lookup had.
        verified: (s,) of these, those that the output's end does not hide.
        request: (s,) row of the request.
        last: (s,) the request's last step, which the output's end may cut.
    """

    requests: int
    tokens: NDArray[np.int64]
    offered: NDArray[np.int64]
    verified: NDArray[np.int64]
    request: NDArray[np.int64]
    last: NDArray[np.bool_]

    @property
    def acceptance_length(self) -> float:
        """Tokens per step; NaN without a step."""
        return float(self.tokens.mean()) if len(self.tokens) else float("nan")

    def by_depth(self, depths: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(depths,) drafts accepted, and (depths,) drafts reached: verified, and those before accepted."""
        depth = np.arange(1, depths + 1)[:, None]
        reached = (self.verified >= depth) & (self.tokens >= depth)
        return (reached & (self.tokens > depth)).sum(axis=1), reached.sum(axis=1)


def walk_steps(trace: ProposerTrace, k: int | NDArray[np.uint8]) -> Steps:
    """The steps taken when ``k`` drafts are asked for: one K, or (positions,) of a K for each position.

    Fewer positions than the trace has are repeated, as for copies of the same requests. Of one K these are
    the steps that :func:`kplan.acceptance.walk` counts: the accepted drafts of a step are its tokens but one.

    Raises:
        InputError: ``k`` is not in 0..254.
    """
    if isinstance(k, int):
        check_k(k)
    asked = np.resize(np.asarray(k, np.uint8), len(trace.acc))
    offered = asked if trace.drafted is None else np.minimum(trace.drafted, asked)
    walked = _steps(trace.acc, offered, asked, trace.offsets, trace.output_len)
    return Steps(len(trace.output_len), *walked)


def recorded_k_at(trace: ProposerTrace) -> NDArray[np.uint8]:
    """(positions,) drafts asked for at each position of a recording of steps, each of them known.

    Of a head: those of the step that covers the position. A lookup may have had fewer to offer than it was
    asked for, so it is taken to be asked for the K of the recording throughout.
    """
    assert trace.seen is not None
    if trace.drafted is not None:
        return np.full(len(trace.acc), trace.recorded_k, np.uint8)
    step = np.maximum.accumulate(np.where(trace.seen > 0, np.arange(len(trace.seen)), 0))
    return np.asarray(np.maximum(trace.seen[step], 1) - 1, np.uint8)


def walk_shape(trace: ProposerTrace, k: int) -> WalkShape:
    """Measure the walk at ``k``; NaN where there is nothing to measure.

    Raises:
        InputError: a recording of steps, whose walk at another K is not known.
    """
    need_every_position(trace, "a walk")
    return shape_of(walk_steps(trace, min(k, MAX_K)), k)


def shape_of(steps: Steps, k: int) -> WalkShape:
    """The shape of any walk. The last step of a request, which the output's end may cut, counts for the
    acceptance length alone."""
    mean = steps.acceptance_length
    tokens, rows = steps.tokens[~steps.last].astype(np.float64), steps.request[~steps.last]
    if len(tokens) < 2:
        return WalkShape(k, mean, float("nan"), float("nan"), float("nan"))
    counts = np.bincount(rows, minlength=steps.requests)
    own = np.bincount(rows, tokens, steps.requests) / np.maximum(counts, 1)
    long = own[counts >= MIN_STEPS]
    same = rows[1:] == rows[:-1]
    return WalkShape(
        k=k,
        acceptance_length=mean,
        lag1=_lag1(tokens - tokens.mean(), same),
        lag1_within=_lag1(tokens - own[rows], same),
        request_sd=float(long.std(ddof=1)) if len(long) > 1 else float("nan"),
    )


def compare(real: ProposerTrace, model: ProposerTrace) -> list[dict[str, float]]:
    """Model against recording at K = 1, 3, 5, 7: both shapes and the three errors that issue a verdict.

    A recording of steps is compared along its own walk alone, with the drafts that its steps were asked for;
    ``model`` then holds its requests one or several times, or is a recording of steps too.
    """
    return [_errors(a, b) for a, b in _shapes(real, model)]


def _shapes(real: ProposerTrace, model: ProposerTrace) -> Iterator[tuple[WalkShape, WalkShape]]:
    if real.seen is not None:
        asked, k = recorded_k_at(real), real.recorded_k
        other = asked if model.seen is None else recorded_k_at(model)
        yield shape_of(walk_steps(real, asked), k), shape_of(walk_steps(model, other), k)
        return
    for k in JUDGED_K:
        if k <= min(real.recorded_k, model.recorded_k):
            yield walk_shape(real, k), walk_shape(model, k)


def _errors(real: WalkShape, model: WalkShape) -> dict[str, float]:
    return {
        "k": float(real.k),
        **{f"real_{name}": value for name, value in asdict(real).items() if name != "k"},
        **{f"model_{name}": value for name, value in asdict(model).items() if name != "k"},
        "acceptance_length_error": model.acceptance_length / real.acceptance_length - 1.0,
        "lag1_error": model.lag1 - real.lag1,
        "request_sd_error": model.request_sd / real.request_sd - 1.0 if real.request_sd > 0 else float("nan"),
    }


def _lag1(deviation: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    variance = float((deviation * deviation).mean())
    if variance <= 0.0 or not same.any():
        return float("nan")
    return float((deviation[:-1] * deviation[1:])[same].mean()) / variance


@njit(cache=True)
def _steps(
    acc: NDArray[np.uint8],
    offered: NDArray[np.uint8],
    asked: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    output_len: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens, drafts, those not hidden, request and "is the last one" of every decode step."""
    most = 0
    for r in range(len(output_len)):
        most += output_len[r]
    tokens = np.empty(most, np.int64)
    drafts = np.empty(most, np.int64)
    verified = np.empty(most, np.int64)
    request = np.empty(most, np.int64)
    last = np.zeros(most, np.bool_)
    n = 0
    for r in range(len(output_len)):
        c, length = 1, int(output_len[r])
        while c < length:
            at = offsets[r] + c
            emitted = min(int(acc[at]), int(asked[at]) + 1, length - c)
            tokens[n], drafts[n], request[n] = emitted, offered[at], r
            verified[n] = min(int(offered[at]), length - c - 1)
            c += emitted
            last[n] = c >= length
            n += 1
    return tokens[:n].copy(), drafts[:n].copy(), verified[:n].copy(), request[:n].copy(), last[:n].copy()
