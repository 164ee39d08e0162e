"""Does a trace model rank policies as the recording does? Judged on the half that the model has not seen.

Policies are simulated on the recorded requests and on generated ones of the same lengths, in a closed loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from kplan.acceptance import TraceModel, TraceSet, fit
from kplan.acceptance.columns import select_set
from kplan.acceptance.judge import halves, kept_rows
from kplan.config.scenario import make_scenario
from kplan.registry import parse_policy
from kplan.simulate import Setup, default_requests, draw_requests, mean_lengths, prepare, run_policy
from kplan.simulate.source import proposer_trace

POLICIES = (
    *("off", "fixed:1", "fixed:2", "fixed:3", "fixed:5", "fixed:7"),
    *("sglang-ema", "goodput", "oracle"),
)
BATCHES = (1, 32, 128)
TIE = 0.01
"""Policies whose TPOT differs by no more are equal."""
FEWEST_REQUESTS = 400
COPIES = 8
"""Requests generated for each one recorded, so that the model's side adds little noise of its own."""
_SEED = 20_260_105

TpotMs = Mapping[str, float]


@dataclass(frozen=True)
class Order:
    """Policies at one batch size: policy -> mean TPOT, ms.

    Attributes:
        recorded: on the half judged on.
        generated: on requests of its lengths from a model of the other half.
        other_half: on the other half itself; how it ranks says what the recording can decide.
        model_differs: pairs that the model ranks otherwise than the half judged on.
        halves_differ: pairs that the other half does.
    """

    batch: int
    recorded: TpotMs
    generated: TpotMs
    other_half: TpotMs

    @property
    def model_differs(self) -> list[tuple[str, str]]:
        return differing(self.recorded, self.generated)

    @property
    def halves_differ(self) -> list[tuple[str, str]]:
        return differing(self.recorded, self.other_half)


def judge_order(
    traces: TraceSet, proposer: str, batches: Sequence[int] = BATCHES, *, keep_loopy: bool = False
) -> list[Order]:
    """Fit on one half of the requests, and rank the policies on the other and on what the fit generates.

    Raises:
        InputError: see :func:`kplan.acceptance.fit.fit`, or a proposer that no drafter profile has.
    """
    trace = proposer_trace(traces, proposer)
    seen, unseen = (select_set(traces, rows) for rows in halves(trace, kept_rows(traces, keep_loopy)))
    made = generated_like(fit(seen, proposer, keep_loopy=True), unseen, proposer)
    orders = []
    for batch in batches:
        setup = prepare(make_scenario({"concurrency": batch, "proposer": proposer}))
        orders.append(Order(batch, *(tpot_ms(setup, each, proposer) for each in (unseen, made, seen))))
    return orders


def generated_like(model: TraceModel, traces: TraceSet, proposer: str) -> TraceSet:
    """COPIES times the requests of ``traces``, their acceptance from ``model``."""
    rows = np.tile(np.arange(len(traces)), COPIES)
    output_len = traces.proposers[proposer].output_len[rows]
    return TraceSet(
        request_id=np.array([str(i) for i in range(len(rows))], dtype=np.str_),
        prompt_len=traces.prompt_len[rows],
        proposers={proposer: model.generate(_SEED, output_len)},
        provenance=model.provenance,
    )


def tpot_ms(setup: Setup, traces: TraceSet, proposer: str) -> dict[str, float]:
    """Mean TPOT of every policy on the same requests drawn from ``traces``, ms."""
    lengths = mean_lengths(traces.prompt_len, traces.proposers[proposer].output_len)
    own = replace(setup, source=replace(setup.source, workload=None, recorded=traces, lengths=lengths))
    drawn = draw_requests(own, max(default_requests(own), FEWEST_REQUESTS), _SEED)
    return {name: run_policy(own, parse_policy(name), drawn).mean_tpot_s * 1e3 for name in POLICIES}


def differing(one: TpotMs, other: TpotMs) -> list[tuple[str, str]]:
    """Pairs of policies that the two rank otherwise.

    A pair is slower, faster or equal (within TIE); it differs when these do and its ratios of TPOT lie more
    than TIE apart, so that 1.009 beside 1.011 is no difference.
    """
    found = []
    for a, b in combinations(one, 2):
        ratio, again = one[a] / one[b], other[a] / other[b]
        if _rank(ratio) != _rank(again) and abs(ratio - again) > TIE:
            found.append((a, b))
    return found


def _rank(ratio: float) -> int:
    return 0 if abs(ratio - 1.0) <= TIE else (1 if ratio > 1.0 else -1)
