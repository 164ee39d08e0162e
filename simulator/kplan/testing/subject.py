"""The policy under test: its spec, and the ranges that its constructor declares."""

from __future__ import annotations

import inspect
from math import sqrt
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from kplan.policy import Policy
from kplan.policy_args import write_args
from kplan.registry import PolicySpec, info_of, parse_policy
from kplan.space import Choice, FloatRange, IntRange

Range: TypeAlias = IntRange | FloatRange | Choice


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
    ranges = ranges_of(policy)
    for name, parameter in inspect.signature(policy).parameters.items():
        if parameter.default is parameter.empty and name not in kwargs and name in ranges:
            kwargs[name] = probes(ranges[name])[1]
    base = f"{policy.__module__}:{policy.__qualname__}"
    return PolicySpec(write_args(base, kwargs), policy, MappingProxyType(kwargs), info_of(policy, base))


def ranges_of(cls: type[Policy]) -> dict[str, Range]:
    """Constructor parameter -> the range of :mod:`kplan.space` that it is annotated with."""
    if "__init__" not in vars(cls) and cls.__init__ is object.__init__:
        return {}
    hints = get_type_hints(cls.__init__, include_extras=True)
    found = {}
    for name, hint in hints.items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        for note in notes:
            if isinstance(note, IntRange | FloatRange | Choice):
                found[name] = note
    return found


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
