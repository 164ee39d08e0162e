"""How well a trace model does: on what it was fitted on, and on the half of the requests it has not seen.

The halves are alike in length and in mean acceptance (every other request in that order), since what two
random halves of a few hundred requests differ by is as large as the bars a model is held to. How much random
halves differ is measured too: a bar below it is one that the recording cannot decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.columns import select, select_set
from kplan.acceptance.fit import LENGTH_BINS, MIN_REQUESTS, fit
from kplan.acceptance.fit_steps import fit_steps, known_steps
from kplan.acceptance.model import TraceModel
from kplan.acceptance.statistics import compare
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.rng import stream

REPEATS_TOKENS = 6_000_000
"""Positions generated for a comparison, so that the model's side adds no noise of its own."""
BARS = {"acceptance_length_error": 0.02, "lag1_error": 0.05, "request_sd_error": 0.15}
"""What a model's error on the half it has not seen may be: relative, absolute, relative."""
RANDOM_HALVES = 40
_SEED = 20_260_103

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Lenders:
    """Models by name that a recording of steps may borrow from; ``like``: the one it has to."""

    models: Mapping[str, TraceModel]
    like: str | None = None


_NONE = Lenders({})


def fit_judged(
    traces: TraceSet, proposer: str, *, keep_loopy: bool = False, holdout: bool = True, lent: Lenders = _NONE
) -> TraceModel:
    """Fit on all requests; the model's facts hold its errors on them and, with ``holdout``, those of a fit on
    one half against the other, what these two halves differ by, and what random halves do.

    Args:
        lent: what a recording of steps borrows from; not used for one of every position.

    Raises:
        InputError: see :func:`kplan.acceptance.fit.fit` and :func:`kplan.acceptance.fit_steps.fit_steps`.
    """

    def fitted(part: TraceSet, keep_loopy: bool) -> TraceModel:
        known = part.proposers.get(proposer)
        if known is None or known.seen is None:
            return fit(part, proposer, keep_loopy=keep_loopy)
        return fit_steps(part, proposer, lent.models, like=lent.like, keep_loopy=keep_loopy)

    model = fitted(traces, keep_loopy)
    trace = traces.proposers[proposer]
    kept = kept_rows(traces, keep_loopy) if trace.seen is None else known_steps(traces, proposer, keep_loopy)
    facts = {**model.facts, "in_sample": _errors(trace, kept, model)}
    if holdout and len(kept) >= 3 * MIN_REQUESTS:
        seen, unseen = halves(trace, kept)
        half = fitted(select_set(traces, seen), keep_loopy=True)
        facts["holdout"] = _errors(trace, unseen, half)
        facts["halves_differ"] = [_short(row) for row in compare(select(trace, unseen), select(trace, seen))]
        facts["random_halves_sd"] = _random_halves(trace, kept)
    return replace(model, facts=facts)


def kept_rows(traces: TraceSet, keep_loopy: bool = False) -> Rows:
    """Rows that a fit uses: all, or those without a loop."""
    if traces.loopy is None or keep_loopy:
        return np.arange(len(traces))
    return np.flatnonzero(~traces.loopy)


def halves(trace: ProposerTrace, rows: Rows) -> tuple[Rows, Rows]:
    """Two halves of ``rows`` alike in length and mean acceptance over positions, each in its old order.

    Requests are put in order of their quarter by length, then of mean acceptance; of each pair of neighbours
    one goes to either half, the lower of every other pair to the first.
    """
    mean = np.add.reduceat(trace.acc.astype(np.int64), trace.offsets[:-1])[rows] / trace.output_len[rows]
    length = trace.output_len[rows]
    edges = np.quantile(length, np.arange(1, LENGTH_BINS) / LENGTH_BINS)
    order = np.lexsort((mean, np.searchsorted(edges, length, side="right")))
    first = np.isin(np.arange(len(rows)) % 4, (0, 3))
    return rows[np.sort(order[first])], rows[np.sort(order[~first])]


def verdicts(facts: Mapping[str, Any]) -> list[str]:
    """A sentence for every bar that the model misses on the half it has not seen; none: it holds all.

    A miss is undecided where the error is within twice what random halves of the recording differ by.
    """
    noise = {row["k"]: row for row in facts.get("random_halves_sd", ())}
    found = []
    for row in facts.get("holdout", ()):
        for key, bar in BARS.items():
            error = row.get(key)
            if error is None or abs(error) <= bar:
                continue
            spread = noise.get(row["k"], {}).get(key, 0.0)
            undecided = f"; undecided, random halves differ by {spread:.3f} (1 SD)"
            name = key.removesuffix("_error").replace("_", " ")
            found.append(
                f"K={row['k']:.0f}: {name} is off by {error:+.3f}, more than {bar:g}"
                + (undecided if abs(error) <= 2 * spread else "")
            )
    return found


def _random_halves(trace: ProposerTrace, rows: Rows) -> list[dict[str, float]]:
    """Standard deviation, over RANDOM_HALVES random splits, of what the two halves differ by."""
    rng = stream(_SEED, "halves")
    splits = []
    for _ in range(RANDOM_HALVES):
        shuffled = rng.permutation(rows)
        middle = len(rows) // 2
        splits.append(compare(select(trace, shuffled[:middle]), select(trace, shuffled[middle:])))
    return [
        _finite({"k": at_k[0]["k"], **{key: float(np.std([row[key] for row in at_k])) for key in BARS}})
        for at_k in zip(*splits, strict=True)
    ]


def _errors(trace: ProposerTrace, rows: Rows, model: TraceModel) -> list[dict[str, float]]:
    real = select(trace, rows)
    copies = max(1, REPEATS_TOKENS // len(real.acc))
    return [_short(row) for row in compare(real, model.generate(_SEED, np.tile(real.output_len, copies)))]


def _short(row: dict[str, float]) -> dict[str, float]:
    return _finite({key: row[key] for key in ("k", "real_acceptance_length", *BARS)})


def _finite(row: dict[str, float]) -> dict[str, float]:
    """Rounded for the file; NaN (nothing to measure at that K) has no place in JSON."""
    return {key: round(value, 4) for key, value in row.items() if np.isfinite(value)}
