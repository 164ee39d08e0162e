"""The cells of a trace model: which hazard a draft faces, given what the position before it showed.

The fit and the generator share this module, so they cannot drift apart. At a position, with ``m`` the
acceptance (tokens, bonus included) and ``q`` the offer of the position before it, the draft at depth ``d``
(1-based) is

- *confirmed* (d <= m - 2): the step before it drafted this token and was right;
- *failed* (d = m - 1 and m <= q): the step before it drafted this token and was wrong;
- *unseen* (d = m - 1 and m = q + 1): the step before it was right as far as it went;
- *new* (d >= m): nothing is known about this token;
- *tail*: not confirmed, and among the last tokens of the output (closings, end of sequence).

A lookup proposer first has to find a match (*match* cells, by age of the output). The first *new* draft
also depends on the age of the output and on the size of the offer (a long match is a good one).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

DEPTHS = 20
"""Deepest draft that has a cell of its own; the recordings have K = 20."""
AGES = 9
"""Bins of the position: 1, 2-3, 4-7, ... 128-255, 256 and more."""
TAIL_TOKENS = 4
OFFERS = 6
"""Bins of the offer: 1, 2, 3, 4-5, 6-19, 20."""

MATCH = 0
"""First of 2 x (AGES + 1) match cells: after no match, after a failed match; the last age is the tail."""
FIRST = MATCH + 2 * (AGES + 1)
"""First of AGES x OFFERS cells of the first new draft."""
CONFIRMED = FIRST + AGES * OFFERS
FAILED = CONFIRMED + DEPTHS
UNSEEN = FAILED + DEPTHS
NEW = UNSEEN + DEPTHS
TAIL = NEW + DEPTHS
CELLS = TAIL + 1


class Events(NamedTuple):
    """What a trace shows, as yes/no outcomes of cells.

    Attributes:
        bounds: (positions + 1,) int64 into the events; positions run over all requests, 1..output_len - 1.
        cell: (events,) int16.
        yes: (events,) uint8, 1 = matched or accepted.
        starts: (n + 1,) int64 into the positions.
    """

    bounds: NDArray[np.int64]
    cell: NDArray[np.int16]
    yes: NDArray[np.uint8]
    starts: NDArray[np.int64]


@njit(cache=True)
def match_cell(position: int, output_len: int, last_offer: int) -> int:
    """Cell of "does a lookup find a match here", asked when the last draft failed or there was none."""
    age = AGES if output_len - position <= TAIL_TOKENS else _age(position)
    return MATCH + age + (AGES + 1 if last_offer > 0 else 0)


@njit(cache=True)
def draft_cell(depth: int, last: int, last_offer: int, offer: int, position: int, output_len: int) -> int:
    """Cell of "is the draft at ``depth`` accepted" (see the module's text)."""
    if depth <= last - 2:
        return CONFIRMED + depth - 1
    if position + depth > output_len - TAIL_TOKENS:
        return TAIL
    if depth == last - 1:
        return (FAILED if last <= last_offer else UNSEEN) + depth - 1
    if depth == 1:
        return FIRST + _age(position) * OFFERS + offer_bin(offer)
    return NEW + depth - 1


@njit(cache=True)
def _age(position: int) -> int:
    age = 0
    while position > 1 and age < AGES - 1:
        position //= 2
        age += 1
    return age


@njit(cache=True)
def offer_bin(offer: int) -> int:
    """Bin of an offer >= 1, see :data:`OFFERS`."""
    if offer <= 3:
        return offer - 1
    if offer <= 5:
        return 3
    return 4 if offer < DEPTHS else 5


@njit(cache=True)
def extract(
    acc: NDArray[np.uint8],
    drafted: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    output_len: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.uint8]]:
    """Events of a trace: (bounds, cell, yes). Depths that the output's end or the offer hides give none."""
    positions = 0
    most = 0
    for r in range(len(output_len)):
        for i in range(1, output_len[r]):
            positions += 1
            most += int(acc[offsets[r] + i]) + 1
    bounds = np.zeros(positions + 1, np.int64)
    cell = np.empty(most, np.int16)
    yes = np.empty(most, np.uint8)
    n, p = 0, 0
    for r in range(len(output_len)):
        last, last_offer = 1, 0
        length = int(output_len[r])
        for i in range(1, length):
            tokens, offer = int(acc[offsets[r] + i]), int(drafted[offsets[r] + i])
            if last == 1:
                cell[n], yes[n] = match_cell(i, length, last_offer), offer > 0
                n += 1
            shown = int(min(tokens, length - i - 1, offer, DEPTHS))
            for depth in range(1, shown + 1):
                cell[n] = draft_cell(depth, last, last_offer, offer, i, length)
                yes[n] = depth < tokens
                n += 1
            last, last_offer = tokens, offer
            p += 1
            bounds[p] = n
    return bounds, cell[:n].copy(), yes[:n].copy()
