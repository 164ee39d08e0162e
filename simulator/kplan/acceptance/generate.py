"""The compiled generator of a trace model: draws are a hash of (key, request, position), not a stream."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.cells import DEPTHS, draft_cell, match_cell

Floats = NDArray[np.float64]

# Increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014), a bijective mixer that passes BigCrush.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
_TO_UNIT_32 = 2.0**-32


@njit(cache=True)
def mix(value: np.uint64) -> np.uint64:
    """The hash that all draws come from."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@njit(cache=True)
def pick(cumulative: Floats, u: float) -> int:
    """Index that ``u`` falls on."""
    index = 0
    while index < len(cumulative) - 1 and u >= cumulative[index]:
        index += 1
    return index


class Tables(NamedTuple):
    """A trace model as its generator reads it; chances are cumulative. See TraceModel."""

    start: Floats
    switch: Floats
    hazard: Floats
    new_offer: Floats
    grow: Floats
    has_lookup: bool
    max_offer: int
    known_k: int


class State(NamedTuple):
    """What a request's next position depends on: its regime, and the tokens and the offer of the last one."""

    regime: int
    last: int
    offer: int


@njit(cache=True)
def unit(key: np.uint64, number: int) -> float:
    """Draw ``number`` of ``key``, uniform on [0, 1)."""
    return (mix(key + np.uint64(number) * GOLDEN) >> np.uint64(11)) * _TO_UNIT


@njit(cache=True)
def first_state(tables: Tables) -> State:
    """Before the first position."""
    return State(0, 1, 0 if tables.has_lookup else tables.max_offer)


@njit(cache=True)
def advance(
    tables: Tables,
    group: int,
    state: State,
    key: np.uint64,
    first: int,
    end: int,
    length: int,
    acc: NDArray[np.uint8],
    drafted: NDArray[np.uint8],
) -> State:
    """Positions ``first`` .. ``end - 1`` of a request of ``length`` tokens and class ``group``.

    Args:
        state: at ``first``.
        key: of the request.
        acc, drafted: (end - first,) filled.

    Returns:
        The state at ``end``.
    """
    regimes = tables.start.shape[1]
    regime, last, offer = state
    for i in range(first, end):
        bits = mix(key + np.uint64(2 * i) * GOLDEN)
        u_regime = (bits >> np.uint64(32)) * _TO_UNIT_32
        u_offer = (bits & np.uint64(0xFFFFFFFF)) * _TO_UNIT_32
        u_accept = unit(key, 2 * i + 1)
        if i == 1:
            regime = pick(tables.start[group], u_regime)
        else:
            regime = pick(tables.switch[group, regime], u_regime)
        row = group * regimes + regime
        last_offer = offer
        if tables.has_lookup:
            if last == 1:
                found = tables.hazard[row, match_cell(i, length, last_offer)]
                if u_offer < found:
                    after = 1 if last_offer > 0 else 0
                    offer = pick(tables.new_offer[after], u_offer / found)
                else:
                    offer = 0
            elif last_offer < DEPTHS and u_offer < tables.grow[0 if last <= last_offer else 1]:
                offer = last_offer + 1
        # One uniform against the survival of depth 1, 2, ...: as many draws as depths would cost more.
        depth = 1
        survival = 1.0
        while depth <= offer:
            survival *= tables.hazard[row, draft_cell(depth, last, last_offer, offer, i, length)]
            if u_accept >= survival:
                break
            depth += 1
        acc[i - first] = min(depth, length - i, tables.known_k + 1)
        drafted[i - first] = min(offer, tables.known_k)
        last = depth
    return State(regime, last, offer)


@njit(cache=True)
def generate_flat(
    key: np.uint64, request0: int, offsets: NDArray[np.int64], class_cumulative: Floats, tables: Tables
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(positions,) acceptance and offers of n requests; ``class_cumulative`` is (n, C)."""
    acc = np.ones(offsets[-1], np.uint8)
    drafted = np.zeros(offsets[-1], np.uint8)
    for r in range(len(offsets) - 1):
        base, end = offsets[r], offsets[r + 1]
        request_key = mix(key + np.uint64(request0 + r + 1) * GOLDEN)
        group = pick(class_cumulative[r], unit(request_key, 0))
        state, length = first_state(tables), end - base
        advance(
            tables, group, state, request_key, 1, length, length, acc[base + 1 : end], drafted[base + 1 : end]
        )
    return acc, drafted
