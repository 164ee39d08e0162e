"""The plan of a search: its best policy that the engine runs, simulated anew at its busiest load."""

from __future__ import annotations

import pytest

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.search.found import judge
from kplan.search.optimize import Asked, Found, optimize
from kplan.search.planned import busiest, plan_of
from kplan.search.recommend import Wanted, plan_for, recommend
from kplan.search.score import Tried
from kplan.simulate import draw_requests, prepare, run_policy

VALUES = {
    "concurrency": 4,
    "workload": "gsm8k",
    "max_k": 3,
    "max_num_seqs": 64,
    "requests": 60,
    "replications": 2,
}
TABLE = "table:1-2=3,3-6=2,7-=1"


@pytest.fixture(scope="module")
def found() -> Found:
    return optimize(make_scenario(VALUES), Asked(families=("fixed",), loads=(8.0, 2.0), trials=2))


def _tried(found: Found, policy: str) -> Tried:
    """The policy as the search would have measured it."""
    rows = [
        tuple(found.cases.run(task) for task in found.cases.tasks(policy, [seed]))
        for seed in range(found.cases.replications)
    ]
    return Tried(policy, tuple(rows))


def test_the_plan_is_of_the_policy_at_the_load_of_the_largest_batches(found: Found) -> None:
    tried = _tried(found, TABLE)
    assert busiest(found, tried).name == "gsm8k at concurrency 8"
    plan = plan_of(found, tried)
    assert (plan.question.concurrency, plan.question.replicas) == (8, 1)
    assert plan.answer.policy == TABLE
    assert plan.answer.table is not None
    assert [(one.start, one.end, one.k) for one in plan.answer.table] == [(1, 2, 3), (3, 6, 2), (7, None, 1)]
    assert plan.answer.feasible
    # what it predicts is what a run of the table on the plan's own load gives
    setup = prepare(make_scenario(VALUES | {"concurrency": 8}))
    runs = [run_policy(setup, parse_policy(TABLE), draw_requests(setup, 60, seed)) for seed in (2, 3)]
    mine = next(one for one in plan.policies if one.name == TABLE)
    assert mine.tpot_ms is not None
    n = [run.requests for run in runs]
    mean = sum(run.mean_tpot_s * count for run, count in zip(runs, n, strict=True)) / sum(n)
    assert mine.tpot_ms.mean == pytest.approx(mean * 1e3, rel=0.01)
    told = [line for line in plan.answer.why if line.startswith("kplan search chose it among")]
    assert len(told) == 1
    assert "gsm8k at concurrency 8, gsm8k at concurrency 2; what is said here is of" in told[0]
    assert not any("the simpler policy and smaller K win" in line for line in plan.answer.why)


def test_a_recommendation_chooses_for_itself() -> None:
    plan = recommend(make_scenario(VALUES))
    assert not any("kplan search" in line for line in plan.answer.why)


def test_a_plan_for_a_policy_that_misses_says_so_of_that_policy() -> None:
    """Without speculation a token takes 6.4 ms, with it below 5."""
    strict = make_scenario(VALUES | {"slo_tpot_ms": 5.5})
    plan = plan_for(strict, Wanted(parse_policy("off"), "A test chose it."))
    assert plan.answer.policy == "off"
    assert not plan.answer.feasible
    assert plan.answer.words.startswith("off does not meet TPOT <= 5.5 ms on 1 replica")
    assert "A test chose it." in plan.answer.why
    assert recommend(strict).answer.feasible


def test_there_is_no_plan_for_what_the_engine_does_not_run() -> None:
    with pytest.raises(InputError, match="policy: got 'oracle', it looks at the future"):
        plan_for(make_scenario(VALUES), Wanted(parse_policy("oracle"), ""))


def test_of_several_proposers_the_plan_is_a_server_of_the_last() -> None:
    values = VALUES | {"proposer": "ngram+eagle3", "switch_us": 3.0}
    done = optimize(make_scenario(values), Asked(families=("match-else",), trials=2))
    chosen = judge(done).runnable
    assert chosen is not None
    plan = plan_of(done, chosen)
    assert plan.question.proposer == "eagle3"
    assert any(line.endswith("; of ngram+eagle3 it drafts with eagle3 alone.") for line in plan.answer.why)
