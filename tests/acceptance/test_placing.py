"""Steps put at their places, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.acceptance.placing import Steps, place_by_chunks, place_in_order


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def told(steps: Steps | None) -> object:
    if steps is None:
        return None
    return steps.position.tolist(), steps.accepted.tolist(), steps.drafted.tolist(), steps.guessed


@pytest.mark.parametrize(
    ("accepted", "output_len", "may_skip", "position"),
    [
        ((2, 0, 3), 9, False, [1, 4, 5]),  # 1 + 3 + 1 + 4 tokens
        ((2, 0, 3), 10, False, None),
        ((2, 0, 3), 6, False, [1, 4, 5]),  # the last one cut
        ((2, 0, 3), 5, False, None),  # it would stand behind the end
        ((2, 0, 3), 9, True, None),  # what its length hides may be a step
        ((2, 0, 3), 6, True, [1, 4, 5]),
        ((2, 0), 5, True, [1, 4]),
        ((), 1, False, []),
        ((), 2, False, None),
    ],
)
def test_steps_in_order_fill_the_output(
    accepted: tuple[int, ...], output_len: int, may_skip: bool, position: list[int] | None
) -> None:
    drafted = ints(*[4] * len(accepted))
    found = place_in_order(ints(*accepted), drafted, output_len, may_skip=may_skip)
    expected = None if position is None else (position, list(accepted), [4] * len(accepted), 0)
    assert told(found) == expected


@pytest.mark.parametrize(
    ("chunks", "accepted", "output_len", "expected"),
    [
        # none | 2 of 4 | none | 2 of 4
        ((1, 1, 3, 1, 3), (2, 2), 9, ([1, 2, 5, 6], [0, 2, 0, 2], [0, 4, 0, 4], 0)),
        ((1, 3), (4,), 4, ([1], [4], [4], 0)),  # the last step cut by the end
        ((1, 2, 3), (1, 4), 6, ([1, 3], [1, 4], [4, 4], 0)),
        ((1, 3, 2), (4, 1), 6, None),  # no other may be
        ((1, 1), (4,), 2, ([1], [4], [4], 0)),
        ((1, 3), (1,), 4, None),  # a chunk larger than the step
        ((1, 2), (), 3, None),
        ((1, 1, 1), (), 3, ([1, 2], [0, 0], [0, 0], 0)),
        ((1, 1), (0, 2), 2, None),  # a step too many
        ((2, 2), (1,), 4, None),
        ((1, 2), (1,), 4, None),
        ((1, 2), (1,), 2, None),
        ((1,), (), 1, ([], [], [], 0)),
        # which of two steps of one token had drafted in vain is not known: the first is taken
        ((1, 1, 1, 2), (0, 1), 5, ([1, 2, 3], [0, 0, 1], [4, 0, 4], 1)),
        (
            (1, 1, 1, 1, 2, 1, 1),
            (0, 1, 0),
            8,
            ([1, 2, 3, 4, 6, 7], [0, 0, 0, 1, 0, 0], [4, 0, 0, 4, 4, 0], 3),
        ),
        ((1, 1, 2, 1), (1, 0), 5, ([1, 2, 4], [0, 1, 0], [0, 4, 4], 0)),
    ],
)
def test_chunks_place_steps(
    chunks: tuple[int, ...], accepted: tuple[int, ...], output_len: int, expected: object
) -> None:
    found = place_by_chunks(ints(*chunks), ints(*accepted), ints(*[4] * len(accepted)), output_len)
    assert told(found) == expected
