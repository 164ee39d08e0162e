"""How well a trace model does: on what it was fitted on, and on the half of the requests it has not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kplan.acceptance.columns import select, select_set
from kplan.acceptance.fit import MIN_REQUESTS, fit
from kplan.acceptance.model import TraceModel
from kplan.acceptance.statistics import compare
from kplan.acceptance.trace import ProposerTrace, TraceSet

REPEATS_TOKENS = 1_000_000
"""Positions generated for a comparison, so that the model's side adds no noise of its own."""
_SEED = 20_260_103


def fit_judged(
    traces: TraceSet, proposer: str, *, keep_loopy: bool = False, holdout: bool = True
) -> TraceModel:
    """Fit on all requests; the model's facts hold its errors on them and, with ``holdout``, those of a fit on
    the even rows against the odd rows (and what the two halves of the recording themselves differ by).

    Raises:
        InputError: see :func:`kplan.acceptance.fit.fit`.
    """
    model = fit(traces, proposer, keep_loopy=keep_loopy)
    kept = np.arange(len(traces)) if traces.loopy is None or keep_loopy else np.flatnonzero(~traces.loopy)
    facts = {**model.facts, "in_sample": _errors(traces.proposers[proposer], kept, model)}
    even, odd = kept[0::2], kept[1::2]
    if holdout and len(odd) >= MIN_REQUESTS + MIN_REQUESTS // 2:
        half = fit(select_set(traces, even), proposer, keep_loopy=True)
        facts["holdout"] = _errors(traces.proposers[proposer], odd, half)
        trace = traces.proposers[proposer]
        facts["halves_differ"] = [_short(row) for row in compare(select(trace, odd), select(trace, even))]
    return replace(model, facts=facts)


def _errors(trace: ProposerTrace, rows: Any, model: TraceModel) -> list[dict[str, float]]:
    real = select(trace, rows)
    copies = max(1, REPEATS_TOKENS // len(real.acc))
    return [_short(row) for row in compare(real, model.generate(_SEED, np.tile(real.output_len, copies)))]


def _short(row: dict[str, float]) -> dict[str, float]:
    keys = ("k", "real_acceptance_length", "acceptance_length_error", "lag1_error", "request_sd_error")
    # NaN (nothing to measure at that K) has no place in JSON.
    return {key: round(row[key], 4) for key in keys if np.isfinite(row[key])}
