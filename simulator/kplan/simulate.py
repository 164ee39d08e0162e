"""The one place that puts a scenario together and runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import MAX_K, ProposerTrace, TraceSet, load_traces
from kplan.config.scenario import Scenario
from kplan.engine import Limits, Load, Traces, serve
from kplan.engine.server import split_round_robin
from kplan.errors import InputError
from kplan.latency import LatencyModel, StepCost, StepShape, engine_traits
from kplan.metrics import Measured, measure
from kplan.profiles import (
    Drafter,
    EngineProfile,
    Hardware,
    Model,
    load_calibration,
    load_drafter,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.registry import PolicySpec
from kplan.rng import stream
from kplan.workload import Workload, load_workload, poisson

POOL = 4096
"""Distinct requests generated from a fitted model; longer runs draw from them again."""
SETTLE_SHARE = 0.95
"""A load has settled when requests that carry this share of the output tokens could have come and gone."""
MEASURED_S = 20.0
"""Seconds of an open load that are measured by default."""
TIME_CONSTANTS = 3.0
MOST_SLOPE = 0.75
LONGEST_S = 120.0
"""How long a load may take to settle: time constants waited, and bounds for loads close to saturation."""
MOST_WARM, LEAST_END = 0.7, 0.8
"""With few requests the window starts no later, and ends no earlier, than these shares of them."""
ALWAYS = 255
"""``Traces.drafted`` where the proposer always has as many drafts as asked."""


@dataclass(frozen=True)
class MeanLengths:
    """Tokens: mean output, output below which SETTLE_SHARE of all tokens lie, mean context of a token."""

    output: float
    longest_output: float
    context: float


class Settling(NamedTuple):
    """Seconds until an open load is steady, and until the last measured requests are done."""

    settle_s: float
    drain_s: float


@dataclass(frozen=True)
class Setup:
    """A scenario with every name resolved: profiles loaded, prices compiled, capacities known.

    Attributes:
        latency, cost: with this drafter at a K that never changes.
        latency_table, cost_table: with this drafter at a K that may change from step to step.
        latency_off, cost_off: without speculation.
        kv_tokens, kv_tokens_off: KV capacity of one replica, with the drafter's share taken off and without.
        max_num_seqs, max_num_seqs_off: seats of a replica, with speculation (SGLang lowers them) and without.
        recorded: the recorded traces, None when the workload's fitted model generates them.
        lengths: what the load's requests are like on average.
    """

    scenario: Scenario
    hardware: Hardware
    model: Model
    drafter: Drafter
    engine: EngineProfile
    latency: LatencyModel
    latency_table: LatencyModel
    latency_off: LatencyModel
    cost: StepCost
    cost_table: StepCost
    cost_off: StepCost
    kv_tokens: int
    kv_tokens_off: int
    max_num_seqs: int
    max_num_seqs_off: int
    max_num_batched_tokens: int
    workload: Workload | None
    recorded: TraceSet | None
    lengths: MeanLengths

    @property
    def sglang(self) -> bool:
        """The engine chooses K for the step that drafts, and runs prefills on their own."""
        return self.engine.name == "sglang"


def prepare(scenario: Scenario) -> Setup:
    """Resolve every name of ``scenario``.

    Raises:
        InputError: an unknown name, or a combination no profile covers.
        InfeasibleError: the weights do not fit.
    """
    hardware = load_hardware(scenario.hardware)
    model = load_model(scenario.model)
    drafter = load_drafter(scenario.proposer, model)
    engine = load_engine(scenario.engine)
    calibration = load_calibration(hardware.name)
    default_tokens, default_seats = engine.limits(hardware, drafting=True)
    seats = scenario.max_num_seqs or default_seats
    tokens = scenario.max_num_batched_tokens or default_tokens
    _, default_seats_off = engine.limits(hardware, drafting=False)
    seats_off = scenario.max_num_seqs or default_seats_off
    traits = engine_traits(engine, drafter, seats, scenario.max_k)
    latency = LatencyModel(hardware, model, drafter, calibration, tp=scenario.tp, traits=traits)
    traits_table = engine_traits(engine, drafter, seats, scenario.max_k, dynamic_table=True)
    latency_table = LatencyModel(hardware, model, drafter, calibration, tp=scenario.tp, traits=traits_table)
    traits_off = engine_traits(engine, None, seats_off, 0)
    latency_off = LatencyModel(hardware, model, None, calibration, tp=scenario.tp, traits=traits_off)
    recorded = load_traces(scenario.traces) if scenario.traces else None
    if recorded is not None:
        _proposer(recorded, scenario.proposer)
        if scenario.output_tokens is not None:
            raise InputError(
                "--output-tokens", scenario.output_tokens, "recorded traces have their own output lengths",
                "leave it out, or leave out --traces",
            )  # fmt: skip
    largest = tokens + seats * (scenario.max_k + 1)
    workload = None if recorded is not None else load_workload(scenario.workload)
    prompt_len, output_len = _lengths(scenario, recorded, workload)
    return Setup(
        scenario=scenario,
        hardware=hardware,
        model=model,
        drafter=drafter,
        engine=engine,
        latency=latency,
        latency_table=latency_table,
        latency_off=latency_off,
        cost_table=latency_table.compile(largest, seats, scenario.max_k),
        cost=latency.compile(largest, seats, scenario.max_k),
        cost_off=latency_off.compile(tokens + seats_off, seats_off, 0),
        kv_tokens=latency.kv_capacity_tokens(scenario.gpu_memory_utilization, tokens),
        kv_tokens_off=latency_off.kv_capacity_tokens(scenario.gpu_memory_utilization, tokens),
        max_num_seqs=seats,
        max_num_seqs_off=seats_off,
        max_num_batched_tokens=tokens,
        workload=workload,
        recorded=recorded,
        lengths=_mean_lengths(prompt_len, output_len),
    )


def _lengths(
    scenario: Scenario, recorded: TraceSet | None, workload: Workload | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Prompt and output lengths that stand for the load."""
    if recorded is not None:
        prompt, output = recorded.prompt_len, _proposer(recorded, scenario.proposer).output_len
    else:
        assert workload is not None
        prompt, output = workload.sample_lengths(scenario.seed, POOL)
    if scenario.prompt_tokens is not None:
        prompt = np.full_like(prompt, scenario.prompt_tokens)
    if scenario.output_tokens is not None:
        output = np.full_like(output, scenario.output_tokens)
    return prompt, output


def _mean_lengths(prompt_len: NDArray[np.int32], output_len: NDArray[np.int32]) -> MeanLengths:
    out = output_len.astype(np.float64)
    ordered = np.sort(out)
    longest = ordered[np.searchsorted(np.cumsum(ordered), SETTLE_SHARE * ordered.sum())]
    context = float((out * (prompt_len + out / 2)).sum() / out.sum())
    return MeanLengths(float(out.mean()), float(longest), context)


def settling(setup: Setup, rate: float) -> Settling:
    """How long an open load of ``rate`` requests/s on one replica takes to settle, and to drain.

    Without speculation, the slowest policy that keeps up, the batch balances where batch = rate x output x
    step(batch) (Little's law). A disturbance decays with the time constant residence / (1 - slope), where
    slope = rate x output x d step / d batch: the closer to saturation, the slower.
    """
    lengths = setup.lengths
    work = rate * lengths.output
    most = min(setup.max_num_seqs_off, setup.kv_tokens_off / lengths.context)
    batches = np.arange(1, max(2, int(most)) + 1)
    step_s = setup.latency_off.step_seconds(StepShape.decode(batches, 0, lengths.context)).total_s
    keeps_up = np.flatnonzero(work * step_s <= batches)
    at = int(keeps_up[0]) if len(keeps_up) else len(batches) - 1
    near = slice(max(at - 8, 0), at + 9)
    slope = work * float(np.polyfit(batches[near], step_s[near], 1)[0])
    slowing = 1 / (1 - min(max(slope, 0.0), MOST_SLOPE))
    drain_s = lengths.longest_output * float(step_s[at])
    settle_s = max(drain_s, TIME_CONSTANTS * lengths.output * float(step_s[at]) * slowing)
    return Settling(min(settle_s, LONGEST_S), min(drain_s, LONGEST_S))


def _proposer(traces: TraceSet, name: str) -> ProposerTrace:
    if name not in traces.proposers:
        have = ", ".join(sorted(traces.proposers))
        raise InputError("--proposer", name, "is not in the trace file", f"it has: {have}")
    return traces.proposers[name]


@dataclass(frozen=True)
class Drawn:
    """Requests in order of arrival, drawn for one seed; the same for every policy.

    Attributes:
        prompt_len, output_len, trace_at: (n,) int64.
        unit_arrival_s: (n,) sorted arrival times at a rate of one per second; divide by the rate.
        trace: the proposer's trace that the rows were drawn from.
    """

    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    trace_at: NDArray[np.int64]
    unit_arrival_s: NDArray[np.float64]
    traces: Traces
    trace: ProposerTrace

    def take(self, n: int) -> Drawn:
        """The first ``n`` requests, drawn in a cycle when there are fewer."""
        rows = np.resize(np.arange(len(self.prompt_len)), n)
        return replace(
            self,
            prompt_len=self.prompt_len[rows],
            output_len=self.output_len[rows],
            trace_at=self.trace_at[rows],
        )


def draw_requests(setup: Setup, n: int, seed: int) -> Drawn:
    """Draw ``n`` requests: recorded rows in a shuffled cycle, or generated ones."""
    scenario = setup.scenario
    if setup.recorded is not None:
        traces = setup.recorded
        order = stream(seed, "rows").permutation(len(traces))
    else:
        assert setup.workload is not None
        traces = setup.workload.traces(
            seed,
            min(n, POOL),
            scenario.proposer,
            prompt_tokens=scenario.prompt_tokens,
            output_tokens=scenario.output_tokens,
        )
        order = np.arange(len(traces))
    trace = _proposer(traces, scenario.proposer)
    rows = np.resize(order, n)
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
    )


def default_requests(setup: Setup, replicas: int = 1) -> int:
    """Requests of one replication when the scenario does not say.

    Open loop: enough to settle, to be measured for MEASURED_S, and to keep the load up while the last
    measured ones finish. Closed loop: ten per client.
    """
    scenario = setup.scenario
    if scenario.requests is not None:
        return scenario.requests
    if scenario.qps is not None:
        seconds = sum(settling(setup, scenario.qps / replicas)) + MEASURED_S
        return int(np.clip(scenario.qps * seconds, 400, 50_000))
    assert scenario.concurrency is not None
    return int(np.clip(scenario.concurrency * 10, 100, 20_000))


def run_policy(
    setup: Setup,
    spec: PolicySpec,
    drawn: Drawn,
    *,
    qps: float | None = None,
    replicas: int = 1,
    compiled: bool = True,
) -> Measured:
    """Simulate one replication of one policy on the requests ``drawn``.

    Args:
        qps: overrides the scenario's rate (over all replicas); infinity puts every request there at t = 0.
        compiled: False forces the one-call-per-step path.
    """
    scenario = setup.scenario
    rate = qps if qps is not None else scenario.qps
    load = Load(
        arrival_s=drawn.unit_arrival_s / rate if rate is not None else drawn.unit_arrival_s,
        prompt_len=drawn.prompt_len,
        output_len=drawn.output_len,
        trace_at=drawn.trace_at,
        traces=drawn.traces,
        concurrency=scenario.concurrency if rate is None else None,
    )
    off = is_off(spec)
    loads = split_round_robin(load, replicas)
    overload = rate is not None and np.isinf(rate)
    limits = [limits_of(setup, part, off=off, overload=overload) for part in loads]
    fleet = serve(
        loads,
        limits,
        cost_of(setup, spec),
        spec.build,
        observe_lag=observe_lag(setup),
        compiled=compiled,
    )
    return measure(fleet)


def cost_of(setup: Setup, spec: PolicySpec) -> StepCost:
    """The step cost that applies under this policy."""
    if is_off(spec):
        return setup.cost_off
    return setup.cost if spec.text.startswith("fixed:") else setup.cost_table


def observe_lag(setup: Setup) -> int:
    """Steps by which the result of a step trails the choice of K: one when the next is launched before it."""
    return 1 if setup.sglang or setup.latency.traits.async_scheduling else 0


def is_off(spec: PolicySpec) -> bool:
    """Speculation is not even configured: no drafter, no overhead, the whole KV cache."""
    return spec.text == "off"


def limits_of(setup: Setup, load: Load, *, off: bool, overload: bool = False) -> Limits:
    """The engine's bounds for one replica that serves ``load``, with the window that is measured."""
    seats = setup.max_num_seqs_off if off else setup.max_num_seqs
    n, clients = len(load), load.concurrency
    if overload:
        first = min(n // 2, max(n - seats, 0))
        last = n - seats // 2
    elif clients is not None:
        first = min(2 * clients, max(n - clients - 1, 0))
        last = n - clients
    else:
        at = load.arrival_s
        wait = settling(setup, n / at[-1])
        first = min(int(np.searchsorted(at, wait.settle_s)), int(n * MOST_WARM))
        last = max(int(np.searchsorted(at, at[-1] - wait.drain_s)), int(n * LEAST_END))
    last = min(max(first + 1, last), n)
    block = setup.engine.block_size
    return Limits(
        max_num_seqs=seats,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        block_tokens=block,
        total_blocks=(setup.kv_tokens_off if off else setup.kv_tokens) // block,
        max_k=0 if off else min(setup.scenario.max_k, MAX_K),
        k_now=setup.sglang,
        prefill_first=setup.sglang,
        closed=clients is not None,
        window_from=first,
        window_to=last,
    )


def sustained_qps(setup: Setup, spec: PolicySpec, drawn: Drawn) -> float:
    """Requests per second that one replica serves when its queue never empties.

    All requests wait at t = 0. The token rate is taken once the batch turns over and divided by the mean
    output: the rate of requests itself would need every long one to come and go.
    """
    overload = drawn.take(3 * max(setup.max_num_seqs, setup.max_num_seqs_off))
    overload = replace(overload, unit_arrival_s=np.zeros(len(overload.prompt_len)))
    run = run_policy(setup, spec, overload, qps=np.inf)
    return run.output_tok_s / float(drawn.output_len.mean())


def with_load(setup: Setup, **changes: object) -> Setup:
    """The same setup under another load (``qps``, ``concurrency``, ``requests``, ...)."""
    return replace(setup, scenario=setup.scenario.model_copy(update=changes))
