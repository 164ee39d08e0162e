"""Several proposers in a scenario: their requests, their server, what is paired and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan import metrics
from kplan.acceptance import ProposerTrace, TraceSet, load_traces, save_traces
from kplan.config.plan import MixResult
from kplan.config.scenario import make_scenario
from kplan.engine.state import W_DECODES, W_SWITCHES
from kplan.errors import InputError
from kplan.metrics import Measured
from kplan.provenance import Kind, Provenance
from kplan.registry import parse_policy
from kplan.search import recommend
from kplan.search.single import simulate_one
from kplan.simulate import Setup, draw_requests, prepare, run_policy
from kplan.simulate.mix import aligned_rows, joined
from kplan.simulate.server import observe_lag

BOTH = {"concurrency": 4, "proposer": "ngram+eagle3", "workload": "instructcoder", "requests": 40}
ONE_MORE = {"qps": 5.0, "requests": 20, "workload": "instructcoder"}
MADE = Provenance(Kind.ASSUMED, "made for a test")


def trace(rows: list[list[int]], aligned: list[bool], drafted: list[int] | None = None) -> ProposerTrace:
    lengths = np.array([len(row) for row in rows], np.int32)
    return ProposerTrace(
        output_len=lengths,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        acc=np.concatenate(rows).astype(np.uint8),
        drafted=None if drafted is None else np.array(drafted, np.uint8),
        aligned=np.array(aligned),
        recorded_k=7,
    )


def recorded() -> TraceSet:
    """Request 1 is of another generation by its flag, request 2 by its length."""
    ngram = [[1, 1, 1], [1, 1], [1, 3, 1, 1], [1, 3, 2, 1]]
    eagle = [[1, 2, 1], [1, 1], [1, 2, 1], [1, 2, 1, 1]]
    return TraceSet(
        request_id=np.array(["a", "b", "c", "d"]),
        prompt_len=np.array([10, 20, 30, 40], np.int32),
        proposers={
            "ngram": trace(ngram, [True] * 4, [0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 3, 1, 0]),
            "eagle3": trace(eagle, [True, False, True, True]),
        },
        provenance=MADE,
    )


def test_requests_of_another_generation_are_left_out_and_counted() -> None:
    both = aligned_rows(recorded(), ("ngram", "eagle3"))
    assert both.request_id.tolist() == ["a", "d"]
    assert both.prompt_len.tolist() == [10, 40]
    assert both.proposers["ngram"].acc.tolist() == [1, 1, 1, 1, 3, 2, 1]
    assert both.proposers["eagle3"].acc.tolist() == [1, 2, 1, 1, 2, 1, 1]
    assert both.proposers["ngram"].offsets.tolist() == both.proposers["eagle3"].offsets.tolist() == [0, 3, 7]
    assert any(note.startswith("2 of 4 requests left out") for note in both.notes)
    flat = joined(list(both.proposers.values()))
    assert flat.acc.tolist() == [1, 1, 1, 1, 3, 2, 1, 1, 2, 1, 1, 2, 1, 1]
    assert flat.drafted.tolist() == [0, 1, 0, 0, 3, 1, 0] + 7 * [255]
    assert flat.apart == 7
    nothing = replace(recorded(), proposers={**both.proposers, "eagle3": trace([[1]] * 2, [False] * 2)})
    with pytest.raises(InputError, match="no request of the file"):
        aligned_rows(nothing, ("ngram", "eagle3"))


def test_recorded_traces_are_simulated_on_the_aligned_requests(tmp_path: Path) -> None:
    file = tmp_path / "both.parquet"
    save_traces(recorded(), file)
    assert len(load_traces(file)) == 4
    setup = prepare(make_scenario({**ONE_MORE, "proposer": "ngram+eagle3", "traces": file}))
    assert setup.recorded is not None
    assert setup.recorded.request_id.tolist() == ["a", "d"]
    drawn = draw_requests(setup, 20, 0)
    assert set(drawn.prompt_len.tolist()) == {10, 40}
    load = drawn.load(1.0, None, mixed=True)
    assert load.proposers == ("ngram", "eagle3")
    np.testing.assert_array_equal(load.trace_at, drawn.trace_at + 7)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return prepare(make_scenario(BOTH))


def run(setup: Setup, policy: str) -> Measured:
    return run_policy(setup, parse_policy(policy), draw_requests(setup, 40, 0))


@pytest.mark.parametrize("policy", ["off", "fixed:3", "oracle"])
def test_k_alone_drafts_with_the_last_on_its_own_server(setup: Setup, policy: str) -> None:
    alone = run(prepare(make_scenario({**BOTH, "proposer": "eagle3"})), policy)
    joint = run(setup, policy)
    np.testing.assert_array_equal(joint.sums, alone.sums)
    np.testing.assert_array_equal(joint.tpot_s, alone.tpot_s)


def test_the_server_of_both_has_the_drafter_s_memory_and_the_lookup_s_schedule(setup: Setup) -> None:
    assert setup.mix is not None
    assert setup.mix.kv_tokens == setup.kv_tokens
    swapped = prepare(make_scenario({**BOTH, "proposer": "eagle3+ngram"}))
    assert swapped.mix is not None
    assert swapped.mix.kv_tokens == setup.kv_tokens < swapped.kv_tokens
    assert (setup.mix.cost.drafter_at, swapped.mix.cost.drafter_at) == (1, 0)
    fixed, combined = parse_policy("fixed:3"), parse_policy("match-else")
    assert observe_lag(setup, fixed) == 1
    assert observe_lag(setup, combined) == 0


def test_the_order_of_the_names_changes_nothing_for_a_policy_that_combines(setup: Setup) -> None:
    swapped = prepare(make_scenario({**BOTH, "proposer": "eagle3+ngram"}))
    one, other = run(setup, "combined-oracle"), run(swapped, "combined-oracle")
    np.testing.assert_array_equal(one.tpot_s, other.tpot_s)
    np.testing.assert_array_equal(one.proposer_steps, other.proposer_steps[::-1])


def test_who_drafted_is_told_and_a_change_costs_time() -> None:
    asked: dict[str, Any] = {**BOTH, "policy": "match-else"}
    found = [simulate_one(make_scenario({**asked, "switch_us": us})) for us in (0.0, 500.0)]
    for each in found:
        assert each.mix is not None
        assert list(each.mix.proposer_share) == ["ngram", "eagle3"]
        assert 0.1 < each.mix.proposer_share["ngram"] < 0.9
        assert sum(each.mix.proposer_share.values()) <= 1
        assert each.mix.switches_per_1000 > 10
    plain, dear = found
    assert plain.result.tpot_ms is not None
    assert dear.result.tpot_ms is not None
    assert dear.result.tpot_ms.mean > plain.result.tpot_ms.mean
    assert simulate_one(make_scenario({**asked, "policy": "fixed:2"})).mix is None


def test_a_policy_that_names_k_alone_says_which_proposer_drafts() -> None:
    notes = simulate_one(make_scenario({**BOTH, "proposer": "eagle3+ngram", "policy": "fixed:2"})).notes
    assert any("fixed:2 does not choose among eagle3+ngram: it drafts with ngram" in note for note in notes)
    for policy, proposer in (("fixed:2", "eagle3"), ("match-else", "ngram+eagle3"), ("off", "ngram+eagle3")):
        notes = simulate_one(make_scenario({**BOTH, "proposer": proposer, "policy": policy})).notes
        assert not any("does not choose" in note for note in notes)


def test_acceptance_is_known_as_deep_as_the_shallower_recording(tmp_path: Path) -> None:
    traces = recorded()
    shallow = replace(traces.proposers["ngram"], recorded_k=4)
    save_traces(replace(traces, proposers={**traces.proposers, "ngram": shallow}), tmp_path / "t.parquet")
    asked = {"concurrency": 1, "requests": 4, "traces": tmp_path / "t.parquet", "max_k": 6}
    for proposer in ("ngram+eagle3", "eagle3+ngram"):
        notes = simulate_one(make_scenario({**asked, "proposer": proposer, "policy": "match-else"})).notes
        assert any("known up to K = 4" in note for note in notes)


def test_shares_and_changes_are_of_request_steps(setup: Setup) -> None:
    """Of twice 100 request-steps 30 + 10 and 50 + 90, with twice 5 changes."""
    one = run(setup, "match-else")
    sums = np.zeros_like(one.sums)
    sums[W_DECODES], sums[W_SWITCHES] = 100, 5
    runs = [replace(one, sums=sums, proposer_steps=np.array(steps)) for steps in ([30, 50], [10, 90])]
    assert metrics.mix_result(runs, ("a", "b")) == MixResult(
        proposer_share={"a": 0.2, "b": 0.7}, switches_per_1000=50.0
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"proposer": "eagle+eagle3"}, "has 2 model drafters"),
        ({"proposer": "ngram+suffix"}, "has 0 model drafters"),
        ({"proposer": "ngram+eagle3-tree"}, "drafts one K for everybody"),
        ({"proposer": "ngram+"}, "different names joined by +"),
        ({"proposer": "ngram+nonsense"}, "known proposers"),
        ({"async_scheduling": True}, "schedules synchronously"),
        ({"proposer": "eagle3", "switch_us": 3.0}, "is a cost of several proposers"),
        ({"proposer": "eagle3", "policy": "match-else"}, "chooses among proposers, and eagle3 is one"),
    ],
)
def test_what_no_server_holds_is_refused_in_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        simulate_one(make_scenario({**BOTH, **changes}))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_recommend_refuses_and_names_simulate() -> None:
    with pytest.raises(InputError, match=r"no released engine switches proposers per step.*kplan simulate"):
        recommend(make_scenario({"qps": 10.0, "proposer": "ngram+eagle3"}))
