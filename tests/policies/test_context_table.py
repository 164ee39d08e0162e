"""The table by batch and context: what it decides, its release-safe form, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan_policies.context_table import ContextTable

from .helpers import view

TEXT = "context-table:1-32x0-2047=3,1-32x2048-=5,64-x0-=1"


@pytest.mark.parametrize(
    ("batch", "context", "k"),
    [
        (1, 0, 3),
        (1, 2047, 3),
        (1, 2048, 5),
        (32, 9_000, 5),
        (40, 2047, 3),  # a gap between batch ranges keeps the one before
        (40, 2048, 5),
        (64, 9_000, 1),
    ],
)
def test_k_by_batch_and_context(batch: int, context: int, k: int) -> None:
    assert parse_policy(TEXT).build().choose_k(view(range(batch), context=context)) == k


def test_the_mean_context_of_the_batch_decides() -> None:
    policy = parse_policy(TEXT).build()
    step = view([0, 1])
    for contexts, k in (([10, 4085], 3), ([10, 4086], 5)):  # means 2,047.5 and 2,048
        assert policy.choose_k(replace(step, context=np.array(contexts))) == k


def test_a_gap_between_contexts_keeps_the_k_before() -> None:
    policy = ContextTable([(1, None, 0, 10, 2), (1, None, 50, 60, 4)])
    ks = [policy.choose_k(view([0], context=context)) for context in (0, 10, 11, 49, 50, 60, 61)]
    assert ks == [2, 2, 2, 2, 4, 4, 4]


def test_one_context_of_it_is_a_table_that_a_release_runs() -> None:
    policy = parse_policy(TEXT).build()
    assert isinstance(policy, ContextTable)
    assert policy.batch_table(2047).text == "table:1-32=3,64-=1"
    assert policy.batch_table(2048).text == "table:1-32=5,64-=1"
    for context in (0, 3000):
        table = policy.batch_table(context)
        steps = [view(range(batch), context=context) for batch in range(1, 80)]
        assert [table.choose_k(step) for step in steps] == [policy.choose_k(step) for step in steps]


def test_the_order_of_the_ranges_is_free() -> None:
    assert parse_policy("context-table:64-x0-=1,1-32x2048-=5,1-32x0-2047=3").text == TEXT


@pytest.mark.parametrize(
    ("arg", "told"),
    [
        ("", "the table is empty"),
        ("1-8=3", "'1-8=3' is not BATCHxCONTEXT=K"),
        ("2-x0-=3", "batch size: the first range must start at 1, not 2"),
        ("1-x5-=3", "batch 1-: context: the first range must start at 0, not 5"),
        ("1-x0-8=3,1-x8-=2", "batch 1-: context: ranges 0-8 and 8- overlap at 8"),
        ("1-8x0-=3,8-x0-=2", "batch size: ranges 1-8 and 8- overlap at 8"),
        ("1-8x0-=3,1-9x0-=2", "batch size: ranges 1-8 and 1-9 overlap at 1"),
        ("8-1x0-=3", "batch range 8-1 is reversed"),
        ("1-x9-0=3", "context range 9-0 is reversed"),
        ("1-x0-=255", "not 255"),
    ],
)
def test_a_bad_table_is_told_in_one_line(arg: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(f"context-table:{arg}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
