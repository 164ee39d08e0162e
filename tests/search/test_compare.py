"""A comparison takes as long as its load needs to settle, and says so when it was not let."""

from __future__ import annotations

import pytest

import kplan.search.compare as comparing
import kplan.simulate.settle as settle
from kplan.config.scenario import make_scenario
from kplan.registry import parse_policy
from kplan.search.cases import make_cases
from kplan.search.compare import compare, unsteady_note
from kplan.search.single import simulate_one
from kplan.simulate import Settling, prepare
from kplan.telling import silent

LOAD = {"qps": 16.0, "replications": 2}
SPECS = [parse_policy("off"), parse_policy("fixed:2")]


def _settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A theory that is wrong: it takes the load for steady after a second, of about forty."""
    for module in (settle, comparing):
        monkeypatch.setattr(module, "settling", lambda setup, rate: Settling(1.0, 20.0))


def test_a_load_that_theory_takes_for_settled_too_early_is_run_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = prepare(make_scenario(LOAD))
    _settles_at_once(monkeypatch)
    drawn, done = compare(setup, SPECS, 1, {}, silent)
    first = settle.default_requests(setup, 1)
    assert drawn[0].stretch == comparing.STRETCHES[-1]
    assert len(drawn[0].prompt_len) == len(drawn[1].prompt_len) > 1.5 * first
    assert {run.requests for one in done for run in one.runs} == {len(drawn[0].prompt_len)}


def test_the_cases_of_a_search_last_as_long_as_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    _settles_at_once(monkeypatch)
    cases, _ = make_cases(make_scenario(LOAD))
    (case,) = cases.all
    assert [one.stretch for one in case.drawn] == [comparing.STRETCHES[-1]] * 2
    kept, _ = make_cases(make_scenario(LOAD | {"requests": 700}))
    assert [(one.stretch, len(one.prompt_len)) for one in kept.all[0].drawn] == [(1.0, 700)] * 2


def test_a_number_of_requests_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = prepare(make_scenario({**LOAD, "requests": 700}))
    _settles_at_once(monkeypatch)
    drawn, done = compare(setup, SPECS, 1, {}, silent)
    assert (drawn[0].stretch, len(drawn[0].prompt_len)) == (1.0, 700)
    assert not done[1].steadiness.steady
    (note,) = unsteady_note(setup, 1, drawn, done[1])
    assert "fixed:2 had not settled" in note
    assert "more than 9%; use --requests 1400." in note


def test_a_load_that_settles_as_theory_says_is_run_once() -> None:
    setup = prepare(make_scenario(LOAD))
    drawn, done = compare(setup, SPECS, 1, {}, silent)
    assert drawn[0].stretch == 1.0
    assert unsteady_note(setup, 1, drawn, done[1]) == []


def test_fewer_requests_than_the_load_takes_to_settle_are_named() -> None:
    run = simulate_one(make_scenario({**LOAD, "requests": 400, "policy": "fixed:2"}))
    setup = prepare(make_scenario(LOAD))
    enough = settle.default_requests(setup, 1)
    assert run.notes[0].startswith(
        "400 requests arrive within 25 s, and this load takes up to 58.1 s to settle"
    )
    assert run.notes[0].endswith(f"use --requests {enough} or more.")
    free = simulate_one(make_scenario({**LOAD, "requests": enough, "policy": "fixed:2"}))
    assert not any("--requests" in note for note in free.notes)
