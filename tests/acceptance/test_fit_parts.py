"""The parts of a fit, each by hand: pooled hazards, the first guess, shares of classes, a lookup's offers."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import ProposerTrace, TraceModel, cells, fit
from kplan.acceptance.cells import Events
from kplan.errors import InputError
from tests.acceptance.made import flat_model, set_of, trace_of

fitting: Any = sys.modules["kplan.acceptance.fit"]  # the package's name for it is the function


def events(*requests: list[tuple[int, int]]) -> Events:
    """Requests of one position each, which has the (cell, yes) given."""
    flat = [event for request in requests for event in request]
    return Events(
        bounds=np.concatenate([[0], np.cumsum([len(request) for request in requests])]),
        cell=np.array([cell for cell, _ in flat], np.int16),
        yes=np.array([yes for _, yes in flat], np.uint8),
        starts=np.arange(len(requests) + 1),
    )


def test_a_cell_of_few_events_leans_on_the_depth_before() -> None:
    """Three of four at depth 1, none of one at depth 3: half a count on either side makes 7/12 of them all;
    then (3 + 5 x 7/12) / 9 = 71/108 at depth 1, the same at depth 2, and 5 x 71/108 / 6 from depth 3 on."""
    low = cells.NEW
    hazard = fitting.pooled_hazard(events([(low, 1), (low, 1), (low, 1), (low, 0), (low + 2, 0)]))
    np.testing.assert_allclose(hazard[low : low + 2], 71 / 108)
    np.testing.assert_allclose(hazard[low + 2 : low + 20], 355 / 648)
    others = np.delete(hazard, np.arange(low, low + 20))
    np.testing.assert_allclose(others, 0.5)


@pytest.mark.parametrize(
    ("cell", "first", "after"),
    [
        (0, 0, 10),  # matches, after no match
        (10, 10, 20),  # and after a failed one
        (20, 20, 26),  # the first draft, by age
        (26, 26, 32),
        (68, 68, 74),
        (74, 74, 94),  # by depth: confirmed, failed, unseen, new
        (94, 94, 114),
        (114, 114, 134),
        (134, 134, 154),
        (154, 154, 155),  # the tail
    ],
)
def test_cells_of_another_kind_are_not_leant_on(cell: int, first: int, after: int) -> None:
    """One yes: (1 + .5) / (1 + 1) = 3/4 of the kind, and (1 + 5 x 3/4) / 6 = 19/24."""
    expected = np.full(155, 0.5)
    expected[first:after] = 19 / 24
    np.testing.assert_allclose(fitting.pooled_hazard(events([(cell, 1)])), expected)


def test_requests_are_ranked_by_how_unlikely_they_are() -> None:
    """Where 1/2 is expected: 11 of 16 is 3 more, or 1.5 standard deviations; 4 of 4 is 2 more, or 2 of them;
    3 of 6 is none, and none of one is half a draft less, over a spread of 1 at least."""
    cell = cells.NEW
    given = events(
        [(cell, 1)] * 11 + [(cell, 0)] * 5, [(cell, 1)] * 4, [(cell, 1)] * 3 + [(cell, 0)] * 3, [(cell, 0)]
    )
    pooled = np.full(cells.CELLS, 0.5)
    responsibility, hazard = fitting._first_guess(given, pooled, 2, 1)
    np.testing.assert_allclose(responsibility, [[0.05, 0.95], [0.05, 0.95], [0.95, 0.05], [0.95, 0.05]])
    # a class's share in a cell, by who is in it, with 30 pooled events beside
    yes, seen = np.array([11, 4, 3, 0]), np.array([16, 4, 6, 1])
    for c, shares in enumerate(responsibility.T):
        assert hazard[c, cell] == pytest.approx((shares @ yes + 15) / (shares @ seen + 30))
    np.testing.assert_allclose(hazard[:, cell + 1], 0.5)


def test_regimes_begin_apart() -> None:
    """By .6 in log-odds on either side, the worse first; of three the second between."""
    _, two = fitting._first_guess(events([(0, 1)], [(0, 0)]), np.full(cells.CELLS, 0.5), 1, 2)
    np.testing.assert_allclose(two[:, 5], [1 / (1 + np.exp(0.6)), 1 / (1 + np.exp(-0.6))])
    _, three = fitting._first_guess(events([(0, 1)], [(0, 0)]), np.full(cells.CELLS, 0.5), 2, 3)
    np.testing.assert_allclose(three[[0, 1, 2, 3, 4, 5], 5], np.tile([two[0, 5], 0.5, two[1, 5]], 2))


def test_a_first_guess_is_never_certain() -> None:
    pooled = np.full(cells.CELLS, 0.5)
    pooled[3], pooled[4] = 0.0, 1.0
    _, hazard = fitting._first_guess(events([(0, 1)]), pooled, 1, 1)
    np.testing.assert_allclose(hazard[0, 3:5], [1e-4, 1 - 1e-4])


def test_classes_of_a_bin_lean_on_those_of_all() -> None:
    """Ten requests of the mean shares beside those of the bin; a bin without any has the mean."""
    given = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.1, 0.9]])
    mean = np.array([0.4, 0.6])
    found = fitting._class_shares(given, np.array([0, 0, 2, 2]), 3)
    np.testing.assert_allclose(found, [([1.5, 0.5] + 10 * mean) / 12, mean, ([0.1, 1.9] + 10 * mean) / 12])
    never = fitting._class_shares(np.array([[1.0, 0.0]]), np.array([0]), 1)
    assert never.tolist() == [[1.0, 1e-12]]


def test_offers_of_a_lookup_are_counted_where_it_looks() -> None:
    """What a match offers, by whether the last one failed; and whether the offer grows while a match goes on,
    by whether all of it was accepted."""
    acc = [[1, 2, 1, 4, 2, 2, 1, 1], [1, 1, 1, 1]]
    offered = [[0, 2, 2, 3, 3, 4, 0, 0], [0, 25, 0, 25]]
    found = fitting._fit_lookup(trace_of(acc, 30, offered))
    # after no match 2, and 20 (of 25) twice; after a failed one 3; and one full offer for either
    new_offer = np.zeros((2, 21))
    new_offer[0, 2], new_offer[0, 20] = 1 / 4, 3 / 4
    new_offer[1, 3], new_offer[1, 20] = 1 / 2, 1 / 2
    np.testing.assert_allclose(found.new_offer, new_offer)
    # after 2 of 2 tokens (one of two drafts): 2, no more; after 2 of 3: 4, more; after 2 of 4: 0, no more;
    # after 4 of 3 (all): 3, no more
    np.testing.assert_allclose(found.grow, [1 / 3, 0.0])


def test_a_full_offer_does_not_grow() -> None:
    found = fitting._fit_lookup(trace_of([[1, 3, 2, 1, 1]], 20, [[0, 20, 20, 20, 0]]))
    assert found.grow.tolist() == [0.0, 0.0]
    found = fitting._fit_lookup(trace_of([[1, 3, 3, 1, 1]], 20, [[0, 2, 3, 3, 0]]))
    assert found.grow.tolist() == [0.0, 1.0]  # after all of 2, to 3; after 3 tokens of 3 drafts, to 3


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits by likelihood alone."""
    monkeypatch.setattr(fitting, "_calibrated", lambda model, *_: model)


def one_kind(n: int, recorded_k: int = 3) -> ProposerTrace:
    """Outputs of 11 to 14 tokens, by turns, that accept 1, 2, 3, 1, ... tokens."""
    rows = [
        [1, *[min(1 + i % 3, length - i) for i in range(1, length)]] for length in [11, 12, 13, 14] * (n // 4)
    ]
    return trace_of(rows, recorded_k)


@pytest.mark.usefixtures("uncalibrated")
def test_one_class_of_one_regime_has_the_shares_that_were_recorded() -> None:
    """Beside 30 events of the pooled hazard; the likelihood is that of every event under it."""
    trace = one_kind(24)
    model = fit(set_of(trace), "made", classes=1, regimes=1)
    seen_events = fitting.events_of(trace)
    pooled = fitting.pooled_hazard(seen_events)
    yes = np.bincount(seen_events.cell, seen_events.yes, cells.CELLS)
    seen = np.bincount(seen_events.cell, minlength=cells.CELLS)
    np.testing.assert_allclose(model.hazard[0], (yes + 30 * pooled) / (seen + 30), rtol=1e-9)
    chance = np.clip(model.hazard[0], 1e-5, 1 - 1e-5)
    likelihood = yes @ np.log(chance) + (seen - yes) @ np.log(1 - chance)
    assert model.facts["log_likelihood"] == pytest.approx(likelihood)
    assert model.length_edges.tolist() == [11.75, 12.5, 13.25]
    assert (model.recorded_k, model.known_k, model.lookup) == (3, 3, None)
    for shares in (model.class_by_length, model.regime_start, model.regime_switch):
        np.testing.assert_allclose(shares, 1.0)
    assert (model.facts["requests"], model.facts["positions"]) == (24, 24 * 11.5)
    assert model.facts["loopy_rows_left_out"] == 0


@pytest.mark.usefixtures("uncalibrated")
def test_a_model_knows_no_deeper_draft_than_it_has_cells_for() -> None:
    model = fit(set_of(one_kind(20, 30)), "made", classes=1, regimes=1)
    assert (model.recorded_k, model.known_k) == (20, 20)


@pytest.mark.usefixtures("uncalibrated")
def test_every_round_counts_what_was_expected_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected counts given, what a round makes of them worked out; and what the next is asked with."""
    asked: list[Any] = []
    moves = np.array([[[8.0, 2.0], [1.0, 3.0]], [[1.0, 1.0], [0.0, 4.0]]])

    def expect(*given: Any) -> Any:
        asked.append(given)
        hazard, n = given[4], len(given[3]) - 1
        gain = {1: 100.0, 2: 100.6}.get(len(asked), 101.0)  # .6 is enough to go on, .4 is not
        shares = np.tile([0.25, 0.75], (n, 1))
        begins = np.array([[5.0, 1.0], [0.0, 2.0]])
        return np.full(hazard.shape, 6.0), np.full(hazard.shape, 10.0), shares, begins, moves, gain

    monkeypatch.setattr(fitting, "expect", expect)
    trace = one_kind(20)
    model = fit(set_of(trace), "made", classes=2, regimes=2)
    assert len(asked) == 3
    pooled = fitting.pooled_hazard(fitting.events_of(trace))
    np.testing.assert_allclose(model.hazard, np.tile((6 + 30 * pooled) / 40, (4, 1)))
    np.testing.assert_allclose(model.regime_start, [[6 / 8, 2 / 8], [1 / 4, 3 / 4]])
    np.testing.assert_allclose(
        model.regime_switch, (moves + 0.001) / np.array([[[10.002], [4.002]], [[2.002], [4.002]]])
    )
    np.testing.assert_allclose(model.class_by_length, np.tile([0.25, 0.75], (4, 1)))
    first, second = asked[0], asked[1]
    np.testing.assert_allclose(first[5], 0.5)
    np.testing.assert_allclose(first[6], np.tile([[0.97, 0.03], [0.03, 0.97]], (2, 1, 1)))
    assert first[7].shape == (20, 2)
    np.testing.assert_allclose(second[5], model.regime_start)
    np.testing.assert_allclose(second[6], model.regime_switch)
    np.testing.assert_allclose(np.exp(second[7]), np.tile([0.25, 0.75], (20, 1)))
    assert model.facts["log_likelihood"] == 101.0


@pytest.mark.usefixtures("uncalibrated")
def test_rounds_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []

    def expect(*given: Any) -> Any:
        rounds.append(1)
        hazard, n = given[4], len(given[3]) - 1
        one = np.ones((1, 1))
        return hazard, np.ones_like(hazard), np.ones((n, 1)), one, one[None], float(len(rounds))

    monkeypatch.setattr(fitting, "expect", expect)
    fit(set_of(one_kind(20)), "made", classes=1, regimes=1)
    assert len(rounds) == 80


@pytest.mark.usefixtures("uncalibrated")
def test_loops_and_outputs_of_one_token_are_left_out() -> None:
    trace = one_kind(24)
    short = trace_of([[1]] * 4, 3)
    both = replace(
        trace,
        output_len=np.concatenate([trace.output_len, short.output_len]),
        offsets=np.concatenate([trace.offsets, trace.offsets[-1] + short.offsets[1:]]),
        acc=np.concatenate([trace.acc, short.acc]),
        aligned=np.ones(28, np.bool_),
    )
    loopy = np.zeros(28, np.bool_)
    loopy[[0, 5, 27]] = True
    traces = replace(set_of(both), loopy=loopy)
    model = fit(traces, "made", classes=1, regimes=1)
    assert (model.facts["requests"], model.facts["loopy_rows_left_out"]) == (22, 3)
    model = fit(traces, "made", classes=1, regimes=1, keep_loopy=True)
    assert (model.facts["requests"], model.facts["loopy_rows_left_out"]) == (24, 0)


def test_a_recording_of_steps_is_not_fitted_alone() -> None:
    steps = replace(one_kind(24), seen=np.ones(len(one_kind(24).acc), np.uint8))
    with pytest.raises(InputError, match="a recording of steps"):
        fit(set_of(steps), "made")


@pytest.mark.parametrize(
    ("recorded_k", "reached", "factor", "tried"),
    [
        (20, (0.2, 0.3, 0.3), 1.5, [1.0, 1.5, 1.5]),  # .3 wanted
        (2, (0.3, 0.3, 0.3), 1.0, [1.0, 1.0, 1.0]),
        (20, (0.1, 0.1, 0.1), 1.6, [1.0, 1.6, 1.6]),  # bounds of the factor
        (20, (0.9, 0.9, 0.9), 0.7, [1.0, 0.7, 0.7]),
        (20, (0.25, float("nan"), 9.0), 1.2, [1.0, 1.2]),  # too few steps: no more rounds
        (20, (0.0, 9.0, 9.0), 1.0, [1.0]),
    ],
)
def test_the_spread_is_stretched_until_it_is_the_recorded_one(
    recorded_k: int,
    reached: tuple[float, ...],
    factor: float,
    tried: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Short outputs first, the spread over three rounds, the walk at every K last."""
    trace = one_kind(20)
    spreads = iter([0.3, *reached])
    seen: dict[str, list[Any]] = {"k": [], "factor": [], "positions": [], "by_length": [], "sample": []}

    def match_lengths(model: TraceModel, of: ProposerTrace, k: int) -> TraceModel:
        assert of is trace
        seen["by_length"].append(k)
        return replace(model, proposer="by length")

    def stretch_states(model: TraceModel, pooled: Any, by: float) -> TraceModel:
        assert (model.proposer, pooled) == ("by length", "pooled")
        seen["factor"].append(by)
        return replace(model, facts={"stretched": by})

    def match_walk(model: TraceModel, lengths: Any, output_len: Any, positions: int = 0) -> Any:
        assert (lengths, output_len) == ("lengths", trace.output_len)
        seen["positions"].append(positions)
        return SimpleNamespace(
            generate=lambda _, sample: seen["sample"].append(sample)
        ) if not positions else model, {}

    def walk_shape(_: Any, k: int) -> Any:
        seen["k"].append(k)
        return SimpleNamespace(request_sd=next(spreads))

    monkeypatch.setattr(fitting, "match_lengths", match_lengths)
    monkeypatch.setattr(fitting, "stretch_states", stretch_states)
    monkeypatch.setattr(fitting, "match_walk", match_walk)
    monkeypatch.setattr(fitting, "walk_shape", walk_shape)
    monkeypatch.setattr(fitting, "walk_lengths", lambda _: "lengths")
    start = replace(flat_model([0.5]), recorded_k=recorded_k, facts={"requests": 20})
    found = fitting._calibrated(start, trace, "pooled")
    assert found.facts == {"requests": 20, "spread_factor": pytest.approx(factor)}
    assert seen["factor"] == pytest.approx([*tried, factor])
    assert seen["positions"] == [*[0] * len(tried), 6_000_000]
    assert set(seen["k"]) == {min(3, recorded_k)} == set(seen["by_length"])
    # outputs of 12.5 tokens on average
    assert len(seen["sample"][0]) == 1_500_000 / 12.5
