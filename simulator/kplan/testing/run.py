"""A policy inside the engine for a short while: in every form that it has, and how fast."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import numpy as np

from kplan.engine import Limits, Load, Replica, Traces, runs_compiled
from kplan.latency import LatencyModel, StepCost, engine_traits
from kplan.policy import Policy
from kplan.profiles import load_calibration, load_drafter, load_engine, load_hardware, load_model
from kplan.registry import PolicySpec

_MAX_K, _SEATS = 7, 64


def served(policy: Policy, requests: int, clients: int, *, compiled: bool = True, lag: int = 0) -> Replica:
    """The replica after ``policy`` has served a closed loop of short requests on it.

    Args:
        compiled: False calls the policy at every step, whatever form it has.
        lag: steps by which ``observe`` trails the engine.

    Raises:
        InputError: the engine refuses the policy.
    """
    replica = _replica(policy, requests, clients, compiled=compiled, lag=lag)
    replica.advance()
    return replica


def steps_per_s(spec: PolicySpec) -> float | None:
    """Engine steps per second of wall time at batch 64, in the policy's fastest form.

    A figure of this machine at this moment, with the engine's own work in it; None of a policy that combines
    proposers, for this server has one.
    """
    if spec.info.combines:
        return None
    requests = 1000 if runs_compiled(spec.build()) else 200
    served(spec.build(), requests, _SEATS)  # compiles
    replica = _replica(spec.build(), requests, _SEATS)
    started = perf_counter()
    replica.advance()
    return float(replica.machine.batch_steps.sum() / (perf_counter() - started))


def _replica(policy: Policy, requests: int, clients: int, *, compiled: bool = True, lag: int = 0) -> Replica:
    load = _load(requests, clients)
    limits = Limits(
        max_num_seqs=_SEATS, max_num_batched_tokens=2048, block_tokens=16, total_blocks=20_000, max_k=_MAX_K,
        k_now=False, prefill_first=False, closed=True, window_from=0, window_to=requests,
    )  # fmt: skip
    return Replica(load, limits, _price(), policy, observe_lag=lag, compiled=compiled)


def _load(requests: int, clients: int) -> Load:
    rng = np.random.default_rng(requests)
    output_len = rng.integers(20, 120, requests)
    starts = np.concatenate([[0], np.cumsum(output_len)[:-1]]).astype(np.int64)
    emits = np.minimum(rng.geometric(0.35, int(output_len.sum())), 21).astype(np.uint8)
    emits[starts] = 1
    return Load(
        arrival_s=np.zeros(requests),
        prompt_len=rng.integers(1, 300, requests),
        output_len=output_len,
        trace_at=starts,
        traces=Traces(emits, np.full(len(emits), 255, np.uint8)),
        concurrency=clients,
    )


@cache
def _price() -> StepCost:
    hardware, model = load_hardware("h100-sxm"), load_model("llama-3.1-8b")
    drafter = load_drafter("eagle", model)
    traits = engine_traits(load_engine("vllm"), drafter, _SEATS, _MAX_K)
    latency = LatencyModel(hardware, model, drafter, load_calibration(hardware.name), tp=1, traits=traits)
    return latency.compile(4096, _SEATS, _MAX_K)
