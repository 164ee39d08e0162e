"""Fit of the dependence of two proposers by simulated moments, and how well it does on unseen requests.

The figures of :mod:`kplan.acceptance.joint_figures` are measured on the recording and on what the joint model
generates at the same output lengths. Both proposers' own models are fitted on the same rows, so that what the
dependence is fitted on holds none of their error on other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.columns import select, select_set
from kplan.acceptance.fit import MIN_REQUESTS, fit
from kplan.acceptance.joint import CANDIDATES, WINDOW, Dependence, JointModel
from kplan.acceptance.joint_figures import Rows, aligned_rows, pair_figures
from kplan.acceptance.judge import halves, kept_rows
from kplan.acceptance.model import TraceModel
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

Floats = NDArray[np.float64]

POSITIONS = 500_000
"""Positions generated to measure the figures during a fit."""
REPORTED_POSITIONS = 2_000_000
"""The same for the figures that are reported."""
DEPTHS = (1, 2, 4)
"""Depths tried; the one whose figures come closest is kept."""
_START = 0.7
_STEP = 0.15
_ROUNDS = 4
_AT_BOUND = 0.95
"""Share of matched windows above which twice the candidates are tried: matching alone falls short."""
_ERRORS = {"first drafts": 0.03, "requests": 0.1}
"""What counts as an error of 1: 1% of a walk's tokens per step, and so much of a correlation."""
_WALK_ERROR = 0.01
_SEED = 20_260_108


@dataclass(frozen=True)
class _Pair:
    """Recorded figures, and the models that are to reach them."""

    recorded: dict[str, float]
    models: Mapping[str, TraceModel]
    output_len: NDArray[np.int32]

    def figures(self, dependence: Dependence | None, positions: int) -> dict[str, float]:
        """Figures that the joint model generates; None: independent."""
        sample = np.resize(self.output_len, max(1, round(positions / float(self.output_len.mean()))))
        made = JointModel(self.models, () if dependence is None else (dependence,)).generate(_SEED, sample)
        return pair_figures(made)


def fit_pair(
    traces: TraceSet,
    one: str,
    two: str,
    *,
    models: Mapping[str, TraceModel] | None = None,
    keep_loopy: bool = False,
    holdout: bool = True,
) -> Dependence:
    """Fit how ``one`` and ``two`` depend on each other, on the rows that are aligned in both.

    A proposer that always drafts leads, else ``two``. Loopy rows are left out unless ``keep_loopy``. The
    facts hold the figures of the recording, of the fit and of independent models (``in_sample``); with
    ``holdout`` also those of a fit on one half of the requests against the other (``holdout``).

    Args:
        models: the proposers' models fitted on ``traces``, used where every row they rest on is aligned.

    Raises:
        InputError: one and the same proposer, one that was not recorded at every position, or fewer than 20
            such rows.
    """
    if one == two:
        raise InputError("--proposer", one, "two different proposers make a pair")
    kept = np.intersect1d(kept_rows(traces, keep_loopy), aligned_rows(traces, one, two))
    if len(kept) < MIN_REQUESTS:
        bound = f"at least {MIN_REQUESTS} of {one} and {two} on the same output are needed"
        raise InputError("requests", len(kept), bound, "record both on the same outputs")
    if traces.proposers[one].drafted is None and traces.proposers[two].drafted is not None:
        one, two = two, one
    whole = kept_rows(traces, keep_loopy)
    fitted_on_same = len(kept) == np.count_nonzero(traces.proposers[one].output_len[whole] > 1)
    own = {name: models[name] for name in (one, two)} if models is not None and fitted_on_same else None
    pair = _pair(traces, one, two, kept, own)
    dependence = _fitted(pair, Provenance(Kind.FITTED, traces.provenance.source, traces.provenance.note))
    facts: dict[str, Any] = {"requests": len(kept), "in_sample": _report(pair, dependence)}
    if holdout and len(kept) >= 3 * MIN_REQUESTS:
        seen, unseen = halves(traces.proposers[two], kept)
        half = _pair(traces, one, two, seen)
        fitted = _fitted(half, dependence.provenance)
        against = _recorded(traces, one, two, unseen)
        facts["holdout"] = _report(
            replace(half, recorded=against, output_len=_lengths(traces, one, unseen)), fitted
        )
        facts["halves_differ"] = {
            name: _short(half.recorded[name] - against[name]) for name in against if name in half.recorded
        }
    return replace(dependence, facts=facts)


def _pair(
    traces: TraceSet, one: str, two: str, rows: Rows, models: Mapping[str, TraceModel] | None = None
) -> _Pair:
    if models is None:
        chosen = select_set(traces, rows)
        models = {name: fit(chosen, name, keep_loopy=True) for name in (one, two)}
    return _Pair(_recorded(traces, one, two, rows), models, _lengths(traces, one, rows))


def _recorded(traces: TraceSet, one: str, two: str, rows: Rows) -> dict[str, float]:
    figures = pair_figures({name: select(traces.proposers[name], rows) for name in (one, two)})
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def _lengths(traces: TraceSet, one: str, rows: Rows) -> NDArray[np.int32]:
    return traces.proposers[one].output_len[rows]


def _fitted(pair: _Pair, provenance: Provenance) -> Dependence:
    """The dependence whose figures come closest: least squares over both shares, at each depth."""
    from scipy.optimize import least_squares

    follower, leader = pair.models
    scale = np.array([_ERRORS.get(name, _WALK_ERROR * value) for name, value in pair.recorded.items()])
    wanted = np.array(list(pair.recorded.values()))

    def closest(candidates: int, depth: int, start: float) -> tuple[Dependence, float]:
        def of(shares: Floats) -> Dependence:
            by_class, by_window = np.clip(shares, 0.0, 1.0).round(3).tolist()
            return Dependence(leader, follower, by_class, by_window, WINDOW, candidates, depth, provenance)

        def miss(shares: Floats) -> Floats:
            made = pair.figures(of(shares), POSITIONS)
            reached = np.array([made[name] for name in pair.recorded], np.float64)
            return np.asarray(np.nan_to_num(reached - wanted) / scale, np.float64)

        found = least_squares(
            miss, np.full(2, start), bounds=(0.0, 1.0), diff_step=_STEP, max_nfev=_ROUNDS, xtol=0.01
        )
        return of(found.x), float(found.cost)

    best, least = min((closest(CANDIDATES, depth, _START) for depth in DEPTHS), key=lambda one: one[1])
    if best.window_share > _AT_BOUND:
        better, cost = closest(2 * CANDIDATES, best.depth, best.window_share - _STEP / 2)
        best = better if cost < least else best
    return best


def _report(pair: _Pair, dependence: Dependence) -> list[dict[str, Any]]:
    made = pair.figures(dependence, REPORTED_POSITIONS)
    apart = pair.figures(None, REPORTED_POSITIONS)
    return [
        {
            "figure": name,
            "recorded": _short(value),
            "model": _short(made[name]),
            "independent": _short(apart[name]),
        }
        for name, value in pair.recorded.items()
    ]


def _short(value: float) -> float:
    return round(value, 4)
