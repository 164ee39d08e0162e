"""Fit a few physical coefficients on measured steps, beginning at a base calibration.

Which ones are free is decided by what the rows tell. Beforehand a coefficient is known to a factor only (its
``width``, in log). With S the (n, c) changes of log seconds per width of each coefficient, and noise s, the
part of that ignorance which the rows leave of coefficient j is the square root of entry jj of
(S'S / s^2 + I)^-1: how strongly the rows show it, and what they confound it with, are both in it. Rows of one
setting count as one row: the noise is mostly the model's own error there, which no repetition averages out.
Coefficients of which more than ``LEFT`` remains stay the base's. One that ends at a bound is held there and
the others are judged anew; one whose standard error after the fit exceeds ``LOOSE`` is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from kplan.errors import InputError
from kplan.latency.fit_coefficients import Coefficient, coefficients
from kplan.latency.fit_figures import figures_of, fitted, with_figures
from kplan.latency.observed import Observation, Predictor, Served, repeats
from kplan.profiles import Calibration
from kplan.provenance import Figure

Array = NDArray[np.float64]

NOISE = 0.03
"""Relative error taken for a setting when the coefficients are judged before any fit (a repeated benchmark
agrees to 2 or 3%, and so does the model with it)."""

LEFT = 0.35
"""Share of the first ignorance above which rows do not identify a coefficient."""

LOOSE = 0.35
"""Standard error (in log) above which a fitted coefficient is given up."""

OUTLIER_SCALE = 0.05
STEP = 0.02
MIN_ROWS = 3
TOLERANCE = 1e-6


@dataclass(frozen=True)
class InSituFit:
    """A calibration fitted on measured steps.

    Attributes:
        paths: figures that were fitted.
        names: coefficients that were free.
        notes: one sentence per coefficient that the rows do not identify.
        predicted: (n,) seconds, in the order of the rows.
    """

    calibration: Calibration
    paths: frozenset[str]
    names: tuple[str, ...]
    notes: tuple[str, ...]
    predicted: Array


@dataclass
class _State:
    """Log factors of all candidates, and which of them are held where they are (by index)."""

    at: Array
    pinned: set[int]
    dropped: set[int]
    free: list[int]
    error: Array


def fit_in_situ(
    served: Served,
    base: Calibration,
    rows: Sequence[Observation],
    held: frozenset[str] = frozenset(),
    *,
    partial: bool = False,
) -> InSituFit:
    """Fit what ``rows`` identify.

    Args:
        held: paths that other measurements gave and that stay.
        partial: keep the base's figure where the rows do not tell a coefficient that the GPU needs.

    Raises:
        InputError: too few rows, or, unless ``partial``, rows without a regime, which it names.
    """
    if len(rows) < MIN_ROWS:
        raise InputError("measured rows", len(rows), f"at least {MIN_ROWS} are needed", "add measurements")
    candidates = coefficients(served, base, rows, held)
    problem = _Problem(
        Predictor(served, rows), base, candidates, np.array([row.seconds for row in rows]), repeats(rows)
    )
    state = problem.solve()
    told = [c for i, c in enumerate(candidates) if i in state.free or i in state.pinned]
    missing = [c for c in candidates if c not in told]
    refused = [c.missing for c in missing if c.required]
    if refused and not partial:
        raise InputError(
            "measured rows",
            len(rows),
            "; ".join(refused),
            "add such rows, or keep the base calibration's figures with --partial",
        )
    if not told:
        raise InputError("measured rows", len(rows), "; ".join(c.missing for c in missing), "add such rows")
    calibration, paths = problem.result(state, rows)
    notes = [c.missing for c in missing]
    if not any(row.k > 0 for row in rows):
        notes.append("no row with K > 0: drafting is not identified")
    return InSituFit(
        calibration,
        paths,
        tuple(c.name for c in told),
        tuple(notes),
        problem.predictor.seconds(calibration),
    )


@dataclass(frozen=True)
class _Problem:
    """Residuals of the candidates' log factors; ``repeats`` as
    :func:`kplan.latency.observed.repeats` gives them."""

    predictor: Predictor
    base: Calibration
    candidates: list[Coefficient]
    seconds: Array
    repeats: Array

    @property
    def settings(self) -> int:
        """How many settings the rows were measured at."""
        return round(float(np.sum(1.0 / self.repeats)))

    def with_factors(self, at: Array) -> Calibration:
        figures = figures_of(self.base)
        changed: dict[str, Figure] = {}
        for coefficient, log_factor in zip(self.candidates, at, strict=True):
            for path in coefficient.paths:
                figure = changed.get(path, figures[path])
                changed[path] = replace(figure, value=figure.value * float(np.exp(log_factor)))
        return with_figures(self.base, changed)

    def residual(self, at: Array) -> Array:
        """(n,) log of predicted over measured seconds."""
        return np.asarray(np.log(self.predictor.seconds(self.with_factors(at)) / self.seconds))

    def slopes(self, at: Array, which: Sequence[int]) -> Array:
        """(n, len(which)) derivatives of the residuals, central differences inside the bounds."""
        low, high = self.bounds()
        columns = []
        for i in which:
            up, down = at.copy(), at.copy()
            up[i], down[i] = min(at[i] + STEP, high[i]), max(at[i] - STEP, low[i])
            columns.append((self.residual(up) - self.residual(down)) / (up[i] - down[i]))
        return np.stack(columns, axis=1)

    def changes(self, at: Array, which: Sequence[int]) -> Array:
        """(n, len(which)) changes of the residuals per width of each coefficient.

        Host times are moved by their whole width: one that is too short at the base to be seen, or that hides
        behind the GPU there, may be long in truth.
        """
        low, high = self.bounds()
        here = self.residual(at)
        columns = []
        for i in which:
            coefficient = self.candidates[i]
            move = coefficient.width if coefficient.host else -STEP
            moved = at.copy()
            moved[i] = np.clip(at[i] + move, low[i], high[i])
            columns.append((self.residual(moved) - here) * coefficient.width / (moved[i] - at[i]))
        return np.stack(columns, axis=1)

    def bounds(self) -> tuple[Array, Array]:
        """Of the log factors."""
        pairs = np.log([coefficient.bounds(self.base) for coefficient in self.candidates])
        return pairs[:, 0], pairs[:, 1]

    def solve(self) -> _State:
        """Fit and judge until what is free, held at a bound and left to the base no longer changes."""
        count = len(self.candidates)
        state = _State(np.zeros(count), set(), set(), [], np.full(count, np.inf))
        settled = False
        while True:
            free = self._identified(state)
            if not free or (settled and free == state.free):
                return state
            state.free = free
            settled = self._fit(state)

    def _identified(self, state: _State) -> list[int]:
        """Open candidates that the rows tell, at most one fewer than there are settings."""
        open_ = [i for i in range(len(self.candidates)) if i not in state.pinned | state.dropped]
        if not open_:
            return []
        changes = self.changes(state.at, open_) / np.sqrt(self.repeats)[:, None]
        information = changes.T @ changes / NOISE**2 + np.eye(len(open_))
        left = np.sqrt(np.diag(np.linalg.inv(information)))
        ranked = sorted(zip(left, open_, strict=True))
        kept = [i for share, i in ranked if share < LEFT][: self.settings - 1]
        # what has been fitted once stays free, else two judgements could take turns for ever
        return sorted(set(kept) | {i for i in state.free if i in open_})

    def _fit(self, state: _State) -> bool:
        """Least squares over the free ones; False when one had to be held at a bound or given up."""
        low, high = self.bounds()
        free = np.array(state.free)
        start = np.clip(state.at[free], low[free] + 1e-6, high[free] - 1e-6)

        def residual(x: Array) -> Array:
            at = state.at.copy()
            at[free] = x
            return self.residual(at)

        solution = least_squares(
            residual,
            start,
            bounds=(low[free], high[free]),
            loss="soft_l1",
            f_scale=OUTLIER_SCALE,
            diff_step=1e-3,
            ftol=TOLERANCE,
            xtol=TOLERANCE,
        )
        state.at[free] = solution.x
        at_bound = [
            int(i) for i, x in zip(free, solution.x, strict=True) if min(x - low[i], high[i] - x) < 1e-3
        ]
        if at_bound:
            for i in at_bound:
                state.at[i] = low[i] if state.at[i] - low[i] < high[i] - state.at[i] else high[i]
            state.pinned |= set(at_bound)
            state.free = [i for i in state.free if i not in at_bound]
            return False
        errors = self._errors(state)
        worst = int(np.argmax(errors))
        if errors[worst] > LOOSE:
            lost = state.free[worst]
            state.dropped.add(lost)
            state.at[lost] = 0.0
            state.free.remove(lost)
            return False
        state.error[free] = errors
        return True

    def _errors(self, state: _State) -> Array:
        """Standard errors of the free log factors: Huber's, of the loss that is minimised.

        The degrees of freedom are those of the settings, as rows of one share their error.
        """
        slopes = self.slopes(state.at, state.free)
        residual = self.residual(state.at)
        spread = 1.0 + (residual / OUTLIER_SCALE) ** 2
        freedom = max(self.settings - len(state.free), 1)
        scatter = float(np.sum(residual**2 / spread)) / freedom / float(np.mean(spread**-1.5)) ** 2
        return np.asarray(np.sqrt(np.diag(np.linalg.pinv(slopes.T @ slopes)) * scatter))

    def result(self, state: _State, rows: Sequence[Observation]) -> tuple[Calibration, frozenset[str]]:
        """The calibration with fitted figures labelled; a second GEMM source no longer spans its band."""
        calibration = self.with_factors(state.at)
        values = figures_of(calibration)
        source = "; ".join(sorted({row.source for row in rows}))
        mape = float(np.mean(np.abs(np.expm1(self.residual(state.at)))))
        changed: dict[str, Figure] = {}
        shares: dict[str, float] = {}  # standard error of the log of a figure
        for i, coefficient in enumerate(self.candidates):
            if i not in state.free and i not in state.pinned:
                continue
            alone = len(coefficient.paths) == 1
            together = "" if alone else "; one factor for all " + ", ".join(coefficient.paths)
            note = f"{coefficient.name}, {len(rows)} measured rows, mean error {mape:.1%}{together}"
            for path in coefficient.paths:
                value = values[path].value
                if i in state.pinned:
                    changed[path] = fitted(
                        value, source, None, f"{note}; at its bound, so without a standard error"
                    )
                else:
                    shares[path] = float(np.hypot(shares.get(path, 0.0), state.error[i]))
                    changed[path] = fitted(value, source, value * shares[path], note)
        calibration = with_figures(calibration, changed)
        if any(path.startswith("gemm.") for path in changed):
            calibration = replace(calibration, gemm_alternate=None, host_alternate=None)
        if any(path.startswith("host.") for path in changed):
            calibration = replace(calibration, host_alternate=None)
        return calibration, frozenset(changed)
