"""The compiled generator of a trace model: draws are a hash of (key, request, position), not a stream."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance.cells import DEPTHS, draft_cell, match_cell

Floats = NDArray[np.float64]

# Increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014), a bijective mixer that passes BigCrush.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
_TO_UNIT_32 = 2.0**-32


@njit(cache=True)
def _mix(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@njit(cache=True)
def _pick(cumulative: Floats, u: float) -> int:
    index = 0
    while index < len(cumulative) - 1 and u >= cumulative[index]:
        index += 1
    return index


@njit(cache=True)
def generate_flat(
    key: np.uint64,
    request0: int,
    offsets: NDArray[np.int64],
    class_cumulative: Floats,
    start_cumulative: Floats,
    switch_cumulative: Floats,
    hazard: Floats,
    new_offer_cumulative: Floats,
    grow: Floats,
    has_lookup: bool,
    max_offer: int,
    known_k: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """(positions,) acceptance and offers of n requests; ``class_cumulative`` is (n, C). See TraceModel."""
    acc = np.ones(offsets[-1], np.uint8)
    drafted = np.zeros(offsets[-1], np.uint8)
    regimes = start_cumulative.shape[1]
    for r in range(len(offsets) - 1):
        base, length = offsets[r], offsets[r + 1] - offsets[r]
        request_key = _mix(key + np.uint64(request0 + r + 1) * _GOLDEN)
        group = _pick(class_cumulative[r], (_mix(request_key) >> np.uint64(11)) * _TO_UNIT)
        regime = 0
        last, offer = 1, 0 if has_lookup else max_offer
        for i in range(1, length):
            bits = _mix(request_key + np.uint64(2 * i) * _GOLDEN)
            u_regime = (bits >> np.uint64(32)) * _TO_UNIT_32
            u_offer = (bits & np.uint64(0xFFFFFFFF)) * _TO_UNIT_32
            u_accept = (_mix(request_key + np.uint64(2 * i + 1) * _GOLDEN) >> np.uint64(11)) * _TO_UNIT
            if i == 1:
                regime = _pick(start_cumulative[group], u_regime)
            else:
                regime = _pick(switch_cumulative[group, regime], u_regime)
            state = group * regimes + regime
            last_offer = offer
            if has_lookup:
                if last == 1:
                    found = hazard[state, match_cell(i, length, last_offer)]
                    if u_offer < found:
                        after = 1 if last_offer > 0 else 0
                        offer = _pick(new_offer_cumulative[after], u_offer / found)
                    else:
                        offer = 0
                elif last_offer < DEPTHS and u_offer < grow[0 if last <= last_offer else 1]:
                    offer = last_offer + 1
            # One uniform against the survival of depth 1, 2, ...: as many draws as depths would cost more.
            depth = 1
            survival = 1.0
            while depth <= offer:
                survival *= hazard[state, draft_cell(depth, last, last_offer, offer, i, length)]
                if u_accept >= survival:
                    break
                depth += 1
            acc[base + i] = min(depth, length - i, known_k + 1)
            drafted[base + i] = min(offer, known_k)
            last = depth
    return acc, drafted
