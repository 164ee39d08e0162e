"""Requests for one seed, the same for every policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace
from kplan.acceptance.joint import proposers_of
from kplan.engine import AnyTraces, Load, MixedTraces, Traces, apart_of
from kplan.rng import stream
from kplan.simulate.mix import joined
from kplan.simulate.setup import Setup
from kplan.simulate.source import POOL, proposer_trace, rows_of
from kplan.workload import Prefix, RequestLog, constant, gamma, ramp, think_times

MOST_POSITIONS = 100_000_000
"""Output tokens of a log up to which each of its requests gets an acceptance of its own."""


@dataclass(frozen=True)
class Drawn:
    """Requests in order of arrival, drawn for one seed; the same for every policy.

    Attributes:
        prompt_len, output_len, trace_at: (n,) int64.
        traces: of the proposer, of several the last.
        unit_arrival_s: (n,) sorted arrival times at a mean rate of one per second; divide by the rate.
        trace: the proposer's trace that the rows were drawn from.
        recorded_k: K up to which the acceptance of every proposer is known.
        stretch: times the warm-up of theory that the run leaves out.
        think_s: (n,) pause before a request, after the end it waits for; None: none.
        follows: (n,) the request whose end it waits for, -1 none; None: none waits.
        prefix: what the requests share.
        proposers: names of the proposers.
        mixed: traces of all of them; None when there is one.
    """

    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    trace_at: NDArray[np.int64]
    unit_arrival_s: NDArray[np.float64]
    traces: Traces
    trace: ProposerTrace
    recorded_k: int
    stretch: float = 1.0
    think_s: NDArray[np.float64] | None = None
    follows: NDArray[np.int64] | None = None
    prefix: Prefix | None = None
    proposers: tuple[str, ...] = ("",)
    mixed: MixedTraces | None = None

    def take(self, n: int) -> Drawn:
        """The first ``n`` requests; drawn in a cycle, none waiting for another, when there are fewer."""
        rows = np.resize(np.arange(len(self.prompt_len)), n)
        enough = n <= len(self.prompt_len)
        return replace(
            self,
            prompt_len=self.prompt_len[rows],
            output_len=self.output_len[rows],
            trace_at=self.trace_at[rows],
            unit_arrival_s=self.unit_arrival_s[:n],
            think_s=None if self.think_s is None else self.think_s[rows],
            follows=self.follows[:n] if enough and self.follows is not None else None,
            prefix=None if self.prefix is None else rows_of(self.prefix, rows),
        )

    def load(self, rate: float | None, concurrency: int | None, *, mixed: bool = False) -> Load:
        """The requests at ``rate`` per second, or sent by ``concurrency`` clients.

        Args:
            mixed: with all proposers that there are, else with the last alone.
        """
        traces: AnyTraces = self.traces
        proposers = self.proposers[-1:]
        if mixed and self.mixed is not None:
            traces, proposers = self.mixed, self.proposers
        return Load(
            arrival_s=self.unit_arrival_s if rate is None else self.unit_arrival_s / rate,
            prompt_len=self.prompt_len,
            output_len=self.output_len,
            trace_at=self.trace_at + apart_of(traces) * (len(proposers) - 1),
            traces=traces,
            proposers=proposers,
            concurrency=concurrency if rate is None else None,
            think_s=self.think_s,
            follows=self.follows,
            prefix=self.prefix,
        )


def draw_requests(setup: Setup, n: int, seed: int, stretch: float = 1.0) -> Drawn:
    """Draw ``n`` requests: the first of the log with an acceptance for each, or the recorded rows or the
    generated pool, shuffled, turn after turn. They follow from ``seed``; ``stretch`` is told on, see
    :class:`Drawn`.
    """
    if setup.log is not None:
        return _replayed(setup, setup.log.first(min(n, len(setup.log))), seed)
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
    names = proposers_of(scenario.proposer)
    trace = proposer_trace(traces, scenario.proposer)
    prompt_len = traces.prompt_len.astype(np.int64)
    if scenario.prompt_tokens is not None:
        prompt_len = np.full(len(traces), scenario.prompt_tokens, np.int64)
    fit, output_len = setup.source.admit(prompt_len, trace.output_len)
    # shuffled anew at every turn: dealt to replicas in a fixed order, each would see the same few for ever
    turns = -(-n // len(fit))
    order = np.concatenate([stream(seed, "rows", turn).permutation(len(fit)) for turn in range(turns)])[:n]
    rows = fit[order]
    return Drawn(
        prompt_len=prompt_len[rows],
        output_len=output_len[order],
        trace_at=trace.offsets[rows],
        unit_arrival_s=_arrivals(setup, n, seed),
        traces=_flat(trace),
        trace=trace,
        recorded_k=min(traces.proposers[name].recorded_k for name in names),
        proposers=names,
        mixed=_mixed([traces.proposers[name] for name in names]),
        stretch=stretch,
        think_s=think_times(scenario.think_s, n, seed) if scenario.think_s > 0 else None,
    )


def _arrivals(setup: Setup, n: int, seed: int) -> NDArray[np.float64]:
    """(n,) arrival times at a mean rate of one."""
    scenario = setup.scenario
    if scenario.arrivals == "constant":
        return constant(1.0, n)
    if scenario.arrivals == "ramp":
        assert scenario.qps is not None
        assert scenario.ramp_to_qps is not None
        mean = (scenario.qps + scenario.ramp_to_qps) / 2
        return ramp(scenario.qps / mean, scenario.ramp_to_qps / mean, n, seed)
    return gamma(1.0, n, seed, scenario.burstiness)


def _replayed(setup: Setup, log: RequestLog, seed: int) -> Drawn:
    """The requests of a log, with acceptance from the workload's model at their own output lengths."""
    assert setup.log is not None
    assert setup.workload is not None
    lengths, row = _generated(log.output_len, seed)
    traces = setup.workload.joint(setup.scenario.proposer).generate(seed, lengths)
    trace = list(traces.values())[-1]
    return Drawn(
        prompt_len=log.prompt_len,
        output_len=log.output_len,
        trace_at=trace.offsets[row],
        unit_arrival_s=log.t_s * setup.log.mean_qps,
        traces=_flat(trace),
        trace=trace,
        recorded_k=min(one.recorded_k for one in traces.values()),
        proposers=tuple(traces),
        mixed=_mixed(list(traces.values())),
        think_s=log.think_s,
        follows=log.follows,
        prefix=log.prefix,
    )


def _generated(output_len: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Output lengths to generate, and the row of each request.

    Each has its own, but in a log so long that their acceptance would not fit in memory: there a request uses
    the beginning of one of POOL, the next longer one or one of the few after it.
    """
    n = len(output_len)
    if output_len.sum() <= MOST_POSITIONS:
        return output_len, np.arange(n)
    pool = np.quantile(output_len, np.linspace(0, 1, POOL), method="higher").astype(np.int64)
    longer = np.searchsorted(pool, output_len)
    ahead = stream(seed, "rows").integers(0, 16, n)
    return pool, np.minimum(longer + ahead, POOL - 1)


def _mixed(traces: Sequence[ProposerTrace]) -> MixedTraces | None:
    """The arrays of all proposers; None when there is one."""
    return joined(traces) if len(traces) > 1 else None


def _flat(trace: ProposerTrace) -> Traces:
    drafted = np.zeros(0, np.uint8) if trace.drafted is None else trace.drafted
    # arrays that cannot be written are another type, for which the whole engine would be compiled again
    return Traces(
        np.require(trace.acc, requirements=["C", "W"]), np.require(drafted, requirements=["C", "W"])
    )
