"""The search: the greedy table first, the same whoever works, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest

from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.search.candidates import greedy_table, rates, table_text, walk_curve
from kplan.search.cases import make_cases
from kplan.search.found import contents, judge, record, words
from kplan.search.optimize import Asked, Found, optimize, study_name
from kplan.search.score import ratio
from kplan.simulate import draw_requests, prepare, run_policy
from kplan_policies.context_table import ContextTable
from kplan_policies.table import BatchTable

VALUES = {
    "qps": 12.0,
    "workload": "gsm8k",
    "max_k": 4,
    "max_num_seqs": 64,
    "requests": 120,
    "replications": 3,
    "seed": 3,
}
ASKED = Asked(trials=12)

TENTH = """
from typing import Annotated
from kplan.space import IntRange

class CalmAtLoad:
    def __init__(
        self, k: Annotated[int, IntRange(0, 4)] = 3, calm: Annotated[int, IntRange(1, 64)] = 8
    ) -> None:
        self.k, self.calm = k, calm

    def choose_k(self, step) -> int:
        return self.k if step.batch <= self.calm else 1
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return make_scenario(VALUES)


@pytest.fixture(scope="module")
def found(scenario: Scenario) -> Found:
    return optimize(scenario, ASKED)


def test_the_greedy_table_is_tried_first_and_every_value_is_that_of_a_run(
    scenario: Scenario, found: Found
) -> None:
    setup = prepare(scenario)
    drawn = [draw_requests(setup, 120, seed) for seed in (3, 4, 5)]
    held_out = [draw_requests(setup, 120, seed) for seed in (6, 7, 8)]
    curve = walk_curve(drawn[0].trace, 4)
    rate = rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context)
    assert found.greedy.policy == table_text(greedy_table(rate))
    assert found.trials.measured[0].policy == found.greedy.policy
    trials, last = found.trials.measured, (found.greedy, found.oracle, found.references[0])
    measured = [(one, drawn) for one in (trials[0], trials[-1])]
    for tried, requests in [*measured, *((one, held_out) for one in (*last, *found.finalists))]:
        runs = [run_policy(setup, parse_policy(tried.policy), one) for one in requests]
        assert [row[0].tpot_s for row in tried.points] == [run.mean_tpot_s for run in runs]
        assert tried.output_tokens == sum(int(one.output_len.sum()) for one in requests)
    assert [one.policy for one in found.references] == ["off", *[f"fixed:{k}" for k in (1, 2, 3, 4)]]


def test_two_workers_find_what_one_does(scenario: Scenario, found: Found) -> None:
    told: list[tuple[str, int, int]] = []
    two = optimize(
        scenario, replace(ASKED, workers=2), lambda doing, done=0, of=0: told.append((doing, done, of))
    )
    assert two.trials == found.trials
    assert judge(two) == judge(found)
    trials = [(done, of) for doing, done, of in told if doing.startswith("trials")]
    assert (trials[0], trials[-1]) == ((0, 12), (12, 12))


def test_the_best_is_judged_on_requests_that_no_trial_has_seen(found: Found) -> None:
    searched, held_out = found.cases.searched, found.cases.held_out
    assert (list(searched), list(held_out)) == ([0, 1, 2], [3, 4, 5])
    case = found.cases.all[0]
    arrivals = [tuple(one.unit_arrival_s) for one in (*case.drawn, *case.fresh)]
    assert len(set(arrivals)) == 6
    assert record(found, judge(found))["seeds"] == [6, 7, 8]
    best = min(found.trials.measured, key=lambda one: np.mean([np.log(row[0].tpot_s) for row in one.points]))
    assert best.policy in [one.policy for one in found.all]


def test_a_stopped_trial_is_worse_than_the_best_and_had_fewer_seeds(found: Found) -> None:
    trials = found.trials
    assert trials.done == 12
    assert trials.pruned
    assert all(len(one.points) == 2 for one in trials.pruned)
    assert all(len(one.points) == 3 for one in trials.measured)
    best = min(trials.measured, key=lambda one: np.mean([np.log(row[0].tpot_s) for row in one.points]))
    low = np.mean([row[0].tpot_s for row in best.points[:2]])
    assert all(np.mean([row[0].tpot_s for row in one.points]) > low for one in trials.pruned)


def test_what_is_chosen_is_as_good_as_every_fixed_k(found: Found) -> None:
    told = record(found, judge(found))
    gaps = {one["policy"]: one["tpot"] for one in told["gaps"]}
    assert set(gaps) == {found.greedy.policy, "oracle", "off", "fixed:1", "fixed:2", "fixed:3", "fixed:4"}
    for policy, gap in gaps.items():
        if policy != "oracle":
            assert gap["ratio"] <= 1.01 or gap["verdict"] == "tie", policy
    assert gaps["oracle"]["ratio"] > 1
    assert gaps["off"]["verdict"] == "better"
    assert told["runnable"]["runnable"]
    assert told["trials"]["done"] == 12
    assert told["storage"] is None
    json.dumps(told, allow_nan=False)


def test_several_loads_and_workloads_are_one_objective(scenario: Scenario) -> None:
    asked = Asked(loads=(2.0, 5.0), workloads=("gsm8k", "sharegpt"), trials=8)
    done = optimize(scenario.model_copy(update={"replications": 2}), asked)
    assert [case.name for case in done.cases.all] == [
        "gsm8k at 2 QPS", "gsm8k at 5 QPS", "sharegpt at 2 QPS", "sharegpt at 5 QPS",
    ]  # fmt: skip
    off = done.references[0]
    logs = [
        [np.log(one.tpot_s / two.tpot_s) for one, two in zip(row, base, strict=True)]
        for row, base in zip(off.points, done.greedy.points, strict=True)
    ]
    assert ratio(off, done.greedy, "tpot").mean == pytest.approx(float(np.exp(np.mean(logs))))
    told = record(done, judge(done))
    assert len(told["best"]["cases"]) == 4
    assert words(done, judge(done)).startswith("Over 4 loads the best tpot")


def test_a_load_that_nothing_sustains_has_no_best(scenario: Scenario) -> None:
    done = optimize(scenario, Asked(loads=(12.0, 4000.0), trials=2))
    assert judge(done).best is None
    assert not done.trials.pruned  # nothing serves, so nothing is worse
    assert "No policy keeps up" in words(done, judge(done))
    assert record(done, judge(done))["gaps"] == []


def test_an_slo_is_a_constraint(scenario: Scenario, found: Found) -> None:
    middle = float(np.mean([row[0].tpot_s for row in found.greedy.points])) * 1e3
    strict = scenario.model_copy(update={"slo_tpot_ms": middle / 100})
    assert judge(optimize(strict, Asked(trials=2))).best is None


def test_two_objectives_give_a_front(scenario: Scenario) -> None:
    done = optimize(
        scenario.model_copy(update={"replications": 1, "max_num_seqs": 256, "qps": 4.0, "seed": 2}),
        Asked(families=("fixed",), objectives=("tpot", "throughput"), trials=10),
    )
    line = judge(done).front
    assert len(line) >= 2
    tpot = [one.points[0][0].tpot_s for one in line]
    tok_s = [one.points[0][0].tok_s for one in line]
    assert tpot == sorted(tpot)
    assert tok_s == sorted(tok_s)
    assert not done.trials.pruned


def test_a_users_policy_joins_by_its_annotations(scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(TENTH, encoding="utf-8")
    own = f"{tmp_path / 'my.py'}:CalmAtLoad"
    done = optimize(scenario.model_copy(update={"replications": 2}), Asked(families=(own, "table"), trials=9))
    tried = [one.policy for one in (*done.trials.measured, *done.trials.pruned)]
    assert f"{own}:k=3,calm=8" in tried
    assert done.greedy.policy in tried
    told = record(done, judge(done))
    assert told["runnable"]["policy"].partition(":")[0] in ("off", "fixed", "table")


def test_a_context_table_is_tried_first_with_the_best_k_of_each_context(scenario: Scenario) -> None:
    few = scenario.model_copy(update={"replications": 1})
    done = optimize(few, Asked(families=("context-table",), trials=3))
    setup = prepare(few)
    mean = setup.lengths.context
    low, high = 1, 1
    while 2 * low <= mean:
        low *= 2
    while high < mean:
        high *= 2
    curve = walk_curve(draw_requests(setup, 120, 3).trace, 4)
    policy = parse_policy(done.trials.measured[0].policy).build()
    assert isinstance(policy, ContextTable)
    for start, middle in {0: low / 2, low: 1.5 * low, high: 1.5 * high}.items():
        rate = rates(setup.latency_table, curve, setup.max_num_seqs, middle)
        ks = policy.batch_table(start).table(64)
        assert table_text(greedy_table(rate)) == BatchTable.from_lookup(ks[1:].tolist()).text
    best = judge(done)
    assert best.runnable is not None
    assert best.runnable.policy.partition(":")[0] in ("off", "fixed", "table")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"proposer": "eagle3-tree"}, "--proposer: got 'eagle3-tree', engines keep one K while it drafts"),
        ({"proposer": "pard"}, "--proposer: got 'pard', engines keep one K while it drafts"),
    ],
)
def test_a_drafter_of_one_k_leaves_nothing_to_search(changes: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        optimize(make_scenario(VALUES | changes), ASKED)


def test_policies_that_choose_the_proposer_are_searched_beside_those_of_the_last(scenario: Scenario) -> None:
    asked = Asked(families=("match-else", "table"), trials=4)
    with pytest.raises(InputError, match="--family: got 'match-else', chooses among proposers, and eagle3"):
        optimize(scenario, asked)
    several = make_scenario(VALUES | {"proposer": "ngram+eagle3", "replications": 2})
    done = optimize(several, asked)
    assert done.oracle.policy == "combined-oracle"
    tried = [one.policy.partition(":")[0] for one in (*done.trials.measured, *done.trials.pruned)]
    assert {"match-else", "table"} <= set(tried)
    # who does not choose drafts with the last, on the same requests
    setup = prepare(several)
    drawn = [draw_requests(setup, 120, seed) for seed in (5, 6)]
    fixed = next(one for one in done.references if one.policy == "fixed:3")
    runs = [run_policy(setup, parse_policy("fixed:3"), one) for one in drawn]
    assert [row[0].tpot_s for row in fixed.points] == [run.mean_tpot_s for run in runs]
    assert judge(done).runnable is not None


def test_a_narrow_interval_ends_the_search(scenario: Scenario) -> None:
    done = optimize(scenario, Asked(families=("fixed",), trials=60, width=0.5))
    assert 16 <= done.trials.done < 60


def test_a_journal_is_gone_on_with_and_belongs_to_one_search(scenario: Scenario, tmp_path: Path) -> None:
    kept = Asked(trials=8, storage=str(tmp_path / "one.journal"), study="mine")
    first = optimize(scenario, kept)
    more = optimize(scenario, replace(kept, trials=12))
    straight = optimize(scenario, ASKED)
    assert more.trials == straight.trials
    assert more.trials.found == first.trials.done == 8
    with pytest.raises(InputError, match=r"--study: got 'mine', holds another search: its loads differ"):
        optimize(scenario, replace(kept, loads=(9.0,)))
    with pytest.raises(InputError, match="its scenario differ"):
        optimize(scenario.model_copy(update={"seed": 4}), kept)
    assert study_name(scenario, ASKED) != study_name(scenario, replace(ASKED, loads=(9.0,)))
    assert study_name(scenario, ASKED) == study_name(scenario, replace(ASKED, trials=99, workers=2))


def test_files_hold_every_point(found: Found) -> None:
    files = contents(found, judge(found))
    assert list(files) == ["search.json", "trials.parquet"]
    rows = pd.read_parquet(BytesIO(cast(bytes, files["trials.parquet"])))
    groups = (*found.trials.measured, *found.trials.pruned, *found.references, found.greedy, found.oracle)
    assert len(rows) == sum(len(one.points) for one in groups)
    first = rows[(rows["kind"] == "measured") & (rows["place"] == 0) & (rows["replication"] == 0)]
    assert first["tpot_s"].tolist() == [found.trials.measured[0].points[0][0].tpot_s]
    assert json.loads(files["search.json"])["best"]["policy"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Asked(trials=0), "trials: got 0, must be at least 1"),
        (Asked(workers=0), "workers: got 0, must be at least 1"),
        (Asked(objectives=("speed",)), "--objective: got 'speed', is not known"),
        (Asked(objectives=("tpot", "tpot")), "must be one, or two that differ"),
        (Asked(objectives=("throughput", "cost")), "are one thing"),
        (Asked(width=0.0), "--width: got 0.0, must be above 0"),
        (Asked(sampler="best"), "--sampler: got 'best', is not known"),
        (Asked(sampler="cmaes"), "needs the package cmaes, which is not installed"),
        (Asked(families=("off",)), "declares no range to search"),
        (Asked(loads=(0.0,)), "--loads: --qps: got 0.0"),
        (
            Asked(storage="mysql://u:secret@host/db"),
            "got 'mysql://host/db', is neither a file nor PostgreSQL",
        ),
        (Asked(storage="no/such/folder/x.journal"), "its folder must exist"),
    ],
)
def test_what_is_no_search_is_one_line(scenario: Scenario, asked: Asked, told: str) -> None:
    with pytest.raises(InputError, match=told):
        optimize(scenario, asked)


def test_loads_of_a_closed_loop_are_clients() -> None:
    closed = make_scenario({"concurrency": 4, "workload": "gsm8k", "max_k": 3, "max_num_seqs": 64})
    assert make_cases(closed, (1.0, 8.0))[1].reach == 8
    done = optimize(closed, Asked(families=("fixed",), loads=(1.0, 8.0), trials=2))
    assert [case.name for case in done.cases.all] == ["gsm8k at concurrency 1", "gsm8k at concurrency 8"]
    with pytest.raises(InputError, match="clients are counted"):
        optimize(closed, Asked(loads=(1.5,)))
