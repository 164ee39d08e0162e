"""The greedy table and its text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kplan.registry import parse_policy
from kplan.search.candidates import TIE, greedy_table, table_text


@given(arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(1, 6)), elements=st.floats(0.1, 100)))
def test_every_batch_gets_a_k_within_a_tie_of_the_best(rate: np.ndarray) -> None:
    table = greedy_table(rate)
    policy = parse_policy(table_text(table)).build()
    ks = policy.table(len(rate))  # type: ignore[attr-defined]  # a table policy
    for batch, row in enumerate(rate, start=1):
        assert row[ks[batch]] >= row.max() * (1 - TIE)


@given(arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(1, 6)), elements=st.floats(0.1, 100)))
def test_ranges_are_contiguous_and_neighbours_differ(rate: np.ndarray) -> None:
    table = greedy_table(rate)
    assert table[0].start == 1
    assert table[-1].end is None
    for one, two in pairwise(table):
        assert one.end is not None
        assert two.start == one.end + 1
        assert one.k != two.k


def test_the_smaller_k_wins_a_tie() -> None:
    assert greedy_table(np.array([[99.5, 100.0, 100.1]]))[0].k == 0
