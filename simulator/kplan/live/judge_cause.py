"""Which assumption of a plan is off: what has to be replaced by its measured value for the rest to agree.

The load is predicted again with the measured acceptance, the measured step time, the K that was seen, what
the server's front end adds to a first token, and their combinations, simplest first. The first under which no
figure is surely off names the cause. Where none is enough, the best of them is named, and scheduling with it:
what then differs is how steps are filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

import numpy as np

from kplan.live.judge import Figure, Measurements, Verdict, judge
from kplan.live.judge_accept import Chances
from kplan.live.judge_predict import Forecast, Predicted, Under
from kplan.registry import PolicySpec, parse_policy

ROUNDS = 4
CLOSE = 0.005
"""Rounds in which the factor on the step time is found, and how close the step time has to come."""
HELPS = 0.95
"""An assumption is named only when leaving it as planned makes what is left grow beyond this share."""


class Cause(StrEnum):
    """An assumption of a plan; the front end is assumed to take no time."""

    ACCEPTANCE = "acceptance"
    STEP_TIME = "step time"
    SCHEDULING = "scheduling"
    FRONT_END = "the front end"


@dataclass(frozen=True)
class Attribution:
    """What was replaced by its measured value, and what the load comes to then.

    Attributes:
        causes: none when the plan agrees as it is.
        figures: predicted under them, beside measured.
        enough: no figure is surely off under them.
        slower: measured over planned step time, where that was replaced.
        k: drafts a step that the server was seen to make, where that was replaced.
        front_s: what the front end adds to a first token, where that was replaced.
    """

    causes: tuple[Cause, ...]
    figures: tuple[Figure, ...]
    enough: bool
    slower: float | None = None
    k: int | None = None
    front_s: float | None = None


def attribute(
    forecast: Forecast,
    planned: Predicted,
    measured: Measurements,
    bounds: Mapping[str, float],
    *,
    k_changes: bool,
    spec: PolicySpec,
) -> Attribution:
    """Find the cause of what is off.

    Args:
        planned: the prediction as planned.
        bounds: tolerances by name.
        k_changes: the plan's K may differ from step to step.
        spec: the plan's policy.
    """
    base = judge(planned.figures, measured.figures, bounds)
    if not _off(base):
        return Attribution((), base, enough=True)
    search = _Search(forecast, planned, measured, bounds, base, k_changes=k_changes, spec=spec)
    best: Attribution | None = None
    for size in range(1, len(search.known) + 1):
        tried = [search.under(causes) for causes in combinations(search.known, size)]
        for one in sorted(tried, key=lambda one: (_left(one.figures), _distance(one.figures))):
            if one.enough:
                return one
            if best is None or _left(one.figures) < HELPS * _left(best.figures):
                best = one
    if best is None or _left(best.figures) >= HELPS * _left(base):
        return Attribution((Cause.SCHEDULING,), base, enough=False)
    causes = (*(cause for cause in best.causes if cause is not Cause.SCHEDULING), Cause.SCHEDULING)
    return replace(best, causes=causes, enough=False)


def _off(figures: tuple[Figure, ...]) -> list[Figure]:
    return [one for one in figures if one.verdict is Verdict.OFF]


def _left(figures: tuple[Figure, ...]) -> float:
    """How much is surely off, in tolerances; a figure counts for three at most."""
    return sum(min(one.excess, 3.0) for one in figures)


def _distance(figures: tuple[Figure, ...]) -> float:
    """How far all figures are from the prediction, in tolerances."""
    return sum(abs(one.change) / one.tolerance for one in figures)


class _Search:
    def __init__(
        self,
        forecast: Forecast,
        planned: Predicted,
        measured: Measurements,
        bounds: Mapping[str, float],
        base: tuple[Figure, ...],
        *,
        k_changes: bool,
        spec: PolicySpec,
    ) -> None:
        self._forecast, self._planned, self._measured, self._bounds = forecast, planned, measured, bounds
        self._chances = measured_chances(planned, measured, k_changes=k_changes)
        self._seen = _seen_policy(planned, measured, bounds, spec, forecast.most_k)
        self._step = "step_median_ms" if "step_median_ms" in measured.figures else "step_ms"
        agree = {one.name for one in base if one.verdict is Verdict.AGREES}
        as_planned = {
            "acceptance_length",
            "drafted",
        } <= agree  # what is left of it would fit the noise of others
        known = {
            Cause.ACCEPTANCE: self._chances is not None and not as_planned,
            Cause.STEP_TIME: self._step in measured.figures and self._step in planned.figures,
            Cause.SCHEDULING: self._seen is not None,
            Cause.FRONT_END: bool(measured.front_s),
        }
        self._predicted: dict[frozenset[Cause], tuple[Predicted, float]] = {}
        self.known = [cause for cause, can in known.items() if can]

    def under(self, causes: tuple[Cause, ...]) -> Attribution:
        """The load with the measured values of ``causes``."""
        predicted, slower = self._simulated(frozenset(causes) - {Cause.FRONT_END})
        figures = dict(predicted.figures)
        front_s = self._measured.front_s if Cause.FRONT_END in causes else None
        if front_s is not None:
            figures["ttft_ms"] += 1e3 * front_s
        beside = judge(figures, self._measured.figures, self._bounds)
        return Attribution(
            causes,
            beside,
            enough=not _off(beside),
            slower=slower if Cause.STEP_TIME in causes else None,
            k=_k_of(self._seen) if Cause.SCHEDULING in causes else None,
            front_s=front_s,
        )

    def _simulated(self, causes: frozenset[Cause]) -> tuple[Predicted, float]:
        """The load simulated with the measured values of ``causes``, and the factor on its step time."""
        if causes not in self._predicted:
            acceptance = self._chances if Cause.ACCEPTANCE in causes else None
            spec = self._seen if Cause.SCHEDULING in causes else None
            slower = 1.0
            predicted = self._forecast.run(Under(acceptance, slower, spec))
            if Cause.STEP_TIME in causes:
                target = self._measured.figures[self._step].value
                for _ in range(ROUNDS):
                    ratio = target / predicted.figures[self._step]
                    if abs(ratio - 1.0) < CLOSE:
                        break
                    slower *= ratio
                    predicted = self._forecast.run(Under(acceptance, slower, spec))
            self._predicted[causes] = predicted, slower
        return self._predicted[causes]


def measured_chances(planned: Predicted, measured: Measurements, *, k_changes: bool) -> Chances | None:
    """What the server accepts, as far as its counters tell; None when they tell nothing.

    With one K, its shares by position are all there is to know. Where K changes they mix drafts of several
    lengths, but for the first position: the others are then moved as that one is, in log-odds. A server that
    counts no positions is known by its tokens per step.
    """
    share = measured.figures.get("draft_share")
    if share is None or share.value <= 0:
        return None
    own = Chances(planned.chances.hazard, min(share.value, 1.0))
    if measured.accepted_at:
        if measured.k is not None:
            return Chances.from_counts(measured.accepted_at, own.offered)
        return own.with_first(measured.accepted_at[0])
    length = measured.figures.get("acceptance_length")
    if length is None or k_changes:
        return None
    return own.with_length(1.0 + (length.value - 1.0) / own.offered)


def _seen_policy(
    planned: Predicted, measured: Measurements, bounds: Mapping[str, float], spec: PolicySpec, most_k: int
) -> PolicySpec | None:
    """The one K that the server drafts, where that is not what was predicted; None otherwise, and where it
    lies above all that the plan priced."""
    drafted, expected = measured.figures.get("drafted"), planned.figures.get("drafted")
    if drafted is None or expected is None or abs(drafted.value / expected - 1.0) <= bounds["k"]:
        return None
    if measured.k is None or measured.k > most_k:
        return None
    seen = parse_policy(f"fixed:{measured.k}")
    return None if seen == spec else seen


def _k_of(spec: PolicySpec | None) -> int | None:
    return None if spec is None else int(spec.text.partition(":")[2])


def positions(predicted: Chances, measured: Measurements) -> tuple[tuple[float, float], ...]:
    """(predicted, measured) share of drafts accepted up to each position; the first alone where K changes."""
    shown = min(1, len(measured.accepted_at)) if measured.k is None else measured.k
    pairs = zip(np.asarray(predicted.accepted_at).tolist(), measured.accepted_at[:shown], strict=False)
    return tuple(pairs)
