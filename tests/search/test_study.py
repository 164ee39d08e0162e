"""The search over batch tables: never worse than its start, and the same whoever simulates it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.profiles import load_drafter, load_model
from kplan.registry import parse_policy
from kplan.search.candidates import greedy_table, rates, table_text, walk_curve
from kplan.search.study import TableSearch, Tried, _text, search_table
from kplan.simulate import Setup, draw_requests, prepare, run_policy


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(make_scenario({"qps": 12.0, "workload": "gsm8k", "max_k": 4, "max_num_seqs": 64}))


def test_the_greedy_table_is_tried_first_and_never_beats_the_best_whatever_the_workers(setup: Setup) -> None:
    one = search_table(setup, 12, 1, 3, 10.0)
    told: list[str] = []
    two = search_table(setup, 12, 2, 3, 10.0, told.append)
    assert one == two
    assert told[-1] == "trial 12 of 12"
    assert one.requests == 120
    assert len(one.trials) == 12
    drawn = draw_requests(setup, 120, 3)
    curve = walk_curve(drawn.trace, 4)
    rate = rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context)
    assert one.greedy.policy == table_text(greedy_table(rate))
    assert one.best is not None
    assert one.best.tpot_s <= one.greedy.tpot_s
    for tried in (one.greedy, one.best):
        run = run_policy(setup, parse_policy(tried.policy), drawn)
        assert tried.tpot_s == run.mean_tpot_s
        assert tried.output_tokens == drawn.output_len.sum()
    assert len({tried.policy for tried in one.trials}) > 6


def test_a_load_that_nothing_sustains_has_no_best(setup: Setup) -> None:
    from kplan.simulate import with_load

    found = search_table(with_load(setup, qps=4000.0), 2, 1, 0, 1.0)
    assert all(tried.saturated for tried in found.trials)
    assert found.best is None


def test_a_saturated_trial_is_never_the_best() -> None:
    slow, fast, tie = Tried("a", 2.0, -0.1, 9), Tried("b", 1.0, 0.1, 9), Tried("c", 2.0, -0.1, 9)
    assert TableSearch((fast, slow, tie), 3, 0.0).best is slow


def test_neighbours_of_one_k_are_one_range() -> None:
    assert _text([1, 9, 17, 33], [3, 3, 0, 3]) == "table:1-16=3,17-32=0,33-=3"
    assert _text([1, 9], [2, 2]) == "table:1-=2"


@pytest.mark.parametrize(
    ("trials", "workers", "seconds", "told"),
    [(0, 1, 10.0, "trials: got 0"), (1, 0, 10.0, "workers: got 0"), (1, 1, 0.01, "0 requests arrive")],
)
def test_counts_below_one_are_refused(
    setup: Setup, trials: int, workers: int, seconds: float, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        search_table(setup, trials, workers, 0, seconds)


@pytest.mark.parametrize("proposer", ["pard", "eagle3-tree"])
def test_a_drafter_of_one_k_has_no_table(setup: Setup, proposer: str) -> None:
    model = load_model("llama-3.1-8b")
    with pytest.raises(InputError) as error:
        search_table(replace(setup, drafter=load_drafter(proposer, model, None)), 1, 1, 0, 10.0)
    assert str(error.value).startswith(f"proposer: got '{proposer}', engines keep one K while it drafts")
    assert "\n" not in str(error.value)


def test_a_load_without_a_rate_is_refused() -> None:
    closed = prepare(make_scenario({"concurrency": 4, "workload": "gsm8k"}))
    with pytest.raises(InputError, match="is no rate to search at"):
        search_table(closed, 1, 1, 0, 10.0)
