"""Off, fixed K and the batch table, against vLLM's own lookups and an expansion written another way."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.policy import TablePolicy
from kplan_policies.table import BatchRange, BatchTable, Fixed, Off

from .helpers import batch_of, untimed

MAX_BATCH = 32


@st.composite
def range_lists(draw: st.DrawFn) -> list[BatchRange]:
    """Valid tables: the first range starts at 1, none overlap, gaps and an open end may occur, any order."""
    cuts = sorted(draw(st.sets(st.integers(2, 60), max_size=8)))
    starts = [1, *cuts]
    ranges: list[BatchRange] = []
    for i, start in enumerate(starts):
        last = i == len(starts) - 1
        top = 70 if last else starts[i + 1] - 1
        end = draw(st.none() if last and draw(st.booleans()) else st.integers(start, top))
        ranges.append((start, end, draw(st.integers(0, 254))))
    return draw(st.permutations(ranges))


def expand(ranges: list[BatchRange], max_batch: int) -> list[int]:
    """K for batch 1..max_batch, one batch size at a time: what covers it, else what the last one had."""
    ks: list[int] = []
    for batch in range(1, max_batch + 1):
        covering = [k for start, end, k in ranges if start <= batch and (end is None or batch <= end)]
        ks.append(covering[0] if covering else ks[-1])
    return ks


@untimed
@given(range_lists())
def test_table_is_the_expansion_and_every_choice_is_the_tables(ranges: list[BatchRange]) -> None:
    policy = BatchTable(ranges)
    assert policy.table(80)[1:].tolist() == expand(ranges, 80)
    chosen = [policy.choose_k(batch_of(batch)) for batch in range(1, 81)]
    assert chosen == expand(ranges, 80)


@untimed
@given(st.lists(st.integers(0, 8), min_size=1, max_size=100))
def test_from_lookup_gives_back_the_lookup_with_the_fewest_ranges(ks: list[int]) -> None:
    policy = BatchTable.from_lookup(ks)
    assert policy.table(len(ks))[1:].tolist() == ks
    assert len(policy.ranges) == 1 + sum(a != b for a, b in pairwise(ks))


@pytest.mark.parametrize("policy", [Off(), Fixed(3), Fixed(0)])
def test_constant_policies_choose_what_their_table_says(policy: Off | Fixed) -> None:
    assert isinstance(policy, TablePolicy)
    table = policy.table(40)
    assert all(policy.choose_k(batch_of(batch)) == table[batch] for batch in range(1, 41))


# Figures carried over: what vLLM 0.32.0's build_dynamic_sd_schedule_lookup gave for max_num_seqs 32 and
# num_speculative_tokens 4 (K above that is clamped by the engine, not by the table). Measured.
VLLM_LOOKUPS = {
    "gap": ([(1, 4, 4), (9, 12, 2)], [4] * 8 + [2] * 24),
    "non-monotone, unsorted": ([(9, 16, 4), (1, 8, 1)], [1] * 8 + [4] * 24),
    "K above the static K": ([(1, 32, 9)], [4] * 32),
    "three ranges": ([(1, 4, 4), (5, 8, 2), (9, 32, 0)], [4] * 4 + [2] * 4 + [0] * 24),
}
VLLM_REFUSES = {
    "start not 1": [(2, 4, 4)],
    "overlap": [(1, 4, 4), (4, 8, 2)],
    "negative K": [(1, 32, -1)],
    "start 0": [(0, 4, 2)],
}


@pytest.mark.parametrize("name", VLLM_LOOKUPS)
def test_vllm_lookups(name: str) -> None:
    ranges, lookup = VLLM_LOOKUPS[name]
    assert np.minimum(BatchTable(ranges).table(MAX_BATCH)[1:], 4).tolist() == lookup


@pytest.mark.parametrize("name", VLLM_REFUSES)
def test_refused_where_the_engine_would_refuse(name: str) -> None:
    with pytest.raises(ValueError, match=r"overlap|must"):
        BatchTable(VLLM_REFUSES[name])


@pytest.mark.shared
def test_every_verdict_of_the_real_engine(shared_dir: Path) -> None:
    verdicts = (shared_dir / "engines/vllm_cpu/yaml/VERDICTS.txt").read_text().splitlines()
    looked_up = refused = 0
    for line in verdicts:
        table = re.search(r"table=(\[\(.*?\)\])", line)
        if table is None:
            continue
        ranges = ast.literal_eval(table[1])
        lookup = re.search(r"lookup=(\[.*?\])", line)
        if lookup is not None:
            static_k = int(re.search(r"num_spec_tokens=(\d+)", line)[1])  # type: ignore[index]  # stands in each
            ours = np.minimum(BatchTable(ranges).table(MAX_BATCH)[1:], static_k).tolist()
            assert ours == ast.literal_eval(lookup[1]), line
            looked_up += 1
        else:
            assert "ENGINE-START WOULD RAISE" in line
            with pytest.raises(ValueError, match=r"overlap|must"):
                BatchTable(ranges)
            refused += 1
    assert looked_up >= 8, "the verdicts file was not understood"
    assert refused >= 4, "the verdicts file was not understood"
