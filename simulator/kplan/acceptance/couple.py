"""The compiled generator of two trace models at the same positions: dependent, and each exactly as alone.

Class of requests: with a chance the follower takes the leader's quantile of the classes, best class first.

Windows of positions: with a chance a window is *matched*. Leader and follower, each from its own state, draw
several continuations over the window, all equally likely; the leader's first is the one it takes anyway. The
continuations of one are assigned to those of the other so that both accept at the same positions, and the
follower takes the one that was assigned to the leader's. The assignment looks at the continuations alone, not
at which of them is the leader's, so the follower's is any of its own with the same chance: what it does alone
stays as it is, whatever the assignment prefers.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.generate import (
    GOLDEN,
    Floats,
    State,
    Tables,
    advance,
    first_state,
    mix,
    pick,
    unit,
)

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_SWEEPS = 4
"""Rounds of exchanges in an assignment; the second rarely finds any."""


@njit(cache=True)
def generate_pair(
    keys: NDArray[np.uint64],
    request0: int,
    offsets: Ints,
    lead: Tables,
    follow: Tables,
    lead_classes: Floats,
    follow_classes: Floats,
    lead_order: Ints,
    follow_order: Ints,
    class_share: float,
    window_share: float,
    window: int,
    candidates: int,
    depth: int,
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """(positions,) acceptance and offers of the leader, then of the follower.

    Args:
        keys: (3,) of the leader, of the follower, and of what lies between them.
        lead_classes, follow_classes: (n, C) cumulative chances of the classes.
        lead_order, follow_order: (C,) classes, the best first.
        class_share, window_share, window, candidates, depth: see Dependence.
    """
    total = offsets[-1]
    lead_acc, lead_drafted = np.ones(total, np.uint8), np.zeros(total, np.uint8)
    follow_acc, follow_drafted = np.ones(total, np.uint8), np.zeros(total, np.uint8)
    lead_drawn = np.empty((2, candidates, window), np.uint8)
    follow_drawn = np.empty((2, candidates, window), np.uint8)
    for r in range(len(offsets) - 1):
        base, length = offsets[r], offsets[r + 1] - offsets[r]
        number = np.uint64(request0 + r + 1) * GOLDEN
        lead_key, follow_key, own_key = mix(keys[0] + number), mix(keys[1] + number), mix(keys[2] + number)
        u = unit(lead_key, 0)
        lead_group = pick(lead_classes[r], u)
        follow_group = pick(follow_classes[r], unit(follow_key, 0))
        if unit(own_key, 0) < class_share:
            quantile = _quantile(lead_classes[r], lead_order, lead_group, u)
            follow_group = _at_quantile(follow_classes[r], follow_order, quantile)
        lead_state, follow_state = first_state(lead), first_state(follow)
        tie_key = mix(own_key)
        first, end = 1, 2 + int(unit(tie_key, 0) * window)  # windows begin elsewhere in every request
        while first < length:
            end = min(end, length)
            here, size = slice(base + first, base + end), end - first
            before = lead_state
            lead_state = advance(
                lead, lead_group, before, lead_key, first, end, length, lead_acc[here], lead_drafted[here]
            )
            if unit(own_key, first) < window_share:
                lead_drawn[0, 0, :size] = lead_acc[here]
                _draw(lead, lead_group, before, lead_key, first, end, length, lead_drawn, 1)
                states = _draw(
                    follow, follow_group, follow_state, follow_key, first, end, length, follow_drawn, 0
                )
                ties = mix(tie_key + np.uint64(first))
                taken = _assigned(lead_drawn[0, :, :size], follow_drawn[0, :, :size], depth, ties)
                follow_acc[here] = follow_drawn[0, taken, :size]
                follow_drafted[here] = follow_drawn[1, taken, :size]
                follow_state = State(states[taken, 0], states[taken, 1], states[taken, 2])
            else:
                follow_state = advance(
                    follow,
                    follow_group,
                    follow_state,
                    follow_key,
                    first,
                    end,
                    length,
                    follow_acc[here],
                    follow_drafted[here],
                )
            first = end
            end += window
    return lead_acc, lead_drafted, follow_acc, follow_drafted


@njit(cache=True)
def _draw(
    tables: Tables,
    group: int,
    state: State,
    key: np.uint64,
    first: int,
    end: int,
    length: int,
    drawn: NDArray[np.uint8],
    from_candidate: int,
) -> Ints:
    """Fill ``drawn`` (2, candidates, window) with acceptance and offers of every continuation from
    ``from_candidate`` on; continuation 0 is the one that the model takes alone.

    Returns:
        (candidates, 3) states at ``end``.
    """
    states = np.empty((drawn.shape[1], 3), np.int64)
    for c in range(from_candidate, drawn.shape[1]):
        own = key if c == 0 else mix(key + np.uint64(c))
        after = advance(tables, group, state, own, first, end, length, drawn[0, c], drawn[1, c])
        states[c, 0], states[c, 1], states[c, 2] = after.regime, after.last, after.offer
    return states


@njit(cache=True)
def _assigned(lead: Bytes, follow: Bytes, depth: int, ties: np.uint64) -> int:
    """The follower's continuation that is assigned to the leader's continuation 0.

    Both are sorted by how much they accept and paired in that order; then two pairs exchange partners as long
    as that raises the sum, over pairs and positions, of the product of the drafts accepted (up to ``depth``).

    Args:
        lead, follow: (candidates, positions) acceptance.
        ties: key that decides which of two equals comes first.
    """
    n, size = lead.shape
    one, two = np.minimum(lead, depth + 1) - 1.0, np.minimum(follow, depth + 1) - 1.0
    order_one, order_two = np.empty(n), np.empty(n)
    for c in range(n):
        order_one[c] = one[c].sum() + unit(ties, 2 * c)
        order_two[c] = two[c].sum() + unit(ties, 2 * c + 1)
    rank_one, rank_two = np.argsort(order_one), np.argsort(order_two)
    common = np.zeros((n, n))
    for a in range(n):
        for b in range(n):
            for i in range(size):
                common[a, b] += one[rank_one[a], i] * two[rank_two[b], i]
    partner = np.arange(n)
    for _ in range(_SWEEPS):
        settled = True
        for a in range(n - 1):
            for b in range(a + 1, n):
                kept = common[a, partner[a]] + common[b, partner[b]]
                if common[a, partner[b]] + common[b, partner[a]] > kept:
                    partner[a], partner[b] = partner[b], partner[a]
                    settled = False
        if settled:
            break
    return int(rank_two[partner[np.argmin(rank_one)]])


@njit(cache=True)
def _quantile(cumulative: Floats, order: Ints, index: int, u: float) -> float:
    """``u``, which fell on ``index``, as a quantile of the classes in ``order``: uniform as u is."""
    below = cumulative[index - 1] if index > 0 else 0.0
    total = u - below
    for c in order:
        if c == index:
            break
        total += cumulative[c] - (cumulative[c - 1] if c > 0 else 0.0)
    return total


@njit(cache=True)
def _at_quantile(cumulative: Floats, order: Ints, quantile: float) -> int:
    """The class at ``quantile`` of the classes in ``order``."""
    total = 0.0
    for c in order:
        total += cumulative[c] - (cumulative[c - 1] if c > 0 else 0.0)
        if quantile < total:
            return int(c)
    return int(order[-1])
