"""What counts as degenerate repetition, by outputs made to fall on either side of the bounds."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.acceptance.loops import is_loopy

FRESH = np.arange(1_000, 9_192, dtype=np.int32)  # 8,192 tokens, none twice


def output(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts).astype(np.int32)


def counting(rows: int) -> np.ndarray:
    """Rows of 16 tokens of which one grows, as ``x_1 = 1`` and ``x_2 = 2`` do."""
    table = np.tile(np.arange(16), (rows, 1))
    table[:, 3] = 100 + np.arange(rows)
    return table.ravel()


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (FRESH, False),
        (output(FRESH[:500], FRESH[:479]), True),  # 479 - 31 = 448 windows occur again
        (output(FRESH[:500], FRESH[:478]), False),
        (np.full(479, 7), False),  # too short for 448 windows behind the first
        (np.full(480, 7), True),
        (counting(32), True),  # no window of 32 twice; 31 x 15 = 465 tokens are those 16 before
        (counting(30), False),  # 29 x 15 = 435
        (output(counting(40), FRESH[:100]), True),  # 39 x 15 of 724 pairs
        (output(counting(40), FRESH[:200]), False),  # 585 of 824: less than three of four
    ],
)
def test_a_loop_repeats_or_counts(tokens: np.ndarray, expected: bool) -> None:
    assert is_loopy(tokens.astype(np.int32)) is expected


def test_a_period_beyond_the_bound_is_no_counting() -> None:
    def rows(width: int) -> np.ndarray:
        table = np.tile(np.arange(width), (8, 1))
        table[:, ::20] = 1_000 + np.arange(8 * table[:, ::20].shape[1]).reshape(8, -1)
        return table.ravel()

    assert is_loopy(rows(256).astype(np.int32))
    assert not is_loopy(rows(257).astype(np.int32))
