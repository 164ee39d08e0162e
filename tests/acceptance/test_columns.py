"""Columns checked, clipped and packed, and what a collector of steps counts: at their bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import AcceptanceFigures, ImportOptions, TraceSet, columns
from kplan.acceptance.collect import StepCollector
from kplan.acceptance.columns import (
    Row,
    TraceBuilder,
    acceptance,
    integers,
    request_names,
    select,
    select_set,
)
from kplan.acceptance.placing import Steps
from kplan.errors import InputError
from tests.acceptance.made import set_of, trace_of

HERE = Row("f", 7)


@pytest.mark.parametrize(
    "values", [[3, 5, 4], (3, 5, 4), np.array([3, 5, 4], np.uint8), np.array([3, 5, 4], np.int64)]
)
def test_integers_within_their_bounds_are_taken(values: Any) -> None:
    found = integers(values, HERE, "c", 3, 5)
    assert (found.tolist(), found.dtype) == ([3, 5, 4], np.int64)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([3, 2], "column c[1]: got 2, an integer in 3..5 is needed"),
        ([6, 2], "column c[0]: got 6"),
        (np.array([4, 6], np.uint8), "column c[1]: got 6"),
        ([3, True], "column c[1]: got 'True'"),
        ([3, 4.0], "column c[1]: got '4.0'"),
        ([3, "4"], "column c[1]: got '4'"),
        (np.array([4.0]), "column c[0]: got '4.0'"),
        (np.array([[3], [4]]), "column c[0]: got '[3]'"),
        ([3, 2**70], "column c[1]: got 1180591620717411303424"),
        ([3, -(2**70)], "column c[1]: got -1180591620717411303424"),
        ([], "column c: got 'an empty list'"),
        (7, "column c: got 'int', a list of integers"),
        ("3", "column c: got 'str'"),
    ],
)
def test_the_first_that_is_no_such_integer_is_named(values: Any, told: str) -> None:
    with pytest.raises(InputError) as error:
        integers(values, HERE, "c", 3, 5)
    assert f"f, row 7, {told}" in str(error.value)


def test_acceptance_is_up_to_the_bonus_and_begins_with_the_prefill() -> None:
    assert acceptance([1, 4], HERE, "c", 3).tolist() == [1, 4]
    for values, told in (
        ([1, 5], "c[1]: got 5, an integer in 1..4"),
        ([0, 1], "c[0]: got 0"),
        ([2, 1], "c[0]: got 2, position 0"),
    ):
        with pytest.raises(InputError) as error:
            acceptance(values, HERE, "c", 3)
        assert told in str(error.value)


def test_names_of_requests_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bytes a letter, for each as many as the longest has."""
    monkeypatch.setattr(columns, "MOST_ID_BYTES", 40)
    assert request_names(["a", "bbbbb"], "f").tolist() == ["a", "bbbbb"]
    assert request_names(["", ""], "f").tolist() == ["", ""]
    assert request_names([], "f").tolist() == []
    with pytest.raises(
        InputError, match=r"f, row 2, column request_id: got 'bbbbbb', 5 characters each fit for 2"
    ):
        request_names(["a", "bbbbbb"], "f")
    with pytest.raises(InputError, match=r"0 characters each fit for 11"):
        request_names([""] * 11, "f")


def test_rows_are_clipped_at_their_end_and_counted() -> None:
    """Two of the first row's and one of the second's run past it; what was emitted was drafted."""
    builder = TraceBuilder(254, has_drafted=True, has_seen=True)
    builder.add(np.array([1, 5, 2]), np.array([0, 0, 7]), np.array([0, 6, 0]), aligned=True)
    builder.add(np.array([1, 2]), np.array([0, 1]), np.array([0, 3]), aligned=False)
    trace = builder.build()
    assert trace.acc.tolist() == [1, 2, 1, 1, 1]
    assert trace.drafted is not None
    assert trace.drafted.tolist() == [0, 1, 7, 0, 1]
    assert trace.seen is not None
    assert trace.seen.tolist() == [0, 6, 0, 0, 3]
    assert (trace.output_len.tolist(), trace.offsets.tolist()) == ([3, 2], [0, 3, 5])
    assert trace.aligned.tolist() == [True, False]
    assert (builder.clipped_positions, builder.unaligned_rows, trace.recorded_k) == (3, 1, 254)
    plain = TraceBuilder(1, has_drafted=False)
    plain.add(np.array([1, 1]), aligned=True)
    assert (plain.build().drafted, plain.build().seen, plain.unaligned_rows) == (None, None, 0)
    for k in (0, 255):
        with pytest.raises(InputError, match=f"recorded K: got {k}"):
            TraceBuilder(k, has_drafted=False)


def test_requests_are_selected_in_the_order_asked_for() -> None:
    trace = trace_of([[1, 3, 2], [1], [1, 2]], 5, [[0, 5, 4], [0], [0, 3]])
    trace = replace(trace, aligned=np.array([True, True, False]))
    found = select(trace, np.array([2, 0]))
    assert found.acc.tolist() == [1, 2, 1, 3, 2]
    assert found.drafted is not None
    assert found.drafted.tolist() == [0, 3, 0, 5, 4]
    assert (found.seen, found.aligned.tolist(), found.recorded_k) == (None, [False, True], 5)
    traces = replace(set_of(trace), proposers={"a": trace, "b": trace}, loopy=np.array([True, False, False]))
    some = select_set(traces, np.array([2, 0]))
    assert some.proposers["a"] is some.proposers["b"]
    assert some.loopy is not None
    assert (some.request_id.tolist(), some.loopy.tolist()) == (["r2", "r0"], [False, True])
    assert some.prompt_len.tolist() == [3, 1]
    assert select_set(replace(traces, loopy=None), np.array([1])).loopy is None


def steps(*each: tuple[int, int, int], guessed: int = 0) -> Steps:
    """Of (position, accepted, drafted)."""
    position, accepted, drafted = (np.array(column, np.int64) for column in zip(*each, strict=True))
    return Steps(position, accepted, drafted, guessed)


def test_a_collector_counts_what_it_cannot_keep() -> None:
    """The second step of the first request and the only one of the third run past the end."""
    collector = StepCollector("ngram", ImportOptions("ngram", tokenizer="t"), 10_000)
    collector.without = 2
    collector.add_row("a", 5, 6, steps((1, 2, 3), (4, 3, 4), guessed=3))
    collector.add_row("b", 6, 3, None)
    collector.add_row("c", 7, 3, steps((1, 0, 0), (2, 1, 1), guessed=1))
    collector.count_steps(np.array([2, 3]), np.array([3, 4]))
    collector.count_steps(np.array([1]), np.array([1]), asked=6)
    assert (collector.placed, collector.lookup) == (2, True)
    found = collector.result("here")
    assert isinstance(found, TraceSet)
    trace = found.proposers["ngram"]
    assert trace.acc.tolist() == [1, 3, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1]
    assert trace.seen is not None
    assert trace.seen.tolist() == [0, 4, 0, 0, 5, 0, 0, 0, 0, 0, 1, 2]
    assert trace.drafted is not None
    assert trace.drafted.tolist() == [0, 3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1]
    assert (trace.recorded_k, found.tokenizer, found.prompt_len.tolist()) == (6, "t", [5, 6, 7])
    known, left, unplaced, undrafted, guessed, clipped = found.notes
    assert known.startswith("4 of 12 positions are known")
    assert left.startswith("2 rows carry no acceptance")
    assert "the steps of 1 of 3 requests could not be placed" in unplaced
    assert undrafted.startswith("ngram: 1 steps had no draft")
    assert guessed.startswith("ngram: 4 steps without a draft stand among")
    assert clipped == "ngram: 2 steps ran past the output's end and were clipped"


def test_a_collector_pools_what_has_no_place() -> None:
    """Histograms add up; the drafts are known where every request tells them."""
    collector = StepCollector("eagle", ImportOptions("eagle"), 10_000)
    collector.add_row("a", 5, 6, None)
    collector.count_histogram(np.array([1, 2]), 9)
    collector.count_histogram(np.array([0, 1, 0, 4]), 12)
    found = collector.result("here")
    assert isinstance(found, AcceptanceFigures)
    assert (found.values, found.steps, found.drafted, found.recorded_k) == ((1.0, 3.0, 0.0, 4.0), 8, 21, 3)
    assert found.notes == ("K is taken to be 3, the most that a step shows",)
    collector.count_histogram(np.array([1]), None, asked=5)
    collector.count_histogram(np.array([1]), 7)
    found = collector.result("here")
    assert isinstance(found, AcceptanceFigures)
    assert (found.drafted, found.recorded_k, found.notes, found.requests) == (None, 5, (), 1)
    assert found.values == (3.0, 3.0, 0.0, 4.0, 0.0, 0.0)


def test_a_file_speaks_of_no_more_positions_than_its_size_allows() -> None:
    most = columns_positions()
    collector = StepCollector("eagle", ImportOptions("eagle"), 1)
    collector.add_row("a", 1, most - 1, None)
    collector.add_row("b", 1, 1, None)
    with pytest.raises(InputError, match=f"output of request c: got 1, outputs of {most:,} tokens in all"):
        collector.add_row("c", 1, 1, None)


def columns_positions() -> int:
    """Two bytes a position, of what a file of one byte may be unpacked to."""
    from kplan.files import most_unpacked

    return most_unpacked(1) // 2


@pytest.mark.parametrize(
    ("given", "asked", "k"), [(None, 0, 4), (None, 5, 5), (4, 0, 4), (7, 0, 7), (7, 5, 7), (4, 5, None)]
)
def test_k_is_what_was_told_and_no_less_than_was_shown(given: int | None, asked: int, k: int | None) -> None:
    collector = StepCollector("eagle", ImportOptions("eagle", recorded_k=given), 10_000)
    collector.add_row("a", 5, 6, steps((1, 2, 4)))
    collector.count_steps(np.array([2]), np.array([4]), asked)
    if k is None:
        with pytest.raises(InputError, match="--recorded-k: got 4, the recording has steps of 5 drafts"):
            collector.result("here")
    else:
        found = collector.result("here")
        assert isinstance(found, TraceSet)
        assert found.proposers["eagle"].recorded_k == k
