"""The whole engine under SGLang's rule against the released class, driven alone with the same acceptance."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from kplan.engine import Load, Replica, Traces
from kplan.policy import StepOutcome, StepView
from kplan_policies.sglang_ema import SglangEma
from tests.engine.scenes import bounds, price

from .helpers import batch_of, outcome

BATCHES = 20_000
LADDER = (0, 1, 3, 5, 7)
DEEPEST = {1: 7, 8: 3, 31: 1, 32: 1}
"""The largest K of the slot that a batch is routed to, in the shipped ladder."""


class Measured(NamedTuple):
    """A run of the released class: i.i.d. acceptance ``p`` per draft, shares of the batches at each K."""

    batch: int
    p: float
    lag: int
    shares: tuple[float, ...]
    switches: int


# Carried over, measured: 20,000 batches of the released AdaptiveSpeculativeParams class (SGLang 0.5.23,
# default ladder, start 3). Lag 1: overlap scheduling, an outcome is known one batch late. Shares at each K of
# LADDER.
MEASURED = [
    Measured(batch, p, lag, shares, switches)
    for batch, p, lag, shares, switches in [
        (1, 0.3, 0, (0, 0.697, 0.303, 0, 0), 491),
        (1, 0.3, 1, (0, 0.679, 0.321, 0, 0), 514),
        (1, 0.45, 0, (0, 0.149, 0.851, 0, 0), 300),
        (1, 0.45, 1, (0, 0.137, 0.863, 0, 0), 316),
        (1, 0.55, 0, (0, 0.021, 0.979, 0, 0), 76),
        (1, 0.55, 1, (0, 0.014, 0.986, 0, 0), 58),
        (1, 0.7, 0, (0, 0, 0.992, 0.008, 0), 38),
        (1, 0.7, 1, (0, 0, 0.991, 0.009, 0), 44),
        (1, 0.8, 0, (0, 0, 0.756, 0.244, 0), 423),
        (1, 0.8, 1, (0, 0, 0.734, 0.266, 0), 414),
        (1, 0.9, 0, (0, 0, 0.032, 0.75, 0.217), 485),
        (1, 0.9, 1, (0, 0, 0.027, 0.759, 0.213), 518),
        (8, 0.3, 0, (0.499, 0.499, 0.001, 0, 0), 3997),
        (8, 0.3, 1, (0.499, 0.499, 0.001, 0, 0), 3996),
        (8, 0.45, 0, (0.058, 0.057, 0.885, 0, 0), 494),
        (8, 0.45, 1, (0.261, 0.261, 0.478, 0, 0), 2118),
        (8, 0.55, 0, (0, 0, 1, 0, 0), 0),
        (8, 0.55, 1, (0, 0, 1, 0, 0), 0),
        (8, 0.7, 0, (0, 0, 1, 0, 0), 0),
        (8, 0.7, 1, (0, 0, 1, 0, 0), 0),
        (8, 0.8, 0, (0, 0, 1, 0, 0), 0),
        (8, 0.8, 1, (0, 0, 1, 0, 0), 0),
        (8, 0.9, 0, (0, 0, 1, 0, 0), 0),
        (8, 0.9, 1, (0, 0, 1, 0, 0), 0),
        (32, 0.3, 0, (0.5, 0.5, 0, 0, 0), 3998),
        (32, 0.3, 1, (0.5, 0.5, 0, 0, 0), 3997),
        (32, 0.45, 0, (0.487, 0.513, 0, 0, 0), 3898),
        (32, 0.45, 1, (0.5, 0.5, 0, 0, 0), 3997),
        (32, 0.55, 0, (0.046, 0.954, 0, 0, 0), 370),
        (32, 0.55, 1, (0.14, 0.86, 0, 0, 0), 1122),
        (32, 0.7, 0, (0, 1, 0, 0, 0), 0),
        (32, 0.7, 1, (0, 1, 0, 0, 0), 0),
        (32, 0.8, 0, (0, 1, 0, 0, 0), 0),
        (32, 0.8, 1, (0, 1, 0, 0, 0), 0),
        (32, 0.9, 0, (0, 1, 0, 0, 0), 0),
        (32, 0.9, 1, (0, 1, 0, 0, 0), 0),
    ]
]


ROUNDED = 0.00051  # the measured shares are given to three digits
PROMPT = 100
SHORTEST_STEP_S = 0.002


def load_of(batch: int, output: int, acc: np.ndarray) -> Load:
    """``batch`` clients with one request each, over (batch x output,) tokens emitted by position."""
    return Load(
        arrival_s=np.zeros(batch),
        prompt_len=np.full(batch, PROMPT),
        output_len=np.full(batch, output),
        trace_at=np.arange(batch) * output,
        traces=Traces(acc.astype(np.uint8), np.full(batch * output, 255, np.uint8)),
        concurrency=batch,
    )


def room(batch: int) -> int:
    """Output tokens that outlast BATCHES steps at the deepest K of the slot."""
    return (BATCHES + 10) * (DEEPEST[batch] + 1)


def recorded(case: Measured) -> tuple[Load, np.ndarray, int]:
    """The acceptances of the measured run, laid out by position.

    The draws are the measurement's (Python's generator, seed 0, one draw per examined draft token), and the
    rule alone decides, as there. What the run did not visit accepts nothing.

    Returns:
        The load, (batch,) tokens emitted by each request when it ends, and the switches of K.
    """
    draw, policy = random.Random(0).random, SglangEma()
    ids, output, p = np.arange(case.batch), room(case.batch), case.p
    acc = np.ones((case.batch, output), np.int64)
    emitted = np.ones(case.batch, np.int64)  # the first token is the prompt's
    late: list[StepOutcome] = []
    step = batch_of(case.batch)
    k, switches = policy.choose_k(step), 0
    for _ in range(BATCHES):
        accepted = []
        for _ in range(case.batch):
            depth = 0
            while depth < k and draw() < p:
                depth += 1
            accepted.append(depth)
        acc[ids, emitted] += accepted
        emitted += acc[ids, emitted]
        late.append(outcome(ids, [k] * case.batch, accepted))
        if len(late) > case.lag:
            policy.observe(late.pop(0))
        before, k = k, policy.choose_k(step)
        switches += k != before
    return load_of(case.batch, output, acc.ravel()), emitted, switches


def serve(load: Load, lag: int, policy: SglangEma | None = None, batches: int = BATCHES) -> Replica:
    """SGLang's flavour after that many decode steps of the whole batch."""
    clients = len(load)
    limits = bounds(
        load, k_now=True, prefill_first=True, max_num_batched_tokens=8192, total_blocks=10_000_000
    )
    replica = Replica(load, limits, price(), policy or SglangEma(), observe_lag=lag)
    replica.advance(1e-9)  # the prompts, on their own
    while left := batches - int(replica.machine.k_steps.sum()) // clients:
        replica.advance(replica.clock_s + left * SHORTEST_STEP_S)
    return replica


def shares_of(replica: Replica) -> list[float]:
    steps = replica.machine.k_steps
    assert steps.sum() == steps[list(LADDER)].sum()
    return [float(steps[k] / steps.sum()) for k in LADDER]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"{case.batch}-{case.p}-{case.lag}")
def test_the_engine_repeats_every_decision_of_the_released_class(case: Measured) -> None:
    load, emitted, switches = recorded(case)
    replica = serve(load, case.lag)
    np.testing.assert_array_equal(replica.requests.emitted, emitted)
    assert shares_of(replica) == pytest.approx(case.shares, abs=ROUNDED)
    assert switches == case.switches


@pytest.mark.shared
def test_the_rows_carried_over_are_the_files(shared_dir: Path) -> None:
    with (shared_dir / "engines/sglang_cpu/ADAPTIVE_SHARES.csv").open() as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        theirs = [
            Measured(
                int(row["batch"]),
                float(row["p"]),
                ("sync", "overlap").index(row["mode"]),
                tuple(float(row[f"share_k{k}"]) for k in LADDER),
                int(row["switches"]),
            )
            for row in rows
        ]
    assert theirs == MEASURED


@pytest.mark.parametrize(
    "case", [case for case in MEASURED if case.batch == 32 and case.p in (0.3, 0.55, 0.7)]
)
def test_a_batch_of_31_is_padded_to_32_and_behaves_as_its_slot(case: Measured) -> None:
    """Draws of its own; two samples of this length are within 3 points of each other."""
    output = room(31)
    acc = np.minimum(np.random.default_rng(0).geometric(1 - case.p, 31 * output), 255)
    assert shares_of(serve(load_of(31, output, acc), case.lag)) == pytest.approx(case.shares, abs=0.03)


class Log(SglangEma):
    """Writes down every K; it overrides ``choose_k``, so it is called once per step."""

    def __init__(self) -> None:
        super().__init__()
        self.ks: list[int] = []

    def choose_k(self, step: StepView) -> int:
        self.ks.append(super().choose_k(step))
        return self.ks[-1]


@pytest.mark.parametrize("batch", [8, 31])
@pytest.mark.parametrize("lag", [0, 1])
def test_without_acceptance_k_cycles_between_0_and_1_five_batches_each(batch: int, lag: int) -> None:
    policy = Log()
    serve(load_of(batch, room(batch), np.ones(batch * room(batch))), lag, policy, batches=1015 + lag)
    settled = np.array(policy.ks[15 + lag :]).reshape(-1, 5)  # after a warm-up of ten and an interval of five
    assert (settled == settled[:, :1]).all()
    assert set(settled[:, 0]) == {0, 1}
    assert (np.abs(np.diff(settled[:, 0])) == 1).all()
