"""What a set of traces shows, in numbers that a table or JSON can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from kplan.acceptance.statistics import walk_shape
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.acceptance.walk import oracle_walk, walk

SHOWN_K = (1, 2, 3, 5, 7, 10, 15, 20)


def describe(traces: TraceSet) -> dict[str, dict[str, Any]]:
    """Per proposer: counts, means over positions (not the walk's), censoring, and the walk at some K.

    Values that cannot be measured are None.
    """
    return {name: _proposer(trace) for name, trace in traces.proposers.items()}


def _proposer(trace: ProposerTrace) -> dict[str, Any]:
    decode = np.ones(len(trace.acc), np.bool_)
    decode[trace.offsets[:-1]] = False
    acc = trace.acc[decode].astype(np.int64)
    return {
        "requests": len(trace.output_len),
        "positions": len(acc),
        "recorded_k": trace.recorded_k,
        "aligned_rows": int(trace.aligned.sum()),
        "position_mean": _finite(float(acc.mean()) if len(acc) else float("nan")),
        "censored_positions": int(np.count_nonzero(acc == trace.recorded_k + 1)),
        "unmatched_positions": None
        if trace.drafted is None
        else int(np.count_nonzero(trace.drafted[decode] == 0)),
        "walk": [_walk(trace, k) for k in SHOWN_K if k <= trace.recorded_k],
    }


def _walk(trace: ProposerTrace, k: int) -> dict[str, float | None]:
    stats, shape = walk(trace, k), walk_shape(trace, k)
    first = stats.accepted_by_depth[0] / stats.steps if stats.steps else float("nan")
    return {
        "k": k,
        "tokens_per_step": _finite(stats.acceptance_length),
        "drafted_per_step": _finite(stats.drafted_per_step),
        "first_accepted": _finite(float(first)),
        "oracle_drafted_per_step": _finite(oracle_walk(trace, k).drafted_per_step),
        "lag1": _finite(shape.lag1),
        "request_sd": _finite(shape.request_sd),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
