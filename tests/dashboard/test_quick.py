"""A quick look: the simulator's answer, near that of the whole ``recommend``, and honest about its noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.acceptance import walk
from kplan.config.scenario import make_scenario
from kplan.config.shipped import trace_path
from kplan.dashboard.base import REPLICATIONS, Bases, first_state
from kplan.dashboard.kmap import k_map
from kplan.dashboard.moved import moved, with_acceptance
from kplan.dashboard.quick import Quick, full_look
from kplan.dashboard.state import Files, State
from kplan.errors import InfeasibleError, InputError
from kplan.latency import StepShape
from kplan.provenance import Kind
from kplan.search.candidates import walk_curve
from kplan.simulate import draw_requests, prepare
from kplan.workload import load_workload

SMALL = {"workload": "gsm8k", "qps": 24.0}


@pytest.fixture(scope="module")
def quick() -> Quick:
    return Quick()


def test_it_agrees_with_the_whole_recommend_within_both_intervals(quick: Quick) -> None:
    state = State.of(SMALL)
    told: list[str] = []
    look, full = quick.look(state), full_look(state, lambda doing, *_: told.append(doing))
    assert told[0] == "loading profiles and pricing steps"
    assert (look.full, full.full) == (False, True)
    assert look.plan.answer.policy == full.plan.answer.policy
    assert look.plan.answer.replicas == full.plan.answer.replicas
    by_name = {one.name: one for one in full.plan.policies}
    for one in look.plan.policies:
        mine, other = one.tpot_ms, by_name[one.name].tpot_ms
        assert mine is not None
        assert other is not None
        assert mine.ci95 is not None
        assert other.ci95 is not None
        assert mine.ci95[0] <= other.ci95[1]
        assert other.ci95[0] <= mine.ci95[1]
    assert set(look.exports.files) >= {"vllm.yaml"}


def test_it_says_how_much_was_simulated(quick: Quick) -> None:
    look = quick.look(State.of(SMALL))
    asked = look.plan.question
    each = asked.requests // look.plan.answer.replicas
    assert f"Quick look: {REPLICATIONS} x {each:,} requests" in look.how
    assert look.plan.answer.why[-1] == look.how
    assert asked.replications == REPLICATIONS


def test_the_same_question_gets_the_same_bytes_whatever_was_asked_before(quick: Quick) -> None:
    state = State.of(SMALL | {"qps": 30.0})
    first = quick.look(state).plan.model_dump_json()
    quick.look(State.of(SMALL | {"slo_tpot": 20.0}))
    assert quick.look(state).plan.model_dump_json() == first
    assert Quick().look(state).plan.model_dump_json() == first


def test_a_tighter_slo_needs_more_replicas_and_an_impossible_one_none(quick: Quick) -> None:
    heavy = SMALL | {"qps": 150.0}
    free = quick.look(State.of(heavy)).plan
    mean = next(one.tpot_ms for one in free.policies if one.name == free.answer.policy)
    assert mean is not None
    tight = quick.look(State.of(heavy | {"slo_tpot": round(0.75 * mean.p50, 2)})).plan
    assert tight.answer.replicas > free.answer.replicas
    with pytest.raises(InfeasibleError, match="no number of replicas"):
        quick.look(State.of(heavy | {"slo_tpot": 1.0}))


def test_clients_of_a_closed_loop_fill_the_batch(quick: Quick) -> None:
    look = quick.look(State.of(SMALL | {"clients": 16}))
    assert (look.plan.answer.replicas, look.plan.question.concurrency) == (1, 16)
    assert "at concurrency 16" in look.plan.answer.words
    for one in look.plan.policies:
        # but for the steps in which some of them are prefilled
        assert 15 < one.mean_batch <= 16
        assert not one.saturated


def test_what_cannot_keep_up_is_simulated_once_and_has_no_interval(quick: Quick) -> None:
    look = quick.look(State.of(SMALL | {"qps": 64.0}))
    over = [one for one in look.plan.policies if one.saturated]
    assert over
    assert "once under those that cannot keep up" in look.how
    for one in look.plan.policies:
        assert (one.output_tok_s_ci95 is None) == (one in over)
    # above 99.5% of the rate that lasts a load counts as more than is sustained
    assert all(one.max_qps is not None and one.max_qps < 64.0 / 0.995 for one in over)


def test_replications_share_no_request() -> None:
    base = Bases().get(State.of(SMALL))
    drawn = [base.replication(seed, 700) for seed in range(REPLICATIONS)]
    rows = [set(one.trace_at.tolist()) for one in drawn]
    assert all(len(mine & other) == 0 for i, mine in enumerate(rows) for other in rows[:i])
    assert [len(mine) for mine in rows] == [700] * REPLICATIONS
    again = base.replication(2, 700)
    assert (again.trace_at == drawn[2].trace_at).all()
    assert (again.unit_arrival_s == drawn[2].unit_arrival_s).all()


def test_recorded_traces_are_what_is_simulated() -> None:
    files = Files(trace_path(Path("example")))
    first = first_state(files)
    assert first.proposer == "ngram"
    plan = Quick(files).look(first.model_copy(update={"qps": 8.0})).plan
    assert plan.question.traces == files.traces.name  # type: ignore[union-attr]
    assert any("260 recorded requests" in one.value for one in plan.assumptions)


def test_more_accepted_drafts_never_slow_a_fixed_k(quick: Quick) -> None:
    tpot = []
    for percent in (-20, 0, 20):
        plan = quick.look(State.of(SMALL | {"acceptance": percent})).plan
        stat = next(one.tpot_ms for one in plan.policies if one.name == "fixed:3")
        assert stat is not None
        tpot.append(stat.mean)
    assert tpot[0] > tpot[1] > tpot[2]
    assert plan.assumptions[0].name == "acceptance moved"
    assert "+20%" in plan.answer.why[0]


@pytest.mark.parametrize("percent", [-20, -5, 10, 20])
@pytest.mark.parametrize("proposer", ["eagle3", "ngram"])
def test_a_moved_model_accepts_so_many_drafts_more(proposer: str, percent: int) -> None:
    workload = load_workload("gsm8k")
    model = workload.model(proposer)
    other = moved(model, percent, workload)
    _, output = workload.sample_lengths(5, 3000)  # other requests than it was moved on
    accepted = [walk(one.generate(9, output), 3).acceptance_length - 1 for one in (model, other)]
    assert accepted[1] / accepted[0] == pytest.approx(1 + percent / 100, abs=0.02)
    assert ((other.hazard >= 0) & (other.hazard <= 1)).all()
    assert other.provenance.kind is Kind.ASSUMED
    assert f"{percent:+d}%" in other.provenance.note


def test_a_move_out_of_reach_is_refused_with_what_is_in_reach() -> None:
    workload = load_workload("gsm8k")
    model = workload.model("eagle3")
    with pytest.raises(InputError, match=r"reaches \+\d+%"):
        moved(model, 1000, workload)


def test_an_unmoved_setup_stays_as_it_is() -> None:
    setup = prepare(make_scenario({"qps": 1.0, "workload": "gsm8k"}))
    assert with_acceptance(setup, 0) is setup


def test_the_map_is_the_best_rate_cell_by_cell() -> None:
    setup = prepare(make_scenario({"qps": 1.0, "workload": "gsm8k"}))
    sample = draw_requests(setup, 500, 0)
    curve = walk_curve(sample.trace, 7)
    found = k_map(setup, curve, sample)
    assert found.batches[:3] == (1, 2, 4)
    checked = 0
    for row, context in enumerate(found.contexts):
        for column, batch in enumerate(found.batches):
            if (row % 3, column % 2) != (0, 0):
                continue
            if batch * context > setup.kv_tokens:
                assert found.best_k[row][column] is None
                continue
            rate = [
                batch * curve.tokens[k]
                / float((setup.latency if k else setup.latency_off).step_seconds(
                    StepShape.decode(batch, k, context, curve.verified[k])).total_s)
                for k in range(8)
            ]  # fmt: skip
            best = next(k for k in range(8) if rate[k] >= 0.99 * max(rate))
            assert found.best_k[row][column] == best
            checked += 1
    assert checked > 8
