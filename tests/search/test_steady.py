"""The closed form of a load: priced by hand, against the simulation, and what is read off it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from kplan.config.evidence import FrontPoint
from kplan.config.scenario import make_scenario
from kplan.latency import StepShape
from kplan.registry import parse_policy
from kplan.search.candidates import walk_curve
from kplan.search.evaluate import evaluate
from kplan.search.pictures import _undominated, depths, front, k_map
from kplan.search.sensitivity import accepted_otherwise
from kplan.search.steady import Steady, spaced, steady
from kplan.simulate import UNBOUNDED, Drawn, Setup, default_requests, draw_requests, prepare, run_policy

LENGTHS = {"prompt_tokens": 256, "output_tokens": 128, "max_k": 3, "replications": 1}


@cache
def closed_loop(clients: int) -> tuple[Setup, Drawn, Steady]:
    setup = prepare(make_scenario({"concurrency": clients, **LENGTHS}))
    drawn = draw_requests(setup, default_requests(setup), 0)
    return setup, drawn, steady(setup, walk_curve(drawn.trace, 3), 256.0)


def test_a_step_is_the_mean_of_those_with_a_prompt_and_those_without() -> None:
    """Of 32 requests of 128 tokens one ends in every fourth step: a quarter of the steps has a prompt."""
    setup, _, load = closed_loop(32)
    context = 256 + 128 / 2
    assert load.context == pytest.approx(context)
    alone = setup.latency_off.step_seconds(StepShape.decode(32, 0, context)).total_s
    joined = setup.latency_off.step_seconds(
        StepShape(32, 32, 32 * context, 32 * context, 1, 256, 256, 256**2 / 2, 33)
    ).total_s
    found = load.step_s(np.array([32]))[0, 0]
    assert found == pytest.approx(0.75 * alone + 0.25 * joined)
    assert load.tpot_s(np.array([32]))[0, 0] == found


@pytest.mark.parametrize("policy", ["off", "fixed:1", "fixed:3"])
def test_a_closed_loop_is_within_6_percent_of_its_simulation(policy: str) -> None:
    setup, drawn, load = closed_loop(32)
    k = 0 if policy == "off" else int(policy[-1])
    tpot, batch = load.at_batch(32)
    simulated = run_policy(setup, parse_policy(policy), drawn).mean_tpot_s
    assert tpot[k] == pytest.approx(simulated, rel=0.06)
    assert batch[k] == 32


def test_an_open_load_balances_where_littles_law_holds() -> None:
    _, _, load = closed_loop(32)
    tpot, batch = load.at_rate(40.0)
    assert batch == pytest.approx(40.0 * 128 * tpot, rel=1e-9)
    for k in range(4):
        near = np.array([int(batch[k]), int(batch[k]) + 1])
        low, high = load.tpot_s(near)[:, k]
        assert low * 0.99 <= tpot[k] <= high * 1.01


def test_a_rate_that_no_batch_serves_has_no_balance() -> None:
    _, _, load = closed_loop(32)
    assert np.isnan(load.at_rate(1e6)[0]).all()
    few = replace(load, room=31 * int(load.context))
    assert np.isnan(few.at_batch(32)[0]).all()


@pytest.mark.parametrize("change", [-0.2, 0.1])
def test_acceptance_scaled_is_a_geometric_sum_of_the_scaled_probability(change: float) -> None:
    p = 0.6
    tokens = np.array([sum(p**d for d in range(k + 1)) for k in range(6)])
    scaled = p * (1 + change)
    expected = [(1 - scaled ** (k + 1)) / (1 - scaled) for k in range(6)]
    assert accepted_otherwise(tokens, change) == pytest.approx(expected)


def test_acceptance_scaled_never_passes_1() -> None:
    assert accepted_otherwise(np.array([1.0, 1.95, 2.85]), 0.2) == pytest.approx([1, 2, 3])


def test_the_map_holds_the_k_of_most_tokens_per_second_cell_by_cell() -> None:
    setup, drawn, load = closed_loop(32)
    done = evaluate(setup, parse_policy("fixed:1"), [drawn], 1, UNBOUNDED)
    found = k_map(load, done, setup.model.max_context)
    for row, context in list(enumerate(found.contexts))[::4]:
        for column, batch in list(enumerate(found.batches))[::6]:
            k = found.best_k[row][column]
            assert (k is None) == (batch * context > setup.kv_tokens)
            if k is None:
                continue
            rates = [
                batch * load.tokens[j] / (setup.latency if j else setup.latency_off)
                .step_seconds(StepShape.decode(batch, j, context, load.verified[j])).total_s
                for j in range(4)
            ]  # fmt: skip
            assert k == next(j for j in range(4) if rates[j] >= 0.99 * max(rates))
            assert found.gain[row][column] == pytest.approx(rates[k] / rates[0])
    assert found.visited is not None
    assert 28 <= found.visited[0] <= found.visited[1] == 32  # seats that change hands are empty for a step


def test_the_front_is_of_points_that_none_beats_in_both() -> None:
    points = [
        FrontPoint(k=0, batch=1, tpot_ms=t, tok_s_gpu=r) for t, r in ((5, 9), (4, 8), (6, 9), (4, 7), (7, 10))
    ]
    assert [(one.tpot_ms, one.tok_s_gpu) for one in _undominated(points)] == [(4, 8), (5, 9), (7, 10)]
    _, _, load = closed_loop(32)
    one, two = front(load, 1), front(load, 2)
    assert all(a.tpot_ms < b.tpot_ms and a.tok_s_gpu < b.tok_s_gpu for a, b in pairwise(one.best))
    assert {point.k for point in one.off} == {0}
    assert two.best[0].tok_s_gpu == pytest.approx(one.best[0].tok_s_gpu / 2)
    first = one.off[0]
    assert first.tok_s_gpu == pytest.approx(1e3 * first.batch / first.tpot_ms)


def test_acceptance_by_depth_multiplies_to_the_tokens_of_a_step() -> None:
    """Tokens per step = 1 + the share of steps that keep draft 1 + that keep drafts 1 and 2 + ..."""
    _, drawn, load = closed_loop(32)
    rows = depths(drawn, 3)
    assert [one.draft for one in rows] == [1, 2, 3]
    assert 1 + sum(one.kept for one in rows) == pytest.approx(load.tokens[3])
    assert np.cumprod([one.conditional for one in rows]) == pytest.approx([one.kept for one in rows])
    assert [one.known for one in depths(replace(drawn, recorded_k=2), 3)] == [True, True, False]


def test_numbers_are_spaced_from_the_first_to_the_last() -> None:
    assert spaced(1, 1, 9).tolist() == [1]
    assert spaced(1, 8, 4).tolist() == [1, 2, 4, 8]
