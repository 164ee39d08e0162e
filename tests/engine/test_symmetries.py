"""What must not matter, and what must scale: the unit of time, the order inside a batch, the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.engine import Limits, Load, Replica, kernel, replica
from kplan.engine.state import (
    DRAFT_S,
    OVERHEAD_S,
    PREEMPTIONS,
    SAMPLING_S,
    STEPS,
    VERIFY_S,
    W_BATCH,
    W_CONTEXT,
    W_DECODES,
    W_EMITTED,
    W_PROPOSED,
    W_STEPS,
    Steps,
)
from kplan.latency import StepCost
from kplan.policy import Policy
from kplan_policies.goodput import Goodput
from kplan_policies.heuristic import Heuristic
from kplan_policies.oracle import Oracle
from kplan_policies.sglang_ema import SglangEma
from kplan_policies.table import BatchTable, Fixed, Off
from tests.engine.scenes import ByTable, PerRequest, bounds, make_load, price, scaled, scenes

MANY = settings(max_examples=200, deadline=None)
MOMENTS = ("arrival_s", "admitted_s", "first_token_s", "finish_s", "think_s")
EXPORTABLE: list[Callable[[], Policy]] = [
    Off,
    lambda: Fixed(3),
    lambda: BatchTable([(1, 4, 5), (5, None, 2)]),
    SglangEma,
    Heuristic,
    Goodput,
]
POLICIES = [*EXPORTABLE, Oracle, PerRequest]


def served(
    load: Load, limits: Limits, policy: Policy, cost: StepCost | None = None, *, compiled: bool = True
) -> Replica:
    one = Replica(load, limits, cost or price(), policy, compiled=compiled)
    assert one.advance() == kernel.DONE
    return one


def slower(load: Load, c: float) -> Load:
    think_s = None if load.think_s is None else load.think_s * c
    return replace(load, arrival_s=load.arrival_s * c, think_s=think_s)


@given(scenes(), st.sampled_from(POLICIES), st.sampled_from([2.0**-20, 0.5, 8.0]))
@MANY
def test_scaling_all_times_scales_all_results_to_the_last_bit(
    scene: tuple[Load, Limits], policy: Callable[[], Policy], c: float
) -> None:
    """Powers of two round nothing. The policies decide by ratios of times alone."""
    load, limits = scene
    one = served(load, limits, policy())
    other = served(slower(load, c), limits, policy(), scaled(price(), c))
    for name in one.records.dtype.names:
        factor = c if name in MOMENTS else 1
        np.testing.assert_array_equal(one.records[name] * factor, other.records[name], err_msg=name)
    np.testing.assert_array_equal(one.machine.sums[:OVERHEAD_S] * c, other.machine.sums[:OVERHEAD_S])


@given(scenes(loops=("closed",)), st.floats(1e-3, 1e3))
@MANY
def test_scaling_by_any_factor_scales_the_results(scene: tuple[Load, Limits], c: float) -> None:
    """In a closed loop no arrival can fall on the other side of a step's end by rounding."""
    load, limits = scene
    one = served(load, limits, ByTable(2, 4, 1))
    other = served(load, limits, ByTable(2, 4, 1), scaled(price(), c))
    np.testing.assert_allclose(other.requests.finish_s, one.requests.finish_s * c, rtol=1e-9)


@given(scenes(loops=("open",), caches=("none",)), st.integers(0, 2**31), st.integers(0, 7))
@MANY
def test_the_order_inside_a_batch_changes_nothing(scene: tuple[Load, Limits], seed: int, k: int) -> None:
    """Everybody at once, room for all: a permutation of the requests is one of the results."""
    load, limits = scene
    load = replace(load, arrival_s=np.zeros(len(load)))
    roomy = limits._replace(max_num_seqs=64, max_num_batched_tokens=1 << 20, total_blocks=1 << 16)
    order = np.random.default_rng(seed).permutation(len(load))
    other = replace(
        load,
        prompt_len=load.prompt_len[order],
        output_len=load.output_len[order],
        trace_at=load.trace_at[order],
    )
    one, permuted = (served(each, roomy, ByTable(k)).records for each in (load, other))
    np.testing.assert_array_equal(one[order], permuted)


@given(scenes(), st.sampled_from(POLICIES))
@MANY
def test_little_s_law(scene: tuple[Load, Limits], policy: Callable[[], Policy]) -> None:
    """The number in the system over time is the sum of the times spent in it.

    The number is what the step records say, the times are those of the requests, from the first step that
    starts after the arrival. (A scheduler that runs a step ahead has not seen the latest of them.)
    """
    load, limits = scene
    logs: list[Steps] = []
    one = Replica(load, limits._replace(overlap=False), price(), policy(), record=logs.append)
    one.advance()
    one.flush()
    log, req = np.concatenate(logs), one.requests
    took_s = log["verify_s"] + log["draft_s"] + log["sampling_s"] + log["overhead_s"]
    number = log["running"] + log["waiting"]
    noticed_s = log["start_s"][np.searchsorted(log["start_s"], req.arrival_s)]
    assert (number > 0).all()
    inside = (req.arrival_s <= log["start_s"][:, None]) & (req.finish_s > log["start_s"][:, None])
    np.testing.assert_array_equal(inside.sum(axis=1), number)
    assert (number * took_s).sum() == pytest.approx((req.finish_s - noticed_s).sum(), rel=1e-9)


@given(scenes(), st.sampled_from(POLICIES))
@MANY
def test_step_records_agree_with_the_sums_and_the_requests(
    scene: tuple[Load, Limits], policy: Callable[[], Policy]
) -> None:
    load, limits = scene
    limits = limits._replace(window_to=len(load))
    logs: list[Steps] = []
    one = Replica(load, limits, price(), policy(), record=logs.append)
    assert one.advance() == kernel.DONE
    one.flush()
    plain = served(load, limits, policy())
    assert one.records.tobytes() == plain.records.tobytes(), "recording changes nothing"
    (log,) = logs
    req, sums, count = one.requests, one.machine.sums, one.machine.counters
    assert len(log) == count[STEPS] == sums[W_STEPS]
    for name, at in (("verify_s", VERIFY_S), ("draft_s", DRAFT_S), ("sampling_s", SAMPLING_S)):
        assert np.cumsum(log[name])[-1] == sums[at]  # added up in the same order
    for name, at in (
        ("batch", W_BATCH),
        ("decodes", W_DECODES),
        ("emitted", W_EMITTED),
        ("proposed", W_PROPOSED),
        ("context", W_CONTEXT),
    ):
        assert log[name].sum() == sums[at]
    assert log["emitted"].sum() == load.output_len.sum()
    for name in ("proposed", "accepted"):
        assert log[name].sum() == req[name].sum()
    assert log["decodes"].sum() == req.steps.sum()
    assert log["finished"].sum() == len(load)
    assert log["preemptions"][-1] == count[PREEMPTIONS] == req.preempted.sum()
    ends_s = log["start_s"] + (log["verify_s"] + log["draft_s"] + log["sampling_s"] + log["overhead_s"])
    assert (log["start_s"][1:] >= ends_s[:-1]).all(), "time runs forward"
    assert np.isin(req.finish_s, ends_s).all()
    assert np.isin(req.first_token_s, ends_s).all()
    assert np.isin(req.admitted_s, log["start_s"]).all()
    assert (log["used_blocks"] <= limits.total_blocks).all()
    assert (log["running"] <= limits.max_num_seqs).all()


@pytest.mark.parametrize("policy", [Off, Heuristic, PerRequest])
def test_a_log_handed_on_in_pieces_is_the_log(
    policy: Callable[[], Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(60, clients=9)
    logs: dict[int, list[Steps]] = {}
    for room in (replica.LOG_STEPS, 7, 1):
        monkeypatch.setattr(replica, "LOG_STEPS", room)
        logs[room] = []
        one = Replica(load, bounds(load), price(), policy(), record=logs[room].append)
        assert one.advance() == kernel.DONE
        one.flush()
    whole = logs.pop(65_536)
    assert len(whole) == 1
    assert max(map(len, logs[7])) == 7
    for pieces in logs.values():
        assert np.concatenate(pieces).tobytes() == whole[0].tobytes()


@given(scenes(loops=("open", "closed")))
@MANY
def test_no_exportable_policy_verifies_less_in_vain_than_the_oracle(scene: tuple[Load, Limits]) -> None:
    load, limits = scene
    waste = [
        int((req.proposed - req.accepted).sum())
        for req in (served(load, limits, policy()).requests for policy in (Oracle, *EXPORTABLE))
    ]
    assert waste[0] == 0
    assert min(waste) == waste[0]


def test_the_oracle_wastes_nothing_where_every_other_policy_that_drafts_does() -> None:
    """Guards the law above: on this load it separates them, and the oracle drafts too."""
    load = make_load(80, clients=16, output=(30, 60))
    oracle = served(load, bounds(load), Oracle()).requests
    assert oracle.proposed.sum() > 0
    for policy in EXPORTABLE[1:]:
        req = served(load, bounds(load), policy()).requests
        assert (req.proposed - req.accepted).sum() > 0
