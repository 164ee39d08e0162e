"""Requests for one seed, the same for every policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace
from kplan.engine import Traces
from kplan.rng import stream
from kplan.simulate.setup import POOL, Setup, proposer_trace
from kplan.workload import poisson

ALWAYS = 255
"""``Traces.drafted`` where the proposer always has as many drafts as asked."""


@dataclass(frozen=True)
class Drawn:
    """Requests in order of arrival, drawn for one seed; the same for every policy.

    Attributes:
        prompt_len, output_len, trace_at: (n,) int64.
        unit_arrival_s: (n,) sorted arrival times at a rate of one per second; divide by the rate.
        trace: the proposer's trace that the rows were drawn from.
        stretch: times the warm-up of theory (see kplan.simulate.settling) that is not measured.
    """

    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    trace_at: NDArray[np.int64]
    unit_arrival_s: NDArray[np.float64]
    traces: Traces
    trace: ProposerTrace
    stretch: float = 1.0

    def take(self, n: int) -> Drawn:
        """The first ``n`` requests, drawn in a cycle when there are fewer (their arrivals are not)."""
        rows = np.resize(np.arange(len(self.prompt_len)), n)
        return replace(
            self,
            prompt_len=self.prompt_len[rows],
            output_len=self.output_len[rows],
            trace_at=self.trace_at[rows],
            unit_arrival_s=self.unit_arrival_s[:n],
        )


def draw_requests(setup: Setup, n: int, seed: int, stretch: float = 1.0) -> Drawn:
    """Draw ``n`` requests: the recorded rows or the generated pool, shuffled, turn after turn."""
    scenario = setup.scenario
    if setup.recorded is not None:
        traces = setup.recorded
    else:
        assert setup.workload is not None
        traces = setup.workload.traces(
            seed,
            min(n, POOL),
            scenario.proposer,
            prompt_tokens=scenario.prompt_tokens,
            output_tokens=scenario.output_tokens,
        )
    trace = proposer_trace(traces, scenario.proposer)
    # shuffled anew at every turn: dealt to replicas in a fixed order, each would see the same few for ever
    turns = -(-n // len(traces))
    order = [stream(seed, "rows", turn).permutation(len(traces)) for turn in range(turns)]
    rows = np.concatenate(order)[:n]
    prompt = traces.prompt_len[rows].astype(np.int64)
    if scenario.prompt_tokens is not None:
        prompt = np.full(n, scenario.prompt_tokens, np.int64)
    drafted = trace.drafted if trace.drafted is not None else np.full(len(trace.acc), ALWAYS, np.uint8)
    return Drawn(
        prompt_len=prompt,
        output_len=trace.output_len[rows].astype(np.int64),
        trace_at=trace.offsets[rows],
        unit_arrival_s=poisson(1.0, n, seed),
        traces=Traces(trace.acc, drafted),
        trace=trace,
        stretch=stretch,
    )
