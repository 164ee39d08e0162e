"""The policy under test: its spec, and what its laws try of the ranges that its constructor declares."""

from __future__ import annotations

import inspect
from math import sqrt
from types import MappingProxyType
from typing import Any

from kplan.policy import Policy
from kplan.policy_args import write_args
from kplan.registry import PolicySpec, info_of, parse_policy
from kplan.space import Choice, IntRange, Range, annotated_ranges


def spec_of(policy: str | type[Policy] | PolicySpec, **kwargs: Any) -> PolicySpec:
    """The spec of a policy text, or of a class with the constructor's arguments.

    A parameter of a class that has neither a default nor an argument takes the middle of its range.

    Raises:
        InputError: a text that names no policy.
        TypeError: arguments beside a text, which holds its own.
    """
    if not isinstance(policy, type):
        if kwargs:
            raise TypeError(f"write the arguments into the text, not beside it: {', '.join(kwargs)}")
        return parse_policy(policy) if isinstance(policy, str) else policy
    ranges = annotated_ranges(policy)
    for name, parameter in inspect.signature(policy).parameters.items():
        if parameter.default is parameter.empty and name not in kwargs and name in ranges:
            kwargs[name] = probes(ranges[name])[1]
    base = f"{policy.__module__}:{policy.__qualname__}"
    return PolicySpec(write_args(base, kwargs), policy, MappingProxyType(kwargs), info_of(policy, base))


def probes(space: Range) -> tuple[Any, ...]:
    """Both ends of a range and its middle between them; every value of a choice."""
    if isinstance(space, Choice):
        return space.values
    if isinstance(space, IntRange):
        return space.low, (space.low + space.high) // 2, space.high
    middle = sqrt(space.low * space.high) if space.log else (space.low + space.high) / 2
    return space.low, middle, space.high


def holds(space: Range, value: object) -> bool:
    """Whether ``value`` lies in the range."""
    if isinstance(space, Choice):
        return value in space.values
    return isinstance(value, int | float) and space.low <= value <= space.high
