"""Data-parallel ranks: they step together, and the slowest sets the pace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.engine import Limits, Load, Replica, kernel, least_outstanding, round_robin, serve_routed
from kplan.engine.group import Group
from kplan.engine.load import new_requests
from kplan.engine.server import Route
from kplan.engine.state import Steps
from kplan.policy import Policy
from tests.engine.scenes import ByTable, PerRequest, bounds, make_load, price, scenes

MANY = settings(max_examples=200, deadline=None)
POLICIES: list[Callable[[], Policy]] = [lambda: ByTable(3, 1), PerRequest]


def ends_s(log: Steps) -> np.ndarray:
    return log["start_s"] + (log["verify_s"] + log["draft_s"] + log["sampling_s"] + log["overhead_s"])


def logs_of(
    load: Load, limits: Limits, policy: Callable[[], Policy], ranks: int, route: Route
) -> list[Steps]:
    pieces: list[list[Steps]] = [[] for _ in range(ranks)]
    serve_routed(
        load, 1, limits, price(), policy, ranks=ranks, route=route,
        record=lambda rank, steps: pieces[rank].append(steps),
    )  # fmt: skip
    return [np.concatenate(log) for log in pieces]


def test_a_rank_that_sits_a_step_out_ends_nobody_again() -> None:
    """Three clients on two ranks: one told twice of an end would send twice."""
    load = make_load(12, clients=3, output=(1, 30))
    req = serve_routed(load, 1, bounds(load), price(), lambda: ByTable(2), ranks=2).requests
    inside = (req["arrival_s"][:, None] <= req["arrival_s"]) & (req["finish_s"][:, None] > req["arrival_s"])
    assert inside.sum(axis=0).max() == 3


@given(scenes(loops=("open", "closed")), st.sampled_from(POLICIES))
@MANY
def test_a_group_of_one_rank_is_a_replica(scene: tuple[Load, Limits], policy: Callable[[], Policy]) -> None:
    """Both are handed everybody at once, all having arrived by then."""
    load, limits = scene
    limits = limits._replace(closed=False)
    machines = [
        Replica(load, limits, price(), policy(), requests=new_requests(load), handed=True) for _ in range(2)
    ]
    for machine in machines:
        for r in range(len(load)):
            machine.offer(r, 0.0)
    group = Group(machines[:1])
    assert group.advance(10**9) == machines[1].advance() == kernel.DONE
    assert machines[0].records.tobytes() == machines[1].records.tobytes()
    assert machines[0].machine.k_steps.tobytes() == machines[1].machine.k_steps.tobytes()


@given(
    scenes(),
    st.sampled_from(POLICIES),
    st.integers(2, 4),
    st.sampled_from([round_robin, least_outstanding]),
)
@MANY
def test_ranks_that_step_at_once_end_at_once(
    scene: tuple[Load, Limits], policy: Callable[[], Policy], ranks: int, route: Route
) -> None:
    """Every step lasts as long as its slowest rank; nobody starts one while another is at it."""
    logs = logs_of(*scene, policy, ranks, route)
    starts = np.concatenate([log["start_s"] for log in logs])
    ends = np.concatenate([ends_s(log) for log in logs])
    moments, step = np.unique(starts, return_inverse=True)
    for number in range(len(moments)):
        together = ends[step == number]
        np.testing.assert_allclose(together, together[0], rtol=1e-12)
        assert number + 1 == len(moments) or (together <= moments[number + 1] * (1 + 1e-12)).all()


def test_the_slowest_rank_sets_the_pace_and_an_idle_one_waits() -> None:
    """Three requests on two ranks: 2 on the first, 1 on the second; each alone for comparison.

    The paired steps last as long as the steps of two; the second rank's, when it is done, are missing.
    """
    load = make_load(3, output=(40, 40), prompt=(200, 200), depth=1.0)
    load.arrival_s[:] = 0.0
    load.output_len[1] = 20
    two, one = logs_of(load, bounds(load, max_k=0), lambda: ByTable(0), 2, round_robin)
    assert (two["batch"] == 2).all()
    assert (len(two), len(one)) == (40, 20)
    pair = make_load(2, output=(40, 40), prompt=(200, 200), depth=1.0)
    pair.arrival_s[:] = 0.0
    (alone,) = logs_of(pair, bounds(pair, max_k=0), lambda: ByTable(0), 1, round_robin)
    np.testing.assert_allclose(ends_s(two), ends_s(alone), rtol=1e-12)
    np.testing.assert_allclose(ends_s(one), ends_s(alone)[:20], rtol=1e-12)
    assert (one["overhead_s"] > two["overhead_s"][:20]).all(), "the faster rank waits"
