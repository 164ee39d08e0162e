"""Several proposers on one server: laws, a plain reference, and what a change of the proposer costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kplan.engine import Limits, Load, MixedTraces, Replica, Traces, apart_of, kernel
from kplan.engine.state import DRAFT_S, OVERHEAD_S, W_SWITCHES
from kplan.errors import InputError
from kplan.latency import StepCost
from kplan.policy import PolicyInfo, StepOutcome, StepView
from kplan_policies.combined import CombinedOracle
from kplan_policies.oracle import Oracle
from tests.engine.scenes import bare_price, bounds, make_load, price, scenes

SOME = settings(max_examples=60, deadline=None)
NAMES = ("ngram", "eagle")
LOOKUP, MODEL = 0, 1
COMBINES = PolicyInfo("a test's", "this file", combines=True)


def mixed_price(seats: int = 64, max_k: int = 7) -> StepCost:
    """The price list of EAGLE with a lookup beside it."""
    return price("eagle", seats, max_k)._replace(lookups=1, drafter_at=MODEL)


def joined(load: Load, *others: Traces) -> Load:
    """``load`` with the arrays of other proposers before its own."""
    both = [*others, load.traces]
    apart = len(load.traces.acc)
    traces = MixedTraces(
        np.concatenate([one.acc for one in both]), np.concatenate([one.drafted for one in both]), apart
    )
    names = (*(f"other {i}" for i in range(len(others))), "own")
    return replace(load, traces=traces, trace_at=load.trace_at + apart * len(others), proposers=names)


def in_hops(load: Load, seed: int, stops: float, match: float = 1.0) -> Traces:
    """Acceptance up to the next of random stops: who is further on is never overtaken by who is behind."""
    rng = np.random.default_rng(seed)
    acc = np.ones(len(load.traces.acc), np.uint8)
    drafted = np.full(len(acc), 255, np.uint8)
    for at, length in zip(load.trace_at, load.output_len, strict=True):
        nearest = length
        for i in range(length - 1, 0, -1):
            acc[at + i] = nearest - i
            if rng.random() < stops:
                nearest = i
    hidden = rng.random(len(acc)) >= match
    drafted[hidden], acc[hidden] = 0, 1
    return Traces(acc, drafted)


class Switches:
    """A proposer and a K for every request, from what it has seen of it."""

    info = COMBINES

    def choose_k(self, step: StepView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        mixed = step.request + 3 * step.position + step.last_accepted
        return mixed % len(step.proposers), mixed // 2 % 5


class OneOfThem:
    """The K of ``Switches``, always from one proposer."""

    info = COMBINES

    def __init__(self, proposer: str | int) -> None:
        self.proposer = proposer

    def choose_k(self, step: StepView) -> tuple[str | int, NDArray[np.int64]]:
        return self.proposer, Switches().choose_k(step)[1]


def finish(load: Load, limits: Limits, policy: object, cost: StepCost, lag: int = 0) -> Replica:
    replica = Replica(load, limits, cost, policy, observe_lag=lag)  # type: ignore[arg-type]  # a test's own
    assert replica.advance() == kernel.DONE
    return replica


@given(scenes())
@SOME
def test_among_equal_proposers_any_switching_is_one_of_them(scene: tuple[Load, Limits]) -> None:
    load, limits = scene
    twice = joined(load, load.traces)
    free = bare_price(np.linspace(0.01, 0.02, 4097))  # passes cost nothing: who drafts changes no time
    switching = finish(twice, limits, Switches(), free)
    own = [finish(twice, limits, OneOfThem(name), free) for name in ("other 0", 1)]
    for one in own:
        for column in ("finish_s", "steps", "proposed", "accepted", "preempted"):
            np.testing.assert_array_equal(switching.records[column], one.records[column])
        assert one.machine.sums[W_SWITCHES] == 0


@given(scenes(), st.integers(0, 2**31))
@SOME
def test_tokens_are_conserved_under_any_switching(scene: tuple[Load, Limits], seed: int) -> None:
    load, limits = scene
    other = replace(make_load(1), traces=Traces(load.traces.acc[::-1].copy(), load.traces.drafted))
    both = joined(load, other.traces)
    heard = np.zeros(3, np.int64)

    class Counts(Switches):
        def observe(self, outcome: StepOutcome) -> None:
            assert set(outcome.proposer.tolist()) <= {0, 1}
            np.add.at(heard, outcome.proposer[outcome.proposed > 0], 1)

    replica = finish(both, limits, Counts(), mixed_price(limits.max_num_seqs, limits.max_k))
    req = replica.requests
    np.testing.assert_array_equal(req.emitted, load.output_len)
    assert (req.accepted <= req.proposed).all()
    assert req.steps.sum() == replica.machine.k_steps.sum()
    np.testing.assert_array_equal(heard[:2], replica.machine.proposer_steps)
    assert replica.machine.proposer_steps.sum() == replica.machine.k_steps[1:].sum()
    # every request stays on its own positions of one of the arrays
    np.testing.assert_array_equal(req.trace_at % apart_of(both.traces), load.trace_at)


@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.3, 0.6]), st.booleans(), st.integers(1, 7))
@SOME
def test_the_combined_oracle_takes_no_more_steps_than_either(
    seed: int, stops: float, sglang: bool, max_k: int
) -> None:
    """Request by request, where passes are free and acceptance never lets a request be overtaken."""
    load = make_load(12, seed=seed)
    own, other = in_hops(load, seed, stops), in_hops(load, seed + 1, stops)
    limits = bounds(load, k_now=sglang, prefill_first=sglang, max_k=max_k)
    free = bare_price(np.full(4097, 0.01))
    alone = [finish(replace(load, traces=one), limits, Oracle(), free) for one in (other, own)]
    both = finish(joined(replace(load, traces=own), other), limits, CombinedOracle(), free)
    for one in alone:
        assert (both.requests.steps <= one.requests.steps).all()
    np.testing.assert_array_equal(both.requests.accepted, both.requests.proposed)


@pytest.mark.parametrize("sglang", [False, True])
def test_one_request_is_walked_as_by_hand(sglang: bool) -> None:
    """Match-else at batch 1 against a loop of its own over the two arrays."""
    load = make_load(1, seed=3, output=(400, 400), depth=0.3)
    other = make_load(1, seed=4, output=(400, 400), depth=0.2, match=0.5).traces
    offers = np.where(other.drafted > 0, np.arange(400) % 6, 0).astype(np.uint8)
    other = Traces(np.minimum(other.acc, offers + 1).astype(np.uint8), offers)

    class LongMatch:
        info = COMBINES

        def choose_k(self, step: StepView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            found = step.offered[LOOKUP]
            return np.where(found >= 3, LOOKUP, MODEL), np.where(found >= 3, found, 2)

    replica = finish(
        joined(load, other), bounds(load, k_now=sglang, prefill_first=sglang), LongMatch(), mixed_price()
    )
    at, walked, switches, before = 1, [0, 0], 0, None
    steps = proposed = accepted = 0
    while at < 400:
        matched = int(offers[at])
        who, k = (LOOKUP, matched) if matched >= 3 else (MODEL, 2)
        acc = int((other if who == LOOKUP else load.traces).acc[at])
        steps, proposed, accepted = steps + 1, proposed + k, accepted + min(acc - 1, k)
        walked[who] += 1
        switches += before not in (None, who)
        before, at = who, at + min(acc, k + 1, 400 - at)
    req, m = replica.requests[0], replica.machine
    assert (req.steps, req.proposed, req.accepted) == (steps, proposed, accepted)
    assert m.proposer_steps.tolist() == walked
    assert min(walked) > 20
    assert m.sums[W_SWITCHES] == switches


def test_a_change_of_proposer_costs_the_host_what_is_said() -> None:
    """The drafter's passes aside (a price by tokens alone), the same run but for 250 us a change."""
    load = make_load(1, seed=5, output=(300, 300))
    both = joined(load, make_load(1, seed=6, output=(300, 300)).traces)
    free = bare_price(np.full(4097, 0.01))
    plain, dear = (
        finish(both, bounds(both), Switches(), cost) for cost in (free, free._replace(switch_s=250e-6))
    )
    changes = plain.machine.sums[W_SWITCHES]
    assert changes > 50
    assert dear.machine.sums[W_SWITCHES] == changes
    more_s = dear.machine.sums[OVERHEAD_S] - plain.machine.sums[OVERHEAD_S]
    assert more_s == pytest.approx(changes * 250e-6)


def test_only_the_model_drafter_s_requests_pay_its_later_passes() -> None:
    """A lookup for everybody costs lookups and one catching-up pass a step; K = 3 of the model two more."""
    load = make_load(1, seed=7, prompt=(100, 100), output=(120, 120))
    both = joined(load, load.traces)
    cost = mixed_price()
    runs = [finish(both, bounds(both), OneOfThem(who), cost) for who in (LOOKUP, MODEL)]
    zero = finish(load, bounds(load), OneK(0), price())
    by_lookup, by_model = (run.machine.sums[DRAFT_S] for run in runs)
    assert by_lookup < by_model
    looked = cost.lookup_request_s * 1  # of the first decode step alone, context 101
    first = _first_decode(OneOfThem(LOOKUP), both, cost), _first_decode(OneK(0), load, price())
    assert first[0] - first[1] == pytest.approx(looked + 101 * cost.lookup_token_s, rel=1e-6)
    assert zero.machine.sums[DRAFT_S] > 0


class OneK:
    def __init__(self, k: int) -> None:
        self.k = k

    def choose_k(self, step: StepView) -> int:
        return self.k


def _first_decode(policy: object, load: Load, cost: StepCost) -> float:
    """Seconds of drafting in the first decode step, which verifies nothing where K was 0."""
    logs: list[NDArray[np.void]] = []
    replica = Replica(load, bounds(load), cost, policy, record=logs.append)  # type: ignore[arg-type]
    replica.advance(steps=2)
    replica.flush()
    return float(np.concatenate(logs)["draft_s"][1])


def test_a_run_is_the_same_every_time() -> None:
    load = make_load(60, seed=8)
    both = joined(load, make_load(60, seed=8, depth=0.2).traces)
    runs = [finish(both, bounds(both), CombinedOracle(), mixed_price(), lag=1) for _ in range(2)]
    assert runs[0].records.tobytes() == runs[1].records.tobytes()
    for a, b in zip(runs[0].machine, runs[1].machine, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (3, "must be (proposer, K)"),
        ((1, 2, 3), "must be (proposer, K)"),
        (("suffix", 2), "the proposers are other 0, own"),
        ((2, 2), "the proposers are other 0, own, from index 0"),
        ((-1, 2), "proposer must be 0 or more"),
        ((0, -2), "K must be 0 or more"),
        ((np.zeros(7, np.int64), 2), "one proposer per request"),
    ],
)
def test_an_answer_that_is_none_is_refused_in_one_line(answer: object, told: str) -> None:
    class Says:
        info = COMBINES

        def choose_k(self, step: StepView) -> object:
            return answer

    load = make_load(3, seed=9)
    with pytest.raises(InputError) as refused:
        finish(joined(load, load.traces), bounds(load), Says(), mixed_price())
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
