"""The server that a policy runs on: which drafters it holds, what its steps cost, what it has room for."""

from __future__ import annotations

from kplan.errors import InputError
from kplan.latency import StepCost
from kplan.registry import PolicySpec
from kplan.simulate.mix import Mix
from kplan.simulate.setup import Setup


def is_off(spec: PolicySpec) -> bool:
    """Speculation is not even configured: no drafter, no overhead, the whole KV cache."""
    return spec.name == "off"


def mix_of(setup: Setup, spec: PolicySpec) -> Mix:
    """The several proposers that a policy chooses among. Raises InputError when there is one."""
    if setup.mix is None:
        raise InputError(
            "policy", spec.text, f"chooses among proposers, and {setup.scenario.proposer} is one",
            "join several: --proposer ngram+eagle3",
        )  # fmt: skip
    return setup.mix


def cost_of(setup: Setup, spec: PolicySpec) -> StepCost:
    """The step cost that applies under this policy."""
    if is_off(spec):
        return setup.cost_off
    if spec.info.combines:
        return mix_of(setup, spec).cost
    return setup.cost if spec.name == "fixed" else setup.cost_table


def kv_tokens_of(setup: Setup, spec: PolicySpec) -> int:
    """KV capacity of one replica under this policy."""
    if is_off(spec):
        return setup.kv_tokens_off
    return mix_of(setup, spec).kv_tokens if spec.info.combines else setup.kv_tokens


def overlaps(setup: Setup, spec: PolicySpec) -> bool:
    """Whether the next step is launched before the results of this one are there."""
    latency = setup.latency_off if is_off(spec) else setup.latency
    if spec.info.combines:
        latency = mix_of(setup, spec).latency
    return latency.traits.async_scheduling


def observe_lag(setup: Setup, spec: PolicySpec) -> int:
    """Steps by which the result of a step trails the choice of K: one when the next is launched before it."""
    return int(overlaps(setup, spec))
