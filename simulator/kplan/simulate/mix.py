"""A server with several proposers at once: lookups beside one model drafter, all kept current."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kplan.acceptance import ProposerTrace, TraceSet
from kplan.acceptance.joint import proposers_of
from kplan.config.scenario import Scenario
from kplan.engine import ALWAYS, MixedTraces
from kplan.errors import InputError
from kplan.latency import LatencyModel, StepCost, engine_traits
from kplan.profiles import (
    Calibration,
    Drafter,
    DrafterKind,
    EngineProfile,
    Hardware,
    Model,
    load_drafter,
    lookup_proposers,
)


@dataclass(frozen=True)
class Mix:
    """What a server of several proposers has.

    Attributes:
        drafters: in the order that they are named.
        latency: with the model drafter, scheduled as the lookups allow.
        cost: the step cost, lookups included.
        kv_tokens: KV capacity of one replica, with the model drafter's share taken off.
    """

    drafters: tuple[Drafter, ...]
    latency: LatencyModel
    cost: StepCost
    kv_tokens: int


def load_drafters(scenario: Scenario, model: Model) -> tuple[Drafter, ...]:
    """The drafters of the proposers that the scenario joins with ``+``; of several, ``--drafter`` names the
    model drafter.

    Raises:
        InputError: an unknown name, one that does not fit the model, or several that no server holds at once.
    """
    names = proposers_of(scenario.proposer)
    if len(names) == 1:
        return (load_drafter(names[0], model, scenario.drafter),)
    known = lookup_proposers()
    found = tuple(load_drafter(name, model, None if name in known else scenario.drafter) for name in names)
    drafting = [one for one in found if one.kind is not DrafterKind.LOOKUP]
    if len(drafting) != 1:
        raise InputError(
            "--proposer", scenario.proposer, f"has {len(drafting)} model drafters, and one is simulated",
            "join lookups and one of the others, as in ngram+eagle3",
        )  # fmt: skip
    if drafting[0].one_k:
        raise InputError(
            "--proposer", scenario.proposer, f"{drafting[0].proposer} drafts one K for everybody",
            "join a drafter whose K may change from request to request",
        )  # fmt: skip
    return found


def model_drafter(drafters: Sequence[Drafter]) -> Drafter:
    """The one of several that is no lookup."""
    return next(one for one in drafters if one.kind is not DrafterKind.LOOKUP)


def make_mix(
    drafters: tuple[Drafter, ...],
    scenario: Scenario,
    hardware: Hardware,
    model: Model,
    engine: EngineProfile,
    calibration: Calibration,
    seats: int,
    tokens: int,
) -> Mix:
    """The server that holds all ``drafters``.

    Args:
        seats: requests that run at once; tokens: budget of a step.

    Raises:
        InfeasibleError: the weights do not fit.
    """
    drafter = model_drafter(drafters)
    traits = engine_traits(engine, drafter, seats, scenario.max_k, dynamic_table=True)
    if any(engine.method(one) in engine.sync_methods for one in drafters):
        traits = replace(traits, async_scheduling=False)
    latency = LatencyModel(hardware, model, drafter, calibration, tp=scenario.tp, traits=traits)
    return Mix(
        drafters=drafters,
        latency=latency,
        cost=_cost(latency, drafters, scenario, seats, tokens),
        kv_tokens=latency.kv_capacity_tokens(scenario.gpu_memory_utilization, tokens),
    )


def _cost(
    latency: LatencyModel, drafters: tuple[Drafter, ...], scenario: Scenario, seats: int, tokens: int
) -> StepCost:
    alone = latency.compile(tokens + seats * (scenario.max_k + 1), seats, scenario.max_k)
    return alone._replace(
        lookups=len(drafters) - 1,
        drafter_at=drafters.index(model_drafter(drafters)),
        switch_s=scenario.switch_us * 1e-6,
    )


def aligned_rows(traces: TraceSet, names: Sequence[str]) -> TraceSet:
    """The requests whose traces by all of ``names`` belong to one generation, with these proposers alone.

    Raises:
        InputError: there are none.
    """
    chosen = [traces.proposers[name] for name in names]
    whole = np.logical_and.reduce([one.aligned for one in chosen])
    whole &= np.logical_and.reduce([one.output_len == chosen[0].output_len for one in chosen])
    rows = np.flatnonzero(whole)
    if not len(rows):
        bound = "no request of the file has aligned traces of all of them"
        raise InputError("--proposer", "+".join(names), bound, "record them on one generation")
    left = len(traces) - len(rows)
    note = f"{left} of {len(traces)} requests left out: their traces are not of one generation"
    return replace(
        traces,
        request_id=traces.request_id[rows],
        prompt_len=traces.prompt_len[rows],
        proposers={name: _rows(one, rows) for name, one in zip(names, chosen, strict=True)},
        notes=(*traces.notes, note) if left else traces.notes,
        loopy=None if traces.loopy is None else traces.loopy[rows],
    )


def _rows(trace: ProposerTrace, rows: Any) -> ProposerTrace:
    """The requests ``rows`` of a trace, one behind the other."""
    lengths = np.diff(trace.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    at = np.repeat(trace.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return replace(
        trace,
        output_len=trace.output_len[rows],
        offsets=offsets,
        acc=trace.acc[at],
        drafted=None if trace.drafted is None else trace.drafted[at],
        aligned=trace.aligned[rows],
        seen=None if trace.seen is None else trace.seen[at],
    )


def joined(traces: Sequence[ProposerTrace]) -> MixedTraces:
    """The arrays of several proposers, on the same requests, one behind the other."""
    apart = len(traces[0].acc)
    always = np.full(apart, ALWAYS, np.uint8)
    drafted = [always if one.drafted is None else one.drafted for one in traces]
    return MixedTraces(np.concatenate([one.acc for one in traces]), np.concatenate(drafted), apart)
