"""Fits: they give back what generated their data, refuse what they cannot use, and travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import (
    Lookup,
    TraceModel,
    TraceSet,
    cells,
    compare,
    fit,
    load_model,
    match_walk,
    save_model,
    to_json,
    walk,
    walk_shape,
)
from kplan.acceptance.adapt import match_position_median
from kplan.errors import InputError
from kplan.workload import load_workload
from tests.acceptance.made import flat_model, set_of

LENGTHS = np.random.default_rng(8).integers(20, 300, 200).astype(np.int32)


@pytest.fixture(scope="module", params=["eagle3", "ngram"])
def refitted(request: pytest.FixtureRequest) -> tuple[TraceModel, TraceModel]:
    """A shipped model, and a fit on 200 requests that it generated."""
    truth = load_workload("instructcoder").model(request.param)
    return truth, fit(set_of(truth.generate(11, LENGTHS), request.param), request.param)


def test_a_fit_gives_back_what_generated_its_data(refitted: tuple[TraceModel, TraceModel]) -> None:
    truth, fitted = refitted
    sample = truth.generate(11, LENGTHS)
    many = np.tile(LENGTHS, 40)
    for row in compare(sample, fitted.generate(99, many)):
        assert abs(row["acceptance_length_error"]) < 0.02, row
        assert abs(row["lag1_error"]) < 0.05, row
        assert abs(row["request_sd_error"]) < 0.15, row
    model, found = truth.generate(5, many), fitted.generate(5, many)
    if model.drafted is not None and found.drafted is not None:
        assert np.mean(found.drafted > 0) == pytest.approx(np.mean(model.drafted > 0), rel=0.1)


def test_a_fit_counts_what_it_used(refitted: tuple[TraceModel, TraceModel]) -> None:
    _, fitted = refitted
    assert fitted.facts["requests"] == 200
    assert fitted.facts["positions"] == int(LENGTHS.sum()) - 200
    assert fitted.provenance.kind == "fitted"


def test_json_keeps_the_model(refitted: tuple[TraceModel, TraceModel], tmp_path: Path) -> None:
    _, fitted = refitted
    save_model(fitted, tmp_path / "m.json")
    once = load_model(tmp_path / "m.json")
    assert (tmp_path / "m.json").stat().st_size < 40_000
    save_model(once, tmp_path / "again.json")
    twice = load_model(tmp_path / "again.json")
    np.testing.assert_array_equal(once.generate(1, LENGTHS).acc, twice.generate(1, LENGTHS).acc)
    assert walk(once.generate(1, LENGTHS), 3).acceptance_length == pytest.approx(
        walk(fitted.generate(1, LENGTHS), 3).acceptance_length, rel=0.01
    )
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["again.json", "m.json"]


def noisy_set(n: int) -> TraceSet:
    return set_of(flat_model([0.6]).generate(0, np.full(n, 30)))


def test_loopy_rows_are_left_out() -> None:
    loopy = np.zeros(60, np.bool_)
    loopy[:25] = True
    fitted = fit(replace(noisy_set(60), loopy=loopy), "made", classes=1, regimes=1)
    assert fitted.facts["requests"] == 35
    assert fitted.facts["loopy_rows_left_out"] == 25


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(InputError, match="at least 20"):
        fit(noisy_set(19), "made")


def test_a_proposer_that_was_not_recorded_is_refused() -> None:
    with pytest.raises(InputError, match="the traces have made"):
        fit(noisy_set(30), "suffix")


def test_published_lengths_are_met() -> None:
    wanted = {2: 2.0, 4: 2.4, 7: 2.6}
    output_len = np.full(200, 250, np.int32)
    model, reached = match_walk(flat_model([0.4, 0.7], stay=0.95), wanted, output_len)
    again = model.generate(12345, np.full(8000, 250))
    for k, length in wanted.items():
        assert reached[k] == pytest.approx(length, rel=0.005)
        assert walk(again, k).acceptance_length == pytest.approx(length, rel=0.01)


def test_a_published_median_is_met() -> None:
    start = flat_model([0.4, 0.7], stay=0.95)
    model, quartiles = match_position_median(start, 2.2, np.full(9, 250, np.int32))
    trace = model.generate(77, np.full(4001, 250))
    means = trace.acc.reshape(4001, 250)[:, 1:].mean(axis=1)
    assert quartiles[1] == pytest.approx(2.2, rel=0.02)
    assert float(np.median(means)) == pytest.approx(2.2, rel=0.03)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [
        ({}, "none"),
        ({0: 1.0}, "K: got 0"),
        ({21: 2.0}, "K: got 21"),
        ({2: 3.5}, "K=2"),
        ({2: 2.0, 3: 1.9}, "K=3"),
    ],
)
def test_impossible_lengths_are_refused(lengths: dict[int, float], named: str) -> None:
    with pytest.raises(InputError, match=named):
        match_walk(flat_model([0.5]), lengths, np.full(5, 50, np.int32))


@pytest.mark.parametrize("median", [0.9, 21.5, float("nan")])
def test_impossible_medians_are_refused(median: float) -> None:
    with pytest.raises(InputError, match="median"):
        match_position_median(flat_model([0.5]), median, np.full(5, 50, np.int32))


Change = Callable[[dict[str, Any]], Any]

DAMAGED: dict[str, tuple[Change, str]] = {
    "version": (lambda m: m.update(schema_version=7), "schema_version"),
    "extra": (lambda m: m.update(colour=1), "colour"),
    "chance": (lambda m: m["states"][0].update(tail=1.5), "states.0.tail"),
    "nan": (lambda m: m["states"][0].update(tail=float("nan")), "states.0.tail"),
    "depths": (lambda m: m["states"][0].update(new=[0.5]), "20 values"),
    "states": (lambda m: m["states"].pop(), "states do not make"),
    "sum": (lambda m: m.update(class_by_length=[[0.4]]), "sum to 0.400"),
    "bins": (lambda m: m.update(length_edges=[5.0]), "one row more"),
    "known": (lambda m: m.update(recorded_k=3), "known_k 20 is above"),
    "match": (lambda m: m["states"][0].update(match=[[0.1] * 10, [0.1] * 10]), "match"),
}


@pytest.mark.parametrize(("change", "named"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_model_file_is_named(tmp_path: Path, change: Change, named: str) -> None:
    record = json.loads(to_json(flat_model([0.5])))
    change(record)
    path = tmp_path / "m.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError) as error:
        load_model(path)
    assert named in str(error.value)
    assert "m.json" in str(error.value)
    assert "\n" not in str(error.value)


LOOKUP_DAMAGED: dict[str, tuple[Change, str]] = {
    "no match": (lambda m: m["states"][0].update(match=None), "match needs 2 rows of 10 with a lookup"),
    "short match": (lambda m: m["states"][0]["match"].__setitem__(1, [0.1] * 9), "match needs 2 rows of 10"),
    "a head's first": (lambda m: m["states"][0].update(first=[[0.1]] * 9), "first needs 9 rows of 6"),
    "ages": (lambda m: m["states"][0].update(first=[[0.1] * 6] * 8), "first needs 9 rows of 6"),
    "offers": (
        lambda m: m["lookup"]["new_offer"].__setitem__(1, [0.5, 0.5]),
        "a row of 2 chances that sum to 1.000; 21",
    ),
    "classes": (
        lambda m: m.update(class_by_length=[[0.5, 0.3, 0.2]]),
        "a row of 3 chances that sum to 1.000; 2 and",
    ),
    "regimes": (
        lambda m: m["regime_start"].__setitem__(0, [1.0, 0.0, 0.0]),
        "do not make 2 classes x 3 regimes",
    ),
    "start": (
        lambda m: m["regime_start"].__setitem__(1, [1.0]),
        "a row of 1 chances that sum to 1.000; 2 and",
    ),
    "switches": (lambda m: m["regime_switch"].pop(), "regime_switch must be 2 x 2 x 2"),
    "a switch": (lambda m: m["regime_switch"][1].pop(), "regime_switch must be 2 x 2 x 2"),
    "above 1": (lambda m: m["regime_switch"][1].__setitem__(0, [0.6, 0.411]), "sum to 1.011"),
    "below 1": (lambda m: m["regime_switch"][1].__setitem__(0, [0.6, 0.389]), "sum to 0.989"),
    "none": (lambda m: m.update(states=[], regime_start=[]), "0 states do not make 0 classes x 0"),
    "deep": (lambda m: m.update(known_k=21), "known_k"),
    "no depth": (lambda m: m.update(known_k=0), "known_k"),
    **{
        name: (lambda m, name=name: m["states"][3].update({name: [0.5] * 19}), "hazards by depth need 20")
        for name in ("confirmed", "failed", "unseen", "new")
    },
}


def lookup_of_two() -> TraceModel:
    """Two classes of two regimes, every hazard its own."""
    model = flat_model([0.1, 0.2, 0.3, 0.4], classes=2, known_k=7)
    model.hazard[:] += np.arange(cells.CELLS) / 1000
    offers = np.zeros((2, 21))
    offers[:, 3], offers[0, 20], offers[1, 4] = 0.25, 0.75, 0.75
    return replace(model, lookup=Lookup(offers, np.array([0.5, 1 / 3])))


@pytest.mark.parametrize(("change", "named"), LOOKUP_DAMAGED.values(), ids=LOOKUP_DAMAGED)
def test_a_damaged_file_of_a_lookup_is_named(tmp_path: Path, change: Change, named: str) -> None:
    record = json.loads(to_json(lookup_of_two()))
    change(record)
    (tmp_path / "m.json").write_text(json.dumps(record))
    with pytest.raises(InputError) as error:
        load_model(tmp_path / "m.json")
    assert named in str(error.value)


@pytest.mark.parametrize("recorded_k", [3, 20])
@pytest.mark.parametrize("lookup", [False, True])
def test_a_file_holds_every_hazard_to_four_digits(tmp_path: Path, recorded_k: int, lookup: bool) -> None:
    """A head has no match, and of the first draft only the column of the offer that it makes."""
    model = replace(lookup_of_two(), recorded_k=recorded_k, known_k=3)
    model = model if lookup else replace(model, lookup=None)
    state = json.loads(to_json(model))["states"][1]
    assert state["confirmed"][0] == pytest.approx(0.2 + 0.074)
    assert state["tail"] == pytest.approx(0.2 + 0.154)
    save_model(model, tmp_path / "m.json")
    again = load_model(tmp_path / "m.json")
    column = 5 if recorded_k == 20 else 2
    met = np.ones(cells.CELLS, np.bool_)
    if not lookup:
        met[: cells.FIRST] = False
        met[cells.FIRST : cells.CONFIRMED] = np.tile(np.arange(cells.OFFERS) == column, cells.AGES)
        assert again.lookup is None
    else:
        assert again.lookup is not None
        assert again.lookup.new_offer.tolist() == lookup_of_two().lookup.new_offer.tolist()
        assert again.lookup.grow.tolist() == [0.5, 0.3333]
    np.testing.assert_allclose(again.hazard[:, met], model.hazard[:, met], rtol=1e-9)
    for name in ("class_by_length", "regime_start", "regime_switch", "length_edges"):
        np.testing.assert_allclose(getattr(again, name), getattr(model, name))
    assert (again.recorded_k, again.known_k, again.proposer) == (recorded_k, 3, "made")
    assert again.provenance == model.provenance


def test_chances_close_to_one_after_rounding(tmp_path: Path) -> None:
    thirds = np.array([[1 / 3, 1 / 3, 1 / 3]])
    model = replace(flat_model([0.5] * 3, classes=3), class_by_length=thirds)
    save_model(model, tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["class_by_length"] == [[0.3333] * 3]
    np.testing.assert_allclose(load_model(tmp_path / "m.json").class_by_length, thirds, rtol=1e-12)


def test_a_model_file_that_is_not_json_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{")
    for name, named in (("m.json", "not JSON"), ("none.json", "No such file")):
        with pytest.raises(InputError, match=named):
            load_model(tmp_path / name)


def test_shape_of_a_walk_with_nothing_to_measure() -> None:
    shape = walk_shape(flat_model([0.5]).generate(0, np.array([1, 1])), 3)
    assert np.isnan([shape.acceptance_length, shape.lag1, shape.request_sd]).all()
