"""The moments of a recording of steps, their errors, and how a lender is moved: by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import Lookup, Steps, TraceModel, by_length, cells, walk
from kplan.acceptance import lent as lending
from kplan.acceptance import match_steps as matching
from kplan.acceptance.adapt import logit
from kplan.acceptance.lent import Lender, Lent
from kplan.acceptance.match_steps import Shown, lent_to, sampling_error, tokens_per_step
from tests.acceptance.made import flat_model, steps_of, trace_of

AS_IT_IS = Lent(np.zeros(20), 1.0, 1.0, np.zeros(0), np.ones((1, 1)), 0.0, np.zeros(21))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lenders are pooled and walks measured on few positions."""
    monkeypatch.setattr(lending, "_POOLED", (10, 20))
    monkeypatch.setattr(by_length, "POSITIONS", 400)
    sample = matching.sample_lengths
    monkeypatch.setattr(matching, "sample_lengths", lambda lengths, _=0: sample(lengths, 400))


def lender(model: TraceModel, pooled: float = 0.5) -> Lender:
    """One whose pooled hazards are all the same."""
    made = Lender(model)
    made._pooled = logit(np.full(cells.CELLS, pooled))
    return made


def odds(hazard: Any) -> Any:
    return hazard / (1 - hazard)


def test_a_lender_that_is_not_moved_stays() -> None:
    model = flat_model([0.2, 0.4, 0.6, 0.8], classes=2)
    moved = lender(model).moved(replace(AS_IT_IS, class_by_length=model.class_by_length), 7)
    np.testing.assert_allclose(moved.hazard, model.hazard)
    assert (moved.known_k, moved.recorded_k, moved.lookup) == (7, 20, None)


def test_classes_and_regimes_are_stretched_apart() -> None:
    """Log-odds in multiples of log 2, pooled at 1: a class of 2 and 4, begun in by 1/4 and 3/4, lies at 3.5.

    Within twice as far: 3.5 - 3 = .5 and 4.5. Between three times as far: 1 + 3 (.5 - 1), 1 + 3 (4.5 - 1).
    """
    model = flat_model([4 / 5, 16 / 17])
    model.regime_start[:] = [0.25, 0.75]
    moved = lender(model, 2 / 3).moved(replace(AS_IT_IS, within=2.0, between=3.0), 20)
    np.testing.assert_allclose(odds(moved.hazard[:, 50]), [2**-0.5, 2**11.5])


def test_shifts_and_matches_are_added() -> None:
    shift = np.arange(1.0, 21.0)
    lookup = Lookup(np.tile(np.concatenate([[0], np.full(20, 0.05)]), (2, 1)), np.array([0.25, 0.5]))
    offer = np.zeros(21)
    offer[2] = np.log(11)
    by = replace(AS_IT_IS, shift=shift, match=np.log(3), offer=offer, length_edges=np.array([9.0]))
    by = replace(by, class_by_length=np.ones((2, 1)))
    moved = lender(replace(flat_model([0.5]), lookup=lookup)).moved(by, 20)
    np.testing.assert_allclose(moved.hazard[0, : cells.FIRST], 0.75)
    np.testing.assert_allclose(logit(moved.hazard[0, cells.NEW : cells.NEW + 10]), shift[:10])
    np.testing.assert_allclose(moved.hazard[0, cells.CONFIRMED : cells.FAILED], 0.5)
    assert moved.lookup is not None
    # one offer in 20 becomes 11 times as likely: 11 of 30
    expected = np.concatenate([[0], np.full(20, 1 / 30)])
    expected[2] = 11 / 30
    np.testing.assert_allclose(moved.lookup.new_offer, [expected, expected])
    assert moved.lookup.grow.tolist() == [0.25, 0.5]
    assert (moved.length_edges.tolist(), moved.class_by_length.tolist()) == ([9.0], [[1.0], [1.0]])


def test_a_move_is_kept_as_json() -> None:
    by = Lent(
        np.arange(20) / 3, 1 / 3, 2 / 3, np.array([5.0]), np.array([[1 / 3, 2 / 3], [1.0, 0.0]]), -1 / 3,
        np.arange(21) / 7,
    )  # fmt: skip
    told = by.to_json()
    assert (told["between"], told["within"], told["match"]) == (0.3333, 0.6667, -0.3333)
    assert (told["shift"][1], told["offer"][1]) == (0.3333, 0.1429)
    assert told["class_by_length"] == [[0.3333, 0.6667], [1.0, 0.0]]
    again = Lent.from_json(told)
    assert again.to_json() == told
    for key, value in (("shift", [0.0] * 19), ("offer", [0.0] * 20), ("length_edges", [5.0, 6.0])):
        with pytest.raises(ValueError, match="sizes that no fit gives"):
            Lent.from_json({**told, key: value})


def test_shares_have_the_error_of_a_count_with_one_half_on_either_side() -> None:
    """3 of 4: (3.5 / 5)(1.5 / 5) / 4 is the variance; of 9 of 9, (9.5 / 10)(.5 / 10) / 9; of none, 1/4."""
    share, error = matching._shares(np.array([3, 9, 0]), np.array([4, 9, 0]))
    np.testing.assert_allclose(share, [0.75, 1.0, 0.0])
    np.testing.assert_allclose(error, [np.sqrt(0.7 * 0.3 / 4), np.sqrt(0.95 * 0.05 / 9), 0.5])


def two_kinds(k: int = 2, lookup: bool = False) -> Steps:
    """Steps of 12 requests that accept none and 12 that accept two of two drafts, 12 and 11 steps of each."""
    rows = [[1] * 14, [1, *[3, 2, 1] * 11, 3, 2, 1]] * 12
    offers = [[0, *[2, 0] * 6, 1], [0, *[2] * 36]] * 12 if lookup else None
    return matching.walk_steps(trace_of(rows, 5, offers), k)


def test_moments_are_those_of_the_steps() -> None:
    steps = two_kinds()
    target, error = matching._moments(steps, [1, 2], 0)
    accepted, reached = steps.by_depth(2)
    # a request of 14 tokens has 13 steps, the last of which can hold no draft; one of 37 has 12 of 3 tokens
    assert (reached.tolist(), accepted.tolist()) == ([12 * 12 + 144, 144], [144, 144])
    np.testing.assert_allclose(target[:2], [0.5, 1.0])
    between = np.std([1.0, 3.0] * 12, ddof=1)
    assert target[2] == pytest.approx(between)
    assert np.isfinite(target[3]) or np.isnan(target[3])
    np.testing.assert_allclose(error[0], np.sqrt(0.25 / 288))
    assert error[2] == pytest.approx(between / np.sqrt(48))
    # neighbours among the 13 + 12 steps of twelve pairs of requests, the last step of each left out
    assert error[3] == pytest.approx(1 / np.sqrt(12 * 25 - 2 * 24))
    assert len(target) == len(error) == 4


def test_a_lookups_offers_are_moments_too() -> None:
    """Of 300 steps 144 + 72 had a draft or two, and 12 one alone - those at a short output's end."""
    steps = two_kinds(lookup=True)
    target, _ = matching._moments(steps, [1], 2)
    had_one, had_two = int((steps.offered >= 1).sum()), int((steps.offered >= 2).sum())
    assert (len(steps.offered), had_one, had_two) == (300, 228, 216)
    np.testing.assert_allclose(target[3:], [228 / 300, 216 / 228])


def test_outputs_are_parted_into_bins_of_forty() -> None:
    lengths = np.arange(10, 10 + 95)
    edges = matching._length_edges(trace_of([[1] * int(n) for n in lengths], 3))
    assert edges.tolist() == [np.median(lengths)]  # two bins of 40 and more
    assert matching._length_edges(trace_of([[1] * 9] * 30, 3)).tolist() == []
    many = matching._length_edges(trace_of([[1] * (5 + n % 100) for n in range(400)], 3))
    assert len(many) == 3
    assert matching._length_edges(trace_of([[1] * 9] * 160, 3)).tolist() == [9.0]


def shown(rows: list[list[int]], k: int) -> Shown:
    return Shown.of(steps_of(trace_of(rows, k), k))


def test_what_was_asked_for_is_shown() -> None:
    trace = trace_of([[1, 3, 2, 1, 1, 1]] * 2, 5)
    asked = np.tile(np.array([2, 2, 2, 2, 1, 1], np.uint8), 2)
    found = Shown.of(steps_of(trace, asked))
    assert found.ks == [1, 2]
    assert found.known_k == 2
    assert found.steps.tokens.tolist() == [3, 1, 1] * 2
    lookup = Shown.of(steps_of(trace_of([[1, 3, 2, 1, 1, 1]], 5, [[0, 2, 0, 0, 1, 0]]), 4))
    assert (lookup.ks, lookup.known_k) == ([4], 2)


def test_the_error_of_tokens_per_step_is_of_whole_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 8 steps of 1 token and 4 of 2: 16 of 12 steps, residuals of 8 - 4/3 x 8 and 8 - 4/3 x 4."""
    found = shown([[1] * 9, [1, *[2, 1] * 4]], 1)
    asked: list[float] = []

    def per_step(_: Shown, __: Lender, by: Lent) -> float:
        asked.append(float(by.shift[3]))
        return 1.5 + 2.0 * float(by.shift[3])

    monkeypatch.setattr(matching, "tokens_per_step", per_step)
    start = replace(AS_IT_IS, shift=np.full(20, 0.25))
    error, low, high = sampling_error(found, lender(flat_model([0.5])), start)
    assert error == pytest.approx(1.96 * np.hypot(8 / 3, 8 / 3) / 12)
    assert sorted(asked) == pytest.approx([0.15, 0.35])
    np.testing.assert_allclose(low.shift, 0.25 - error / 2)
    np.testing.assert_allclose(high.shift, 0.25 + error / 2)
    for slope in (0.0, -1.0, 1e-9):  # where shifts do nothing, as far as they may go
        monkeypatch.setattr(matching, "tokens_per_step", lambda _, __, by, s=slope: s * float(by.shift[0]))
        _, low, high = sampling_error(found, lender(flat_model([0.5])), start)
        np.testing.assert_allclose([low.shift[0], high.shift[0]], [-2.75, 3.25])


def test_tokens_per_step_are_those_of_the_lender_moved() -> None:
    found = shown([[1, *[2, 1] * 10]] * 3, 1)
    for hazard, expected in ((1.0, 2.0), (0.0, 1.0)):
        model = flat_model([hazard])
        assert tokens_per_step(found, lender(model), AS_IT_IS) == pytest.approx(expected, abs=0.02)
    up, half = replace(AS_IT_IS, shift=np.full(20, np.log(3))), lender(flat_model([0.5]))
    made = half.moved(up, 1).generate(matching._SEED, matching.sample_lengths(found.trace.output_len))
    assert tokens_per_step(found, half, up) == walk(made, 1).acceptance_length > 1.5


@pytest.mark.parametrize("lookup", [False, True])
def test_a_lender_is_moved_to_the_moments(lookup: bool) -> None:
    """On the sample that it is measured on, moments that can be met are: shares by depth within .02."""
    offers = np.zeros((2, 21))
    offers[:, 1:4] = [0.3, 0.3, 0.4]
    made = replace(flat_model([0.3, 0.8], classes=2), lookup=Lookup(offers, np.zeros(2)) if lookup else None)
    made.hazard[:, : cells.FIRST] = 0.6 if lookup else 1.0
    truth = made.generate(5, np.full(25, 40))
    found = Shown.of(steps_of(truth, 3))
    start = replace(made, hazard=np.clip(made.hazard - 0.15, 0.1, 0.9))
    lent, left = lent_to(found, lender(start))
    steps = matching.walk_steps(
        lender(start).moved(lent, 3).generate(matching._SEED, matching.sample_lengths(truth.output_len)),
        found.asked,
    )
    wanted, reached = (np.divide(*one.by_depth(3)) for one in (found.steps, steps))
    np.testing.assert_allclose(reached, wanted, atol=0.04)
    assert (lent.match != 0.0) == lookup
    assert np.any(lent.offer[1:] != 0.0) == lookup
    np.testing.assert_allclose(lent.shift[2:], lent.shift[2])
    assert 0 <= left < 30
    assert len(lent.class_by_length) == 1
    assert steps.acceptance_length == pytest.approx(found.steps.acceptance_length, rel=0.04)


def test_what_cannot_be_measured_takes_no_part() -> None:
    """Requests of two steps have neither neighbours nor a spread: the shares by depth alone are matched."""
    lent, left = lent_to(shown([[1, 3, 2, 1, 3, 2, 1]] * 30, 2), lender(flat_model([0.3])))
    assert np.isfinite(lent.shift).all()
    assert np.isfinite([left, lent.between, lent.within]).all()
    assert lent.shift[0] > 0.2
