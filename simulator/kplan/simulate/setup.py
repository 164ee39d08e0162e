"""A scenario with every name resolved: profiles loaded, prices compiled, capacities known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import TraceSet
from kplan.config.scenario import Scenario
from kplan.errors import InputError
from kplan.latency import LatencyModel, StepCost, StepShape, engine_traits
from kplan.profiles import (
    Calibration,
    Drafter,
    Dtype,
    EngineProfile,
    Hardware,
    Model,
    load_calibration,
    load_engine,
    load_hardware,
    load_model,
)
from kplan.simulate.mix import Mix, load_drafters, make_mix
from kplan.simulate.source import MeanLengths, Source, read_source
from kplan.workload import RequestLog, Workload


@dataclass(frozen=True)
class Setup:
    """A scenario with every name resolved: profiles loaded, prices compiled, capacities known.

    Attributes:
        latency, cost: with this drafter at a K that never changes.
        latency_table, cost_table: with this drafter at a K that may change from step to step.
        latency_off, cost_off: without speculation.
        kv_tokens, kv_tokens_off: KV capacity of one replica, with the drafter's share taken off and without.
        max_num_seqs, max_num_seqs_off: seats of a replica, with speculation (SGLang lowers them) and without.
        source: the requests, as far as the server admits them.
        off_step_s: (B,) seconds of a steady step without speculation at the mean context, by batch 1..B,
            where B is what seats and KV cache hold.
        drafter: of several proposers the last, with which a policy drafts that does not choose among them.
        mix: the server that holds several at once; None when there is one.
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
    source: Source
    off_step_s: NDArray[np.float64]
    mix: Mix | None = None

    @property
    def workload(self) -> Workload | None:
        """None with recorded traces."""
        return self.source.workload

    @property
    def recorded(self) -> TraceSet | None:
        """The recorded traces, None when the workload's fitted model generates them."""
        return self.source.recorded

    @property
    def log(self) -> RequestLog | None:
        """The request log that is replayed."""
        return self.source.log

    @property
    def lengths(self) -> MeanLengths:
        """What the load's requests are like on average."""
        return self.source.lengths

    @property
    def rate(self) -> float | None:
        """Requests/s that the server admits, a ramp's and a log's on average; None in a closed loop."""
        scenario = self.scenario
        if scenario.qps is None:
            return None if self.log is None else self.log.mean_qps
        offered = (scenario.qps + (scenario.ramp_to_qps or scenario.qps)) / 2
        return offered * (1 - self.source.refused)

    @property
    def stationary(self) -> bool:
        """The load is the same all the time, so that it can settle; a ramp and a log are measured whole."""
        return self.log is None and self.scenario.ramp_to_qps is None

    @property
    def ranks(self) -> int:
        """Ranks of a server that step together: vLLM's, where they share a model's experts.

        Those of a dense model are servers of their own (``run_engine_core`` of vLLM 0.32.0).
        """
        return self.scenario.dp if self.model.decoder.moe is not None else 1

    def routed(self, replicas: int) -> bool:
        """Whether requests see the state of several servers, so that ``replicas`` are run together."""
        return self.ranks > 1 or (self.scenario.router == "least-outstanding" and replicas > 1)

    @property
    def sglang(self) -> bool:
        """The engine chooses K for the step that drafts, and runs prefills on their own."""
        return self.engine.name == "sglang"


def prepare(
    scenario: Scenario, *, calibration: Calibration | None = None, engine: EngineProfile | None = None
) -> Setup:
    """Resolve every name of ``scenario``; the largest K of a tree is the nodes that it verifies.

    Args:
        calibration: instead of the one that ships for the hardware.
        engine: instead of the release that the scenario names.

    Raises:
        InputError: an unknown name, or a combination no profile covers.
        InfeasibleError: the weights do not fit.
    """
    hardware = load_hardware(scenario.hardware)
    model, drafters = served(scenario)
    drafter = drafters[-1]
    engine = _launched(engine or load_engine(scenario.engine), drafters, scenario)
    calibration = calibration or load_calibration(scenario.calibration or hardware)
    if drafter.tree is not None:
        scenario = scenario.model_copy(update={"max_k": drafter.tree.verified})
    source = read_source(scenario, model, drafter)
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
    lengths = source.lengths
    kv_tokens_off = latency_off.kv_capacity_tokens(scenario.gpu_memory_utilization, tokens)
    batches = max(2, int(min(seats_off, kv_tokens_off / lengths.context)))
    return Setup(
        scenario=scenario,
        hardware=hardware,
        model=model,
        drafter=drafter,
        engine=engine,
        **_prices(
            (latency, latency_table, latency_off),
            tokens,
            (seats, seats_off),
            scenario.max_k,
            lengths,
            batches,
        ),
        kv_tokens=latency.kv_capacity_tokens(scenario.gpu_memory_utilization, tokens),
        kv_tokens_off=kv_tokens_off,
        max_num_seqs=seats,
        max_num_seqs_off=seats_off,
        max_num_batched_tokens=tokens,
        source=source,
        mix=None
        if len(drafters) == 1
        else make_mix(drafters, scenario, hardware, model, engine, calibration, seats, tokens),
    )


def on_calibration(setup: Setup, calibration: Calibration) -> Setup:
    """The same setup at the prices of another calibration of its GPU; nothing is read or drawn again."""
    replicas = (setup.latency, setup.latency_table, setup.latency_off)
    latency, table, off = (replica.on(calibration) for replica in replicas)
    prices = _prices(
        (latency, table, off),
        setup.max_num_batched_tokens,
        (setup.max_num_seqs, setup.max_num_seqs_off),
        setup.scenario.max_k,
        setup.lengths,
        len(setup.off_step_s),
    )
    mix = setup.mix and make_mix(
        setup.mix.drafters, setup.scenario, setup.hardware, setup.model, setup.engine, calibration,
        setup.max_num_seqs, setup.max_num_batched_tokens,
    )  # fmt: skip
    return replace(setup, mix=mix, **prices)


def _prices(
    replicas: tuple[LatencyModel, LatencyModel, LatencyModel],
    tokens: int,
    seats: tuple[int, int],
    max_k: int,
    lengths: MeanLengths,
    batches: int,
) -> dict[str, Any]:
    """The priced fields of :class:`Setup`.

    Args:
        replicas: with a K that never changes, with one that may, without speculation.
        tokens: token budget of a step; seats: of a replica with speculation, and without.
        batches: largest batch of ``off_step_s``.
    """
    latency, table, off = replicas
    drafting, plain = seats
    largest = tokens + drafting * (max_k + 1)
    steady = StepShape.decode(np.arange(1, batches + 1), 0, lengths.context)
    return {
        "latency": latency,
        "latency_table": table,
        "latency_off": off,
        "cost": latency.compile(largest, drafting, max_k),
        "cost_table": table.compile(largest, drafting, max_k),
        "cost_off": off.compile(tokens + plain, plain, 0),
        "off_step_s": off.step_seconds(steady).total_s,
    }


def served(scenario: Scenario) -> tuple[Model, tuple[Drafter, ...]]:
    """The model in the formats that the scenario asks for, and its drafters, in the order of their names.

    The drafter's KV cache lies in the target's and has its format; its weights keep their own (an MTP layer's
    are the target's).

    Raises:
        InputError: an unknown name, or a drafter that does not fit the model.
    """
    weights = None if scenario.quantization is None else Dtype(scenario.quantization)
    kv = None if scenario.kv_cache_dtype == "auto" else Dtype(scenario.kv_cache_dtype)
    model = load_model(scenario.model).stored(weights, kv)
    drafters = load_drafters(scenario, model)
    return model, drafters if kv is None else tuple(replace(one, kv_dtype=kv) for one in drafters)


def _launched(engine: EngineProfile, drafters: Sequence[Drafter], scenario: Scenario) -> EngineProfile:
    """The engine with async scheduling and graphs as asked.

    Raises:
        InputError: async scheduling that its method rules out, or data-parallel ranks that it does not have.
    """
    if scenario.dp > 1 and engine.name == "sglang":
        raise InputError(
            "--dp", scenario.dp,
            "sglang has no such ranks: its data-parallel attention is another layout, not simulated, and "
            "switches its adaptive steps off; its dp-size starts whole servers",
            "use --replicas for these",
        )  # fmt: skip
    wanted = scenario.async_scheduling
    if wanted and any(engine.method(one) in engine.sync_methods for one in drafters):
        raise InputError(
            "--async-scheduling", "on", f"{engine.name} schedules synchronously with {scenario.proposer}",
            "leave it out",
        )  # fmt: skip
    if wanted is not None:
        engine = replace(engine, async_scheduling=wanted)
    return engine.eager() if scenario.enforce_eager else engine


def with_load(setup: Setup, **changes: object) -> Setup:
    """The same setup under another load (``requests``, ``concurrency``, ...); clients replay no log."""
    source = setup.source
    if changes.get("concurrency") is not None:
        alone = {"qps": None, "arrivals": "poisson", "burstiness": 1.0, "ramp_to_qps": None, "replay": None}
        changes, source = alone | changes, replace(source, log=None)
    return replace(setup, scenario=setup.scenario.model_copy(update=changes), source=source)


def at_rate(setup: Setup, rate: float) -> Setup:
    """The same open load at another ``rate`` (see Setup.rate)."""
    scenario = setup.scenario
    if scenario.qps is None or scenario.ramp_to_qps is None:
        return with_load(setup, qps=rate / (1 - setup.source.refused))
    assert setup.rate is not None
    times = rate / setup.rate
    return with_load(setup, qps=scenario.qps * times, ramp_to_qps=scenario.ramp_to_qps * times)
