"""Fit of a trace model: EM over classes of requests and regimes within them, hazards shrunk to the pooled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.adapt import POSITIONS, match_walk, stretch_states, walk_lengths
from kplan.acceptance.by_length import match_lengths
from kplan.acceptance.cells import CELLS, DEPTHS, Events
from kplan.acceptance.columns import select
from kplan.acceptance.hidden import expect
from kplan.acceptance.model import Lookup, TraceModel
from kplan.acceptance.statistics import walk_shape
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

Floats = NDArray[np.float64]

CLASSES, REGIMES = 8, 2
LENGTH_BINS = 4
MIN_REQUESTS = 20
_PRIOR_EVENTS = 30.0
"""Weight of the pooled hazard in each state's, in events."""
_PRIOR_DEPTH = 5.0
"""Weight of the shallower depth's pooled hazard where few drafts reached, in events."""
_PRIOR_CLASS = 10.0
"""Weight of the overall class shares in those of a length bin, in requests."""
_STAY = 0.97
_MAX_ROUNDS = 80
_TOLERANCE_NATS = 0.5
_LAST_POSITIONS = 6_000_000
"""Generated for the last match of the walk: with a quarter of them it was off by up to 1.2% by chance."""
_SPREAD_K = 3
_SPREAD_ROUNDS = 3
_SPREAD_BOUNDS = (0.7, 1.6)
_SEED = 20_260_102


def fit(
    traces: TraceSet,
    proposer: str,
    *,
    classes: int = CLASSES,
    regimes: int = REGIMES,
    keep_loopy: bool = False,
) -> TraceModel:
    """Fit a trace model of ``proposer``.

    Loopy rows are left out unless ``keep_loopy``: a handful of them dominates every mean and no model fitted
    on some of them predicts the others.

    Args:
        classes: of requests, by how much of theirs is accepted.
        regimes: between which a request moves as it goes on.

    Raises:
        InputError: the traces lack the proposer, or have fewer than 20 requests with a decode step.
    """
    trace, left_out = _usable(traces, proposer, keep_loopy)
    lookup = None if trace.drafted is None else _fit_lookup(trace)
    events = events_of(trace)
    pooled = pooled_hazard(events)
    responsibility, hazard = _first_guess(events, pooled, classes, regimes)
    edges = np.unique(np.quantile(trace.output_len, np.arange(1, LENGTH_BINS) / LENGTH_BINS))
    bins = np.searchsorted(edges, trace.output_len, side="right")
    start = np.full((classes, regimes), 1.0 / regimes)
    move = (1.0 - _STAY) / max(regimes - 1, 1)
    switch = np.full((classes, regimes, regimes), move)
    switch[:, np.arange(regimes), np.arange(regimes)] = _STAY if regimes > 1 else 1.0
    shares = _class_shares(responsibility, bins, len(edges) + 1)
    likelihood = -np.inf
    for _ in range(_MAX_ROUNDS):
        accepted, seen, responsibility, begins, moves, total = expect(
            *events, np.clip(hazard, 1e-5, 1 - 1e-5), start, switch, np.log(shares)[bins]
        )
        hazard = (accepted + _PRIOR_EVENTS * pooled) / (seen + _PRIOR_EVENTS)
        start = (begins + 1.0) / (begins + 1.0).sum(axis=1, keepdims=True)
        switch = (moves + 1e-3) / (moves + 1e-3).sum(axis=2, keepdims=True)
        shares = _class_shares(responsibility, bins, len(edges) + 1)
        if total - likelihood < _TOLERANCE_NATS:
            break
        likelihood = total
    model = TraceModel(
        proposer=proposer,
        recorded_k=min(trace.recorded_k, DEPTHS),
        known_k=min(trace.recorded_k, DEPTHS),
        length_edges=edges.astype(np.float64),
        class_by_length=shares,
        regime_start=start,
        regime_switch=switch,
        hazard=np.clip(hazard, 0.0, 1.0),
        lookup=lookup,
        provenance=Provenance(Kind.FITTED, traces.provenance.source, traces.provenance.note),
        facts={
            "requests": len(trace.output_len),
            "positions": len(trace.acc) - len(trace.output_len),
            "loopy_rows_left_out": left_out,
            "log_likelihood": float(total),
        },
    )
    return _calibrated(model, trace, pooled)


def _calibrated(model: TraceModel, trace: ProposerTrace, pooled: Floats) -> TraceModel:
    """Moments that likelihood leaves biased: first what short outputs accept beside long ones, then the
    spread between requests, the walk at every K last."""
    model = match_lengths(model, trace, min(_SPREAD_K, model.recorded_k))
    lengths = walk_lengths(trace)
    wanted = walk_shape(trace, min(_SPREAD_K, model.recorded_k)).request_sd
    sample = np.resize(trace.output_len, max(1, round(POSITIONS / float(trace.output_len.mean()))))
    factor = 1.0
    for _ in range(_SPREAD_ROUNDS):
        trial, _ = match_walk(stretch_states(model, pooled, factor), lengths, trace.output_len)
        reached = walk_shape(trial.generate(_SEED, sample), min(_SPREAD_K, model.recorded_k)).request_sd
        if not (wanted > 0 and reached > 0):  # too few steps to speak of a spread
            break
        factor = float(np.clip(factor * wanted / reached, *_SPREAD_BOUNDS))
    stretched = stretch_states(model, pooled, factor)
    calibrated, _ = match_walk(stretched, lengths, trace.output_len, _LAST_POSITIONS)
    return replace(calibrated, facts={**model.facts, "spread_factor": factor})


def pooled_hazard(events: Events) -> Floats:
    """(CELLS,) hazard over all requests; a cell that few events reach leans on its shallower neighbour."""
    yes = np.bincount(events.cell, events.yes, CELLS)
    seen = np.bincount(events.cell, minlength=CELLS).astype(np.float64)
    groups = [
        *((cells.MATCH + side, cells.AGES + 1) for side in (0, cells.AGES + 1)),
        *((cells.FIRST + age * cells.OFFERS, cells.OFFERS) for age in range(cells.AGES)),
        *((low, DEPTHS) for low in (cells.CONFIRMED, cells.FAILED, cells.UNSEEN, cells.NEW)),
        (cells.TAIL, 1),
    ]
    hazard = np.zeros(CELLS)
    for low, size in groups:
        part = slice(low, low + size)
        before = (yes[part].sum() + 0.5) / (seen[part].sum() + 1.0)
        for c in range(low, low + size):
            before = (yes[c] + _PRIOR_DEPTH * before) / (seen[c] + _PRIOR_DEPTH)
            hazard[c] = before
    return hazard


def _usable(traces: TraceSet, proposer: str, keep_loopy: bool) -> tuple[ProposerTrace, int]:
    if proposer not in traces.proposers:
        raise InputError("proposer", proposer, f"the traces have {', '.join(sorted(traces.proposers))}")
    trace = traces.proposers[proposer]
    if trace.seen is not None:
        raise InputError("trace", "a recording of steps", "a fit without a lender needs every position")
    loopy = np.zeros(len(traces), np.bool_) if traces.loopy is None or keep_loopy else traces.loopy
    keep = np.flatnonzero(~loopy & (trace.output_len > 1))
    if len(keep) < MIN_REQUESTS:
        bound = f"at least {MIN_REQUESTS} with a decode step and no loop are needed"
        raise InputError("requests", len(keep), bound, "record more requests")
    return select(trace, keep), int(np.count_nonzero(loopy))


def events_of(trace: ProposerTrace) -> Events:
    """Outcomes of the cells at every position of a trace."""
    always = np.full(len(trace.acc), min(trace.recorded_k, DEPTHS), np.uint8)
    drafted = trace.drafted if trace.drafted is not None else always
    bounds, cell, yes = cells.extract(trace.acc, drafted, trace.offsets, trace.output_len)
    starts = np.concatenate([[0], np.cumsum(trace.output_len.astype(np.int64) - 1)])
    return Events(bounds, cell, yes, starts)


def _first_guess(events: Events, pooled: Floats, classes: int, regimes: int) -> tuple[Floats, Floats]:
    """Requests ranked by residual acceptance and cut into equal classes; regimes set apart by a shift."""
    n = len(events.starts) - 1
    request = np.repeat(np.arange(n), np.diff(events.bounds[events.starts]))
    expected = pooled[events.cell]
    residual = np.bincount(request, events.yes - expected, n)
    spread = np.sqrt(np.maximum(np.bincount(request, expected * (1 - expected), n), 1.0))
    order = np.argsort(residual / spread, kind="stable")
    responsibility = np.full((n, classes), 0.1 / classes)
    responsibility[order, np.arange(n) * classes // n] += 0.9
    hazard = np.empty((classes * regimes, CELLS))
    shifts = np.linspace(-0.6, 0.6, regimes) if regimes > 1 else np.zeros(1)
    for c in range(classes):
        weight = responsibility[request, c]
        yes = np.bincount(events.cell, events.yes * weight, CELLS) + _PRIOR_EVENTS * pooled
        share = yes / (np.bincount(events.cell, weight, CELLS) + _PRIOR_EVENTS)
        logit = np.log(np.clip(share, 1e-4, 1 - 1e-4)) - np.log1p(-np.clip(share, 1e-4, 1 - 1e-4))
        hazard[c * regimes : (c + 1) * regimes] = 1.0 / (1.0 + np.exp(-(logit + shifts[:, None])))
    return responsibility, hazard


def _class_shares(responsibility: Floats, bins: NDArray[np.int64], n_bins: int) -> Floats:
    overall = responsibility.mean(axis=0)
    shares = np.empty((n_bins, responsibility.shape[1]))
    for b in range(n_bins):
        inside = responsibility[bins == b]
        shares[b] = (inside.sum(axis=0) + _PRIOR_CLASS * overall) / (len(inside) + _PRIOR_CLASS)
    return np.maximum(shares, 1e-12)


def _fit_lookup(trace: ProposerTrace) -> Lookup:
    assert trace.drafted is not None
    offers, growth = _count_offers(trace.acc, trace.drafted, trace.offsets, trace.output_len)
    offers[:, DEPTHS] += 1.0  # a context that never matched falls back on the full offer
    return Lookup(
        new_offer=offers / offers.sum(axis=1, keepdims=True),
        grow=growth[:, 1] / np.maximum(growth.sum(axis=1), 1.0),
    )


@njit(cache=True)
def _count_offers(
    acc: NDArray[np.uint8],
    drafted: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    output_len: NDArray[np.int32],
) -> tuple[Floats, Floats]:
    offers = np.zeros((2, DEPTHS + 1))
    growth = np.zeros((2, 2))
    for r in range(len(output_len)):
        last, last_offer = 1, 0
        for i in range(1, output_len[r]):
            offer = min(int(drafted[offsets[r] + i]), DEPTHS)
            if last == 1:
                if offer > 0:
                    offers[1 if last_offer > 0 else 0, offer] += 1
            elif last_offer < DEPTHS:
                growth[0 if last <= last_offer else 1, 1 if offer > last_offer else 0] += 1
            last, last_offer = int(acc[offsets[r] + i]), offer
    return offers, growth
