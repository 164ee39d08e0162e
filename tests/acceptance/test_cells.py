"""The cells of a trace model, by the text of their module: which one a draft falls into."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kplan.acceptance import cells
from kplan.acceptance.fit import events_of
from tests.acceptance.made import trace_of

AGE = {
    1: 0, 2: 1, 3: 1, 4: 2, 7: 2, 8: 3, 15: 3, 16: 4, 31: 4, 32: 5, 63: 5, 64: 6, 127: 6, 128: 7, 255: 7,
    256: 8, 511: 8, 512: 8, 4000: 8,
}  # fmt: skip
MATCH, FIRST, CONFIRMED, FAILED, UNSEEN, NEW, TAIL = 0, 20, 74, 94, 114, 134, 154
"""2 x 10 match cells, 9 x 6 of the first new draft, 20 by depth of each kind, one of the tail."""


def test_the_cells_lie_one_kind_behind_the_other() -> None:
    assert (cells.MATCH, cells.FIRST, cells.CONFIRMED) == (MATCH, FIRST, CONFIRMED)
    assert (cells.FAILED, cells.UNSEEN, cells.NEW, cells.TAIL) == (FAILED, UNSEEN, NEW, TAIL)
    assert cells.CELLS == 155


@pytest.mark.parametrize(("position", "age"), AGE.items())
def test_a_match_is_looked_for_by_the_age_of_the_output(position: int, age: int) -> None:
    assert cells.match_cell(position, 5000, 0) == age
    assert cells.match_cell(position, 5000, 1) == 10 + age  # the last draft failed
    assert cells.draft_cell(1, 1, 0, 3, position, 5000) == FIRST + 6 * age + 2


@pytest.mark.parametrize(
    ("position", "last_offer", "cell"), [(95, 0, 6), (96, 0, 9), (99, 0, 9), (95, 2, 16), (96, 2, 19)]
)
def test_the_last_four_tokens_are_an_age_of_their_own(position: int, last_offer: int, cell: int) -> None:
    assert cells.match_cell(position, 100, last_offer) == cell


@pytest.mark.parametrize(
    ("offer", "offers"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (19, 4), (20, 5), (25, 5)]
)
def test_offers_are_binned(offer: int, offers: int) -> None:
    assert cells.offer_bin(offer) == offers
    assert cells.draft_cell(1, 1, 0, offer, 1, 100) == FIRST + offers


@pytest.mark.parametrize(
    ("depth", "last", "last_offer", "position", "cell"),
    [
        (1, 3, 5, 9, CONFIRMED),
        (2, 4, 5, 9, CONFIRMED + 1),
        (1, 3, 5, 98, CONFIRMED),  # confirmed comes before the tail
        (1, 2, 2, 9, FAILED),
        (2, 3, 3, 9, FAILED + 1),
        (2, 3, 2, 9, UNSEEN + 1),
        (1, 2, 1, 9, UNSEEN),
        (2, 2, 5, 9, NEW + 1),
        (3, 2, 5, 9, NEW + 2),
        (2, 1, 0, 9, NEW + 1),
        (1, 1, 0, 95, FIRST + 6 * 6 + 4),  # token 96 of 100
        (1, 1, 0, 96, TAIL),
        (2, 1, 0, 95, TAIL),
        (2, 3, 3, 95, TAIL),
    ],
)
def test_a_draft_falls_where_the_step_before_puts_it(
    depth: int, last: int, last_offer: int, position: int, cell: int
) -> None:
    assert cells.draft_cell(depth, last, last_offer, 7, position, 100) == cell


def test_events_of_two_outputs_by_hand() -> None:
    """An output of one token before them has no position."""
    trace = trace_of(
        [[1], [1, 1, 3, 2, 1, 1, 2, 1], [1, 2, 1, 3, 2, 1, 1, 1, 1, 1]],
        20,
        [[0], [0, 0, 3, 2, 2, 0, 4, 1], [0, 2, 1, 2, 2, 0, 0, 0, 0, 0]],
    )
    events = events_of(trace)
    expected = [
        [(MATCH, 0)],
        [(MATCH + 1, 1), (FIRST + 6 + 2, 1), (NEW + 1, 1), (TAIL, 0)],
        [(CONFIRMED, 1), (TAIL, 0)],
        [(TAIL, 0)],
        [(MATCH + 19, 0)],
        [(MATCH + 9, 1), (TAIL, 1)],
        [],  # the output's end hides all
        [(MATCH, 1), (FIRST + 1, 1), (NEW + 1, 0)],
        [(FAILED, 0)],
        [(MATCH + 11, 1), (FIRST + 6 + 1, 1), (NEW + 1, 1)],
        [(CONFIRMED, 1), (UNSEEN + 1, 0)],
        [],
        *[[(MATCH + 9, 0)]] * 4,
    ]
    found = list(zip(events.cell.tolist(), events.yes.tolist(), strict=True))
    bounds = events.bounds.tolist()
    assert [found[a:b] for a, b in pairwise(bounds)] == expected
    assert events.starts.tolist() == [0, 0, 7, 16]


@pytest.mark.parametrize(("recorded_k", "offer"), [(3, 2), (30, 5)])
def test_a_head_always_offers_its_k(recorded_k: int, offer: int) -> None:
    """Its bin of the first draft; at most 20 depths have cells, whatever it accepted."""
    events = events_of(trace_of([[1, recorded_k + 1, *[1] * 40]], recorded_k))
    assert events.cell[:2].tolist() == [MATCH, FIRST + offer]
    first = events.cell[: events.bounds[1]]
    assert len(first) == 1 + min(recorded_k, 20)
    assert events.yes[: events.bounds[1]].all()
    assert np.all(first[2:] == NEW + np.arange(1, len(first) - 1))
