"""SGLang's rule against a transliteration and its known consequences; its runs: test_sglang_in_the_engine."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.policy import StepOutcome
from kplan_policies.sglang_ema import GRAPH_SIZES, SglangEma

from .helpers import batch_of, iid_depths, outcome, untimed


class Transliteration:
    """The pseudo-code of the rule, line for line, with none of the policy's structure."""

    def __init__(self, ladder: dict[str, Any], start: int | None, captured: list[int]) -> None:
        shared = {"ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10}
        shared |= {"down_hysteresis": -0.25, "up_hysteresis": 0, "ceiling_coeff": 0}
        shared |= {k: v for k, v in ladder.items() if not k.isdigit()}
        self.slots = {int(k): {**shared, **v} for k, v in ladder.items() if k.isdigit()}
        union = sorted({k for s in self.slots.values() for k in s["candidate_steps"]})
        init = union[len(union) // 2] if start is None else start
        self.captured = captured
        for s in self.slots.values():
            c = s["candidate_steps"]
            s["cur"] = init if init in c else c[len(c) // 2]
            s["ema"] = s["cur"] - 1
            s["n"] = 0

    def route(self, bs: int) -> dict[str, Any]:
        fits = [b for b in self.captured if b >= bs]
        b = min(fits) if fits else bs
        below = [key for key in self.slots if key <= b]
        return self.slots[max(below) if below else min(self.slots)]

    def verify(self, bs: int, a: float) -> None:
        s = self.route(bs)
        c = s["candidate_steps"]
        if s["cur"] > 0:
            s["ema"] = (1 - s["ema_alpha"]) * s["ema"] + s["ema_alpha"] * a
        s["n"] += 1
        if s["n"] <= s["warmup_batches"] or (s["n"] - s["warmup_batches"]) % s["update_interval"]:
            return
        if s["cur"] == 0:
            larger = [k for k in c if k > 0]
            nxt = larger[0] if larger else 0
            if nxt > 0 and s["ema"] < 0:
                s["ema"] = nxt - 1
            s["cur"] = nxt
            return
        i = c.index(s["cur"])
        before = i
        while i > 0 and s["ema"] <= (0.5 if c[i - 1] == 0 else c[i - 1] - 0.5) + s["down_hysteresis"]:
            i -= 1
        if i == before:
            while i < len(c) - 1 and s["ema"] > c[i] - 0.5 + s["up_hysteresis"]:
                i += 1
        if s["ceiling_coeff"] > 0:
            top = max(1, ceil(s["ema"] * s["ceiling_coeff"]))
            if top < c[i] <= s["cur"]:
                while c[i] > top and i != 0:
                    i -= 1
        s["cur"] = c[i]


@st.composite
def ladders(draw: st.DrawFn) -> dict[str, Any]:
    """Adaptive configs with every knob, on the top level and per slot."""
    knobs = st.fixed_dictionaries(
        {},
        optional={
            "ema_alpha": st.floats(0.05, 1.0),
            "update_interval": st.integers(1, 6),
            "warmup_batches": st.integers(0, 6),
            "down_hysteresis": st.floats(-1.0, 1.0),
            "up_hysteresis": st.floats(-1.0, 1.0),
            "ceiling_coeff": st.floats(0.0, 2.0),
        },
    )
    keys = draw(st.sets(st.integers(1, 40), min_size=1, max_size=4))
    steps = st.sets(st.integers(0, 9), min_size=1, max_size=5).map(sorted)
    slots = {str(key): {"candidate_steps": draw(steps), **draw(knobs)} for key in keys}
    return {**draw(knobs), **slots}


@untimed
@given(
    ladder=ladders(),
    seed=st.integers(0, 2**32),
    p=st.floats(0.0, 0.95),
    captured=st.sets(st.integers(1, 32), max_size=5).map(sorted),
)
def test_every_decision_is_the_transliterations(
    ladder: dict[str, Any], seed: int, p: float, captured: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    policy, reference = SglangEma(ladder, graph_sizes=captured), Transliteration(ladder, None, captured)
    for batch in rng.integers(1, 45, 120).tolist():
        k = policy.choose_k(batch_of(batch))
        assert k == reference.route(batch)["cur"]
        accepted = np.minimum(iid_depths(rng, p, batch), k)
        policy.observe(outcome(np.arange(batch), np.full(batch, k), accepted))
        reference.verify(batch, sum(accepted.tolist()) / batch)


def at_once(steps: list[int], down: float, start: int, ema: float) -> int:
    """K after one decision that sees exactly this EMA (a hundredth is one accepted draft of 100 requests)."""
    slot = {"candidate_steps": steps, "down_hysteresis": down}
    policy = SglangEma({"1": slot, "ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}, start=start)
    accepted = np.full(100, int(ema * 100) // 100)
    accepted[: round(ema * 100) % 100] += 1
    policy.observe(outcome(np.arange(100), np.full(100, start), accepted))
    return policy.choose_k(batch_of(100))


@pytest.mark.parametrize(
    ("start", "ema", "then"),
    [
        (1, 0.50, 1),
        (1, 0.51, 3),
        (3, 2.50, 3),
        (3, 2.51, 5),
        (5, 4.50, 5),
        (5, 4.51, 7),
        (7, 4.26, 7),
        (7, 4.25, 5),
        (5, 2.26, 5),
        (5, 2.25, 3),
        (3, 0.26, 3),
        (3, 0.25, 1),
        (7, 0.25, 1),
    ],
)
def test_thresholds_of_the_small_batch_slot(start: int, ema: float, then: int) -> None:
    assert at_once([1, 3, 5, 7], -0.25, start, ema) == then


@untimed
@given(st.integers(0, 100))
def test_one_is_never_a_rest_state_of_the_middle_slot(hundredths: int) -> None:
    assert at_once([0, 1, 3], 0.0, 1, hundredths / 100) != 1


@pytest.mark.parametrize("batch", [8, 32])
def test_no_acceptance_cycles_between_0_and_1_five_batches_each(batch: int) -> None:
    policy, ks = SglangEma(), []
    for _ in range(215):
        ks.append(policy.choose_k(batch_of(batch)))
        policy.observe(outcome(np.arange(batch), np.full(batch, ks[-1]), np.zeros(batch)))
    assert len(set(ks[:15])) == 1  # warm-up of ten, then the first interval of five
    blocks = np.array(ks[15:]).reshape(-1, 5)
    assert (blocks == blocks[:, :1]).all()
    assert np.abs(np.diff(blocks[:, 0])).tolist() == [1] * (len(blocks) - 1)
    assert set(ks[15:]) == {0, 1}


def test_batch_31_pads_to_32_and_uses_its_slot() -> None:
    policy = SglangEma()
    for _ in range(15):
        policy.observe(outcome(np.arange(31), np.full(31, 1), np.zeros(31)))
    assert policy.choose_k(batch_of(31)) == policy.choose_k(batch_of(32)) == 0
    assert policy.choose_k(batch_of(30)) == 3  # slot 8 has seen nothing


def test_with_48_running_requests_the_slot_of_64_is_never_reached() -> None:
    captured = [size for size in GRAPH_SIZES if size <= 48]
    policy = SglangEma({"1": {"candidate_steps": [2]}, "64": {"candidate_steps": [0]}}, graph_sizes=captured)
    assert {policy.choose_k(batch_of(batch)) for batch in range(1, 49)} == {2}
    assert policy.choose_k(batch_of(64)) == 0


def test_the_slot_of_zero_alone_never_speculates() -> None:
    policy = SglangEma()
    for _ in range(60):
        assert policy.choose_k(batch_of(64)) == 0
        policy.observe(outcome(np.arange(64), np.zeros(64), np.zeros(64)))


def test_a_step_in_which_nothing_decodes_is_no_verify() -> None:
    policy = SglangEma()
    for _ in range(14):
        policy.observe(outcome([0], [3], [0]))
    for _ in range(20):
        policy.observe(StepOutcome(4, 0.1, *(np.zeros(0, np.int64) for _ in range(3))))
    assert policy.choose_k(batch_of(1)) == 3
    policy.observe(outcome([0], [3], [0]))
    assert policy.choose_k(batch_of(1)) == 1


@untimed
@given(ladders())
def test_the_config_in_force_makes_the_same_policy(ladder: dict[str, Any]) -> None:
    policy = SglangEma(ladder, update_interval=7)
    again = SglangEma(policy.config())
    assert again.config() == policy.config()
    assert again.initial_k == policy.initial_k


@pytest.mark.parametrize(
    ("ladder", "told"),
    [
        ({}, "batch-size key"),
        ({"candidate_steps": [1, 3]}, "batch-size key"),
        ({"1": {}}, "candidate_steps"),
        ({"1": {"candidate_steps": []}}, "candidate_steps"),
        ({"1": {"candidate_steps": [-1, 3]}}, "not -1"),
        ({"1": {"candidate_steps": [True]}}, "not True"),
        ({"1": {"candidate_steps": [3, 1]}}, "ascend"),
        ({"1": {"candidate_steps": [1, 1]}}, "ascend"),
        ({"1": {"candidate_steps": [1, 255]}}, "0 to 254"),
        ({"1": {"candidate_steps": [1], "foo": 1}}, "unknown key 'foo'"),
        ({"1": {"candidate_steps": [1]}, "comment": "x"}, "unknown key 'comment'"),
        ({"1": {"candidate_steps": [1]}, "01": {"candidate_steps": [2]}}, "same number"),
        ({"1": {"candidate_steps": [1], "ema_alpha": 5}}, "ema_alpha"),
        ({"1": {"candidate_steps": [1], "update_interval": 0}}, "update_interval"),
        ({"1": {"candidate_steps": [1], "update_interval": 2.5}}, "update_interval"),
        ({"1": {"candidate_steps": [1]}, "down_hysteresis": float("nan")}, "down_hysteresis"),
        ({"1": [1, 3]}, "JSON object"),
    ],
)
def test_configs_that_sglang_would_misread_are_refused(ladder: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SglangEma(ladder)


def test_start_must_be_a_candidate() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1, 3, 5, 7\], not 2"):
        SglangEma(start=2)
