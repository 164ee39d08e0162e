"""What a set of traces shows, in numbers that a table, a chart or JSON can hold.

Three views that must not be taken for one another: means over *positions* (every output position once),
means along the *walk* (the positions where a step of a fixed K would stand) and, for a recording of steps,
means over the *steps* that a server took.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.statistics import MIN_STEPS, walk_shape
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.acceptance.walk import oracle_walk, walk

SHOWN_K = (1, 2, 3, 5, 7, 10, 15, 20)
SPREAD_K = 3
"""K of the spread between requests (or the recorded K, where that is smaller)."""
SPREAD_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Floats = NDArray[np.float64]


def describe(traces: TraceSet) -> dict[str, dict[str, Any]]:
    """Per proposer: counts, censoring, acceptance by draft and by position, the walk at some K, and the
    spread between requests.

    A recording of steps (``seen``) has no walk: ``walk`` is empty and the means are over its steps. Values
    that cannot be measured are None.
    """
    return {name: _proposer(trace) for name, trace in traces.proposers.items()}


def complementarity(traces: TraceSet) -> list[dict[str, Any]]:
    """Per pair of proposers: how their first drafts do at the same positions, and what the better one brings.

    Over the positions of rows that are aligned for both and verified by both. ``independent_either`` is what
    ``either_accepted`` would be if the two did not depend on each other. Aliases make no pair.
    """
    distinct: dict[str, ProposerTrace] = {}
    for name, trace in traces.proposers.items():
        if all(trace is not other for other in distinct.values()):
            distinct[name] = trace
    pairs = (_pair(a, b, distinct[a], distinct[b]) for a, b in combinations(sorted(distinct), 2))
    return [pair for pair in pairs if pair is not None]


def _proposer(trace: ProposerTrace) -> dict[str, Any]:
    verified = _verified(trace)
    acc = trace.acc[verified].astype(np.int64)
    most = trace.recorded_k + 1 if trace.seen is None else trace.seen[verified]
    whole = trace.seen is None
    return {
        "requests": len(trace.output_len),
        "positions": int(np.sum(trace.output_len - 1)),
        "known_positions": len(acc),
        "recorded_k": trace.recorded_k,
        "aligned_rows": int(trace.aligned.sum()),
        "position_mean": _mean(acc) if whole else None,
        "step_mean": None if whole else _mean(acc),
        "censored_positions": int(np.count_nonzero((acc == most) & (acc > 1))),
        "unmatched_positions": None
        if trace.drafted is None
        else int(np.count_nonzero(trace.drafted[verified] == 0)),
        "by_draft": _by_draft(trace, verified),
        "by_position": _by_position(trace, verified),
        "walk": [_walk(trace, k) for k in SHOWN_K if k <= trace.recorded_k] if whole else [],
        "spread": _spread(trace) if whole else None,
    }


def _verified(trace: ProposerTrace) -> NDArray[np.bool_]:
    """Decode positions at which something is known."""
    known = np.ones(len(trace.acc), np.bool_) if trace.seen is None else trace.seen > 0
    known[trace.offsets[:-1]] = False
    return known


def _offered(trace: ProposerTrace, verified: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Drafts verified at each verified position."""
    if trace.seen is not None:
        return trace.seen[verified].astype(np.int64) - 1
    if trace.drafted is not None:
        return np.minimum(trace.drafted[verified].astype(np.int64), trace.recorded_k)
    return np.full(int(verified.sum()), trace.recorded_k, np.int64)


def _by_draft(trace: ProposerTrace, verified: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Acceptance by depth. Drafts that the output's end hides are not counted.

    ``reached``: draft d was verified and those before it were right; ``conditional``: the share of these
    whose draft d was right; ``marginal``: of all positions that verified a draft d, those whose drafts 1..d
    were.
    """
    acc = trace.acc[verified].astype(np.int64)
    left = np.repeat(trace.offsets[1:], trace.output_len) - np.arange(len(trace.acc))
    open_drafts = np.minimum(_offered(trace, verified), left[verified] - 1)
    rows = []
    for depth in range(1, trace.recorded_k + 1):
        had = open_drafts >= depth
        reached = int(np.count_nonzero(had & (acc >= depth)))
        accepted = int(np.count_nonzero(had & (acc > depth)))
        if not reached:
            break
        rows.append(
            {
                "draft": depth,
                "reached": reached,
                "accepted": accepted,
                "conditional": accepted / reached,
                "marginal": accepted / int(np.count_nonzero(had)),
            }
        )
    return rows


def _by_position(trace: ProposerTrace, verified: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Mean tokens of a step by output position, in bins that double: 1, 2-3, 4-7 ..."""
    position = np.arange(len(trace.acc)) - np.repeat(trace.offsets[:-1], trace.output_len)
    acc, position = trace.acc[verified].astype(np.int64), position[verified]
    bins = np.frexp(position.astype(np.float64))[1] - 1
    counts, tokens = np.bincount(bins), np.bincount(bins, acc)
    return [
        {
            "from": 2**b,
            "to": 2 ** (b + 1) - 1,
            "positions": int(counts[b]),
            "mean": float(tokens[b] / counts[b]),
        }
        for b in np.flatnonzero(counts).tolist()
    ]


def _walk(trace: ProposerTrace, k: int) -> dict[str, float | None]:
    stats, shape = walk(trace, k), walk_shape(trace, k)
    first = stats.accepted_by_depth[0] / stats.steps if stats.steps else float("nan")
    decode = _verified(trace)
    return {
        "k": k,
        "tokens_per_step": _finite(stats.acceptance_length),
        "position_tokens": _mean(np.minimum(trace.acc[decode].astype(np.int64), k + 1)),
        "drafted_per_step": _finite(stats.drafted_per_step),
        "first_accepted": _finite(float(first)),
        "oracle_drafted_per_step": _finite(oracle_walk(trace, k).drafted_per_step),
        "lag1": _finite(shape.lag1),
        "lag1_within": _finite(shape.lag1_within),
        "request_sd": _finite(shape.request_sd),
    }


def _spread(trace: ProposerTrace) -> dict[str, Any]:
    """Quantiles over requests (of at least 10 steps) of their own tokens per step of the walk."""
    k = min(SPREAD_K, trace.recorded_k)
    stats = walk(trace, k)
    long = stats.request_steps >= MIN_STEPS
    own = stats.request_tokens[long] / stats.request_steps[long]
    values = np.quantile(own, SPREAD_QUANTILES).tolist() if len(own) else [None] * len(SPREAD_QUANTILES)
    return {
        "k": k,
        "requests": len(own),
        "quantiles": {f"{q:g}": v for q, v in zip(SPREAD_QUANTILES, values, strict=True)},
    }


def _pair(a: str, b: str, one: ProposerTrace, two: ProposerTrace) -> dict[str, Any] | None:
    rows = np.flatnonzero(one.aligned & two.aligned & (one.output_len == two.output_len))
    first, second = _of_rows(one, rows), _of_rows(two, rows)
    both_known = first[1] & second[1]
    x, y = first[0][both_known], second[0][both_known]
    if not len(x):
        return None
    hit_x, hit_y = x > 1, y > 1
    share_x, share_y, both = float(hit_x.mean()), float(hit_y.mean()), float((hit_x & hit_y).mean())
    variance = share_x * (1 - share_x) * share_y * (1 - share_y)
    return {
        "proposers": [a, b],
        "requests": len(rows),
        "positions": len(x),
        "first_accepted": [share_x, share_y],
        "both_accepted": both,
        "either_accepted": share_x + share_y - both,
        "independent_either": share_x + share_y - share_x * share_y,
        "correlation": (both - share_x * share_y) / variance**0.5 if variance > 0 else None,
        "means": [float(x.mean()), float(y.mean())],
        "better_mean": float(np.maximum(x, y).mean()),
    }


def _of_rows(trace: ProposerTrace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Acceptance, and whether it is known, at every position of some requests."""
    chosen = np.zeros(len(trace.output_len), np.bool_)
    chosen[rows] = True
    keep = np.repeat(chosen, trace.output_len)
    return trace.acc[keep].astype(np.int64), _verified(trace)[keep]


def _mean(values: NDArray[np.int64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
