"""Laws that hold on every scenario, whatever the load, the bounds and the flavour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.engine import Limits, Load, Replica, Traces, kernel
from kplan.engine.execute import execute
from kplan.engine.state import DECODES, FREE_BLOCKS, RUNNING, SCHEDULED_TOKENS
from kplan.policy import StepOutcome, StepView
from kplan_policies.oracle import Oracle
from tests.engine.scenes import ByTable, PerRequest, bounds, make_load, price, scenes

MANY = settings(max_examples=200, deadline=None)


def finish(load: Load, limits: Limits, policy: object, *, compiled: bool = True, lag: int = 0) -> Replica:
    replica = Replica(load, limits, price(), policy, compiled=compiled, observe_lag=lag)  # type: ignore[arg-type]  # a test's own policy
    assert replica.advance() == kernel.DONE
    return replica


@given(scenes(), st.lists(st.integers(0, 9), min_size=1, max_size=5))
@MANY
def test_every_token_asked_for_is_emitted_once_and_every_block_comes_back(
    scene: tuple[Load, Limits], ks: list[int]
) -> None:
    load, limits = scene
    replica = finish(load, limits, ByTable(*ks))
    req, m = replica.requests, replica.machine
    np.testing.assert_array_equal(req.emitted, load.output_len)
    assert replica.done
    assert m.counters[FREE_BLOCKS] == limits.total_blocks
    assert (req.blocks == 0).all()
    assert (req.accepted <= req.proposed).all()
    # a step emits one token and its accepted drafts, less a cut tail; a recomputed prefill emits one
    decoded = req.output_len - 1
    assert (decoded <= req.steps + req.accepted + req.preempted).all()


@given(scenes(), st.lists(st.integers(0, 9), min_size=1, max_size=5))
@MANY
def test_time_runs_forward(scene: tuple[Load, Limits], ks: list[int]) -> None:
    load, limits = scene
    req = finish(load, limits, ByTable(*ks)).requests
    assert (req.admitted_s >= req.arrival_s).all()
    assert (req.first_token_s > req.admitted_s).all()
    assert (req.finish_s >= req.first_token_s).all()
    single = req.output_len == 1
    np.testing.assert_array_equal(req.finish_s[single], req.first_token_s[single])
    came = np.lexsort((req.admitted_s, req.arrival_s))
    assert (np.diff(req.admitted_s[came]) >= 0).all(), "first come, first served"
    if load.concurrency is not None:
        inside = (req.arrival_s[:, None] <= req.arrival_s) & (req.finish_s[:, None] > req.arrival_s)
        assert inside.sum(axis=0).max() <= load.concurrency


@given(scenes(), st.integers(0, 7))
@MANY
def test_no_step_exceeds_its_bounds(scene: tuple[Load, Limits], k: int) -> None:
    load, limits = scene
    replica = Replica(load, limits, price(), ByTable(k))
    req, m, limits = replica.requests, replica.machine, replica.limits
    scratch = replica.k_each
    while (batch := kernel.next_batch(req, m, replica.limits, np.inf)) > 0:
        ids = m.rows["running"][: m.counters[RUNNING]]
        assert len(set(ids.tolist())) == len(ids) <= limits.max_num_seqs
        assert batch == (m.rows["chunk"][: m.counters[RUNNING]] > 0).sum()
        budget = limits.max_num_batched_tokens
        if limits.prefill_first and m.counters[DECODES]:  # SGLang's budget is for prompts
            budget = limits.max_num_seqs * (limits.max_k + 1)
        assert 0 < m.counters[SCHEDULED_TOKENS] <= budget
        assert m.counters[SCHEDULED_TOKENS] == m.rows["chunk"][: m.counters[RUNNING]].sum()
        assert m.counters[FREE_BLOCKS] >= 0
        held = req.computed[ids] + m.rows["chunk"][: m.counters[RUNNING]]
        slots = (req.blocks + req.shared)[ids] * limits.block_tokens
        assert (slots >= held).all(), "every token has its slot"
        assert (req.arrival_s[ids] <= m.clock[0]).all(), "no step before the arrival"
        execute(req, m, limits, load.traces, price(), min(k, limits.max_k), False, scratch)
    assert batch == kernel.DONE
    assert req.blocks.sum() == 0


@given(scenes(), st.lists(st.integers(0, 9), min_size=1, max_size=5))
@MANY
def test_compiled_and_python_paths_are_byte_identical(scene: tuple[Load, Limits], ks: list[int]) -> None:
    load, limits = scene
    fast = finish(load, limits, ByTable(*ks))
    slow = finish(load, limits, ByTable(*ks), compiled=False)
    assert fast.requests.tobytes() == slow.requests.tobytes()
    for a, b in zip(fast.machine, slow.machine, strict=True):
        assert a.tobytes() == b.tobytes()


@given(scenes(), st.lists(st.integers(0, 9), min_size=1, max_size=5), st.floats(0.001, 0.5))
@MANY
def test_pausing_changes_nothing(scene: tuple[Load, Limits], ks: list[int], pause_s: float) -> None:
    load, limits = scene
    whole = finish(load, limits, ByTable(*ks))
    parts = Replica(load, limits, price(), ByTable(*ks))
    until = pause_s
    while parts.advance(until) == kernel.PAUSED:
        until = max(until, parts.clock_s) + pause_s
    np.testing.assert_array_equal(whole.requests.finish_s, parts.requests.finish_s)


@given(scenes(), st.integers(0, 2**31))
@MANY
def test_a_policy_cannot_see_the_future(scene: tuple[Load, Limits], seed: int) -> None:
    """Changing acceptance at later positions changes no decision made before they are reached."""
    load, limits = scene
    rng = np.random.default_rng(seed)
    half = load.output_len // 2
    acc = load.traces.acc.copy()
    for at, first, length in zip(load.trace_at, half, load.output_len, strict=True):
        acc[at + first + 1 : at + length] = rng.integers(1, 9, max(length - first - 1, 0))
    changed = replace(load, traces=Traces(acc, load.traces.drafted))
    decisions = [_decisions(one, limits, half) for one in (load, changed)]
    shared = min(map(len, decisions))
    for before, after in zip(decisions[0][:shared], decisions[1][:shared], strict=True):
        if before is None or after is None:  # somebody has read a changed position by now
            break
        assert before == after


def _decisions(load: Load, limits: Limits, half: np.ndarray) -> list[tuple[object, ...] | None]:
    made: list[tuple[object, ...] | None] = []

    class Spy(PerRequest):
        def choose_k(self, step: StepView) -> np.ndarray:
            k = super().choose_k(step)
            read = (replica.requests.emitted > half).any()
            made.append(None if read else (step.now_s, step.request.tolist(), k.tolist()))
            return k

        def observe(self, outcome: StepOutcome) -> None:
            assert (outcome.accepted <= outcome.proposed).all()

    replica = Replica(load, limits, price(), Spy())
    replica.advance()
    return made


@given(scenes())
@MANY
def test_the_oracle_verifies_no_token_in_vain(scene: tuple[Load, Limits]) -> None:
    load, limits = scene
    for compiled in (True, False):
        req = finish(load, limits, Oracle(), compiled=compiled).requests
        np.testing.assert_array_equal(req.accepted, req.proposed)


@given(scenes())
@MANY
def test_compiled_and_python_oracles_agree(scene: tuple[Load, Limits]) -> None:
    load, limits = scene
    fast = finish(load, limits, Oracle()).requests
    slow = finish(load, limits, Oracle(), compiled=False).requests
    assert fast.finish_s.tobytes() == slow.finish_s.tobytes()


@pytest.mark.parametrize("sglang", [False, True])
def test_k_zero_everywhere_equals_off_when_the_drafter_is_free(sglang: bool) -> None:
    """With the price list of no speculation, K = 0 and "off" are the same machine."""
    load = make_load(200, qps=80)
    limits = bounds(load, max_k=0, k_now=sglang, prefill_first=sglang)
    zero = finish(load, bounds(load, k_now=sglang, prefill_first=sglang), ByTable(0))
    off = finish(load, limits, ByTable(0))
    np.testing.assert_array_equal(zero.requests.finish_s, off.requests.finish_s)


def test_k_governs_the_next_step_on_vllm_and_this_one_on_sglang() -> None:
    """K goes 0, 5, 0, 0, ...: the 5 drafts are verified one step later on vLLM, at once on SGLang."""
    load = make_load(1, output=(40, 40), depth=0.01)
    for k_now, verified_at in ((False, 2), (True, 1)):
        proposed: list[int] = []

        class Pulse:
            def __init__(self, log: list[int]) -> None:
                self.log, self.step = log, -1

            def choose_k(self, step: StepView) -> int:
                self.step += 1
                return 5 if self.step == 1 else 0

            def observe(self, outcome: StepOutcome) -> None:
                self.log.append(int(outcome.proposed.sum()))

        finish(load, bounds(load, k_now=k_now, prefill_first=k_now), Pulse(proposed))
        assert proposed[verified_at] == 5
        assert sum(proposed) == 5


def test_observations_trail_by_the_lag() -> None:
    load = make_load(1, output=(30, 30))
    orders = []
    for lag in (0, 1, 2):
        order: list[str] = []

        class Log:
            def __init__(self, into: list[str]) -> None:
                self.into = into

            def choose_k(self, step: StepView) -> int:
                self.into.append("choose")
                return 2

            def observe(self, outcome: StepOutcome) -> None:
                self.into.append("observe")

        finish(load, bounds(load), Log(order), lag=lag)
        orders.append("".join(word[0] for word in order[:8]))
    assert orders == ["cocococo", "ccococo" + orders[1][7], "cccococ" + orders[2][7]]
