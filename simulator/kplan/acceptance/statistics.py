"""What a trace looks like along the walk: the numbers a fitted model is judged by."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.trace import ProposerTrace

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


def walk_shape(trace: ProposerTrace, k: int) -> WalkShape:
    """Measure the walk at ``k``; NaN where there is nothing to measure. The last step of a request, which the
    output's end may cut, counts for the acceptance length alone."""
    tokens, request, last = _steps(trace.acc, trace.offsets, trace.output_len, k)
    mean = float(tokens.mean()) if len(tokens) else float("nan")
    tokens_f, rows = tokens[~last].astype(np.float64), request[~last]
    if len(tokens_f) < 2:
        return WalkShape(k, mean, float("nan"), float("nan"), float("nan"))
    counts = np.bincount(rows, minlength=len(trace.output_len))
    own = np.bincount(rows, tokens_f, len(trace.output_len)) / np.maximum(counts, 1)
    long = own[counts >= MIN_STEPS]
    same = rows[1:] == rows[:-1]
    return WalkShape(
        k=k,
        acceptance_length=mean,
        lag1=_lag1(tokens_f - tokens_f.mean(), same),
        lag1_within=_lag1(tokens_f - own[rows], same),
        request_sd=float(long.std(ddof=1)) if len(long) > 1 else float("nan"),
    )


def compare(real: ProposerTrace, model: ProposerTrace) -> list[dict[str, float]]:
    """Model against recording at K = 1, 3, 5, 7: both shapes and the three errors that issue a verdict."""
    rows: list[dict[str, float]] = []
    for k in JUDGED_K:
        if k > min(real.recorded_k, model.recorded_k):
            break
        a, b = walk_shape(real, k), walk_shape(model, k)
        rows.append(
            {
                "k": float(k),
                **{f"real_{name}": value for name, value in asdict(a).items() if name != "k"},
                **{f"model_{name}": value for name, value in asdict(b).items() if name != "k"},
                "acceptance_length_error": b.acceptance_length / a.acceptance_length - 1.0,
                "lag1_error": b.lag1 - a.lag1,
                "request_sd_error": b.request_sd / a.request_sd - 1.0 if a.request_sd > 0 else float("nan"),
            }
        )
    return rows


def _lag1(deviation: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    variance = float((deviation * deviation).mean())
    if variance <= 0.0 or not same.any():
        return float("nan")
    return float((deviation[:-1] * deviation[1:])[same].mean()) / variance


@njit(cache=True)
def _steps(
    acc: NDArray[np.uint8], offsets: NDArray[np.int64], output_len: NDArray[np.int32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Tokens, request and "is the last one" of every decode step."""
    most = 0
    for r in range(len(output_len)):
        most += output_len[r]
    tokens = np.empty(most, np.int64)
    request = np.empty(most, np.int64)
    last = np.zeros(most, np.bool_)
    n = 0
    for r in range(len(output_len)):
        c, length = 1, int(output_len[r])
        while c < length:
            emitted = min(int(acc[offsets[r] + c]), k + 1, length - c)
            tokens[n], request[n] = emitted, r
            c += emitted
            last[n] = c >= length
            n += 1
    return tokens[:n].copy(), request[:n].copy(), last[:n].copy()
