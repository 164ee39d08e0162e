"""Expectation step of the trace model: forward-backward over regimes, within each class of requests.

Every request belongs to one class; within a request a regime (hidden, persistent) is in force at each
position; each (class, regime) pair is a state with its own hazard for every cell.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit(cache=True)
def expect(
    bounds: NDArray[np.int64],
    cell: NDArray[np.int16],
    yes: NDArray[np.uint8],
    starts: NDArray[np.int64],
    hazard: Floats,
    start: Floats,
    switch: Floats,
    log_class: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats, float]:
    """One pass over all requests.

    Args:
        bounds, cell, yes, starts: see :class:`kplan.acceptance.cells.Events`.
        hazard: (C * S, cells), within (0, 1).
        start: (C, S) regime at the first position.
        switch: (C, S, S) regime at the next position.
        log_class: (n, C) prior of the class.

    Returns:
        Expected counts: yes (C * S, cells), events (C * S, cells), classes (n, C), starts (C, S),
        switches (C, S, S); and the log likelihood.
    """
    n = len(starts) - 1
    classes, regimes = start.shape
    states = classes * regimes
    accepted = np.zeros_like(hazard)
    seen = np.zeros_like(hazard)
    belongs = np.zeros((n, classes))
    begins = np.zeros((classes, regimes))
    moves = np.zeros((classes, regimes, regimes))
    log_yes, log_no = np.log(hazard), np.log(1.0 - hazard)
    total = 0.0
    for r in range(n):
        first, end = starts[r], starts[r + 1]
        if first == end:
            belongs[r] = np.exp(log_class[r])
            continue
        emission = np.zeros((end - first, states))
        for p in range(first, end):
            for e in range(bounds[p], bounds[p + 1]):
                for s in range(states):
                    emission[p - first, s] += log_yes[s, cell[e]] if yes[e] else log_no[s, cell[e]]
        occupied = np.zeros((end - first, states))
        pairs = np.zeros((classes, regimes, regimes))
        fits = np.zeros(classes)
        for c in range(classes):
            low = c * regimes
            fits[c] = log_class[r, c] + _smooth(emission, low, start[c], switch[c], occupied, pairs[c])
        best = fits.max()
        shares = np.exp(fits - best)
        total += best + np.log(shares.sum())
        shares /= shares.sum()
        belongs[r] = shares
        for c in range(classes):
            moves[c] += shares[c] * pairs[c]
            for s in range(regimes):
                state = c * regimes + s
                begins[c, s] += shares[c] * occupied[0, state]
                for p in range(first, end):
                    weight = shares[c] * occupied[p - first, state]
                    if weight < 1e-9:
                        continue
                    for e in range(bounds[p], bounds[p + 1]):
                        seen[state, cell[e]] += weight
                        if yes[e]:
                            accepted[state, cell[e]] += weight
    return accepted, seen, belongs, begins, moves, total


@njit(cache=True)
def _smooth(
    emission: Floats, low: int, start: Floats, switch: Floats, occupied: Floats, pairs: Floats
) -> float:
    """Fill ``occupied`` and ``pairs`` for the class whose states begin at ``low``; returns log P(request)."""
    length, regimes = len(emission), len(start)
    forward = np.zeros((length, regimes))
    scale = np.zeros(length)
    likely = np.zeros((length, regimes))
    total = 0.0
    for p in range(length):
        top = emission[p, low : low + regimes].max()
        for s in range(regimes):
            likely[p, s] = np.exp(emission[p, low + s] - top)
            prior = start[s] if p == 0 else 0.0
            if p > 0:
                for u in range(regimes):
                    prior += forward[p - 1, u] * switch[u, s]
            forward[p, s] = prior * likely[p, s]
        scale[p] = forward[p].sum()
        forward[p] /= scale[p]
        total += np.log(scale[p]) + top
    backward = np.ones(regimes)
    for p in range(length - 1, -1, -1):
        share = forward[p] * backward
        occupied[p, low : low + regimes] = share / share.sum()
        if p == 0:
            break
        message = np.zeros(regimes)
        for u in range(regimes):
            for s in range(regimes):
                step = switch[u, s] * likely[p, s] * backward[s] / scale[p]
                pairs[u, s] += forward[p - 1, u] * step
                message[u] += step
        backward = message
    return total
