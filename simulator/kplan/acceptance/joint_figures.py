"""What two proposers do at the same positions: the figures a dependence is fitted on and judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.statistics import JUDGED_K, MIN_STEPS
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.acceptance.walk import walk
from kplan.errors import InputError

Rows = NDArray[np.int64]

OFFERED = (1, 3)
"""A lookup drafts where it offers at least so many, and the other proposer elsewhere."""
ELSE_K = (3, 7)
_SPREAD_K = 3


def aligned_rows(traces: TraceSet, one: str, two: str) -> Rows:
    """Rows in which both proposers were recorded on the same output, with a decode step.

    Raises:
        InputError: a proposer was not recorded, or one of them not at every position.
    """
    for name in (one, two):
        if name not in traces.proposers:
            raise InputError("proposer", name, f"the traces have {', '.join(sorted(traces.proposers))}")
        if traces.proposers[name].seen is not None:
            raise InputError(
                "trace", "a recording of steps", "a pair needs every position", "replay token ids"
            )
    a, b = traces.proposers[one], traces.proposers[two]
    return np.flatnonzero(a.aligned & b.aligned & (a.output_len == b.output_len) & (a.output_len > 1))


def pair_figures(pair: Mapping[str, ProposerTrace]) -> dict[str, float]:
    """Figures of two proposers over the same outputs.

    Returns:
        ``best K=k``: tokens per step of the walk that takes, step by step, the proposer which accepts more at
        k drafts; ``ngram>=n else eagle3 K=k``: of the walk that drafts with a lookup where it offers n or
        more, and with the other elsewhere; ``first drafts``: correlation over positions of "the first draft
        is accepted"; ``requests``: correlation over requests of steps per token at K=3.
    """
    (a, one), (b, two) = pair.items()
    most = min(one.recorded_k, two.recorded_k)
    best = _combined(one, np.maximum(one.acc, two.acc), most)
    figures = {f"best K={k}": walk(best, k).acceptance_length for k in JUDGED_K if k <= most}
    for name, lookup, other_name, other in ((a, one, b, two), (b, two, a, one)):
        if lookup.drafted is None:
            continue
        for n in OFFERED:
            chosen = _combined(one, np.where(lookup.drafted >= n, lookup.acc, other.acc), most)
            for k in (k for k in ELSE_K if k <= most):
                figures[f"{name}>={n} else {other_name} K={k}"] = walk(chosen, k).acceptance_length
    decode = np.ones(len(one.acc), np.bool_)
    decode[one.offsets[:-1]] = False
    figures["first drafts"] = _correlation(one.acc[decode] > 1, two.acc[decode] > 1)
    figures["requests"] = _request_correlation(one, two, min(_SPREAD_K, most))
    return figures


def _combined(one: ProposerTrace, acc: NDArray[np.uint8], most: int) -> ProposerTrace:
    return replace(one, acc=acc, drafted=None, recorded_k=most)


def _request_correlation(one: ProposerTrace, two: ProposerTrace, k: int) -> float:
    a, b = walk(one, k), walk(two, k)
    long = (a.request_steps >= MIN_STEPS) & (b.request_steps >= MIN_STEPS)
    tokens = np.maximum(a.request_tokens[long], 1)
    return _correlation(a.request_steps[long] / tokens, b.request_steps[long] / tokens)


def _correlation(x: NDArray[np.generic], y: NDArray[np.generic]) -> float:
    """NaN when either does not vary."""
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return float("nan")
    return float(np.corrcoef(x.astype(np.float64), y.astype(np.float64))[0, 1])
