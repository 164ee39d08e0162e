"""Policy families: a class and the ranges of its parameters, as an Optuna search space."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna

from kplan.errors import InputError
from kplan.policy_args import write_args
from kplan.registry import PolicySpec, info_of, parse_policy, policy_class, told
from kplan.space import (
    Choice,
    FloatRange,
    IntRange,
    Limits,
    Range,
    Searchable,
    SearchSpace,
    Value,
    annotated_ranges,
)

FAMILY = "family"
"""Name of the parameter that chooses among several families."""


@dataclass(frozen=True)
class Family:
    """A policy class with its ranges; ``base`` is the text that names it."""

    base: str
    cls: type[Any]
    space: SearchSpace

    @property
    def combines(self) -> bool:
        """Whether its policies choose among several proposers."""
        return info_of(self.cls, self.base).combines

    def spec(self, params: Mapping[str, Value]) -> PolicySpec:
        """The policy of one value for every parameter.

        Raises:
            InputError: the class refuses the values.
        """
        try:
            kwargs = self.cls.from_params(params) if issubclass(self.cls, Searchable) else params
        except (Exception, SystemExit) as error:  # a user's class may raise anything, or exit
            raise InputError("from_params", str(params), told(error)) from error
        return parse_policy(write_args(self.base, kwargs))


def read_family(text: str, limits: Limits) -> Family:
    """The family that ``text`` names: a registered policy, ``module:Class`` or ``file.py:Class``.

    Raises:
        InputError: no such policy, one without a range to search, or with one that is none.
    """
    base, cls = policy_class(text)
    try:
        space = cls.search_space(limits) if issubclass(cls, Searchable) else _annotated(cls)
        for name, one in space.ranges.items():
            _check(text, name, one, space.first)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a user's class may raise anything, or exit
        raise InputError("--family", text, f"its ranges cannot be read: {told(error)}") from error
    if not space.ranges:
        raise InputError(
            "--family", text, "declares no range to search",
            "annotate its constructor: k: Annotated[int, IntRange(0, 7)] = 3 (kplan.space)",
        )  # fmt: skip
    return Family(base, cls, space)


def _check(text: str, name: str, one: Range, first: Mapping[str, Value]) -> None:
    """Refuse a range without a value, and a first value that is not in its range."""
    match one:
        case Choice(values):
            sound, inside = bool(values), first.get(name) in values
        case IntRange(low, high) | FloatRange(low, high):
            logarithm = isinstance(one, FloatRange) and one.log
            sound = (
                math.isfinite(low) and math.isfinite(high) and low <= high and not (logarithm and low <= 0)
            )
            inside = sound and low <= float(first.get(name, low)) <= high
    if not sound:
        raise InputError("--family", text, f"{name}: {one} holds no value", "IntRange(0, 7) does")
    if name in first and not inside:
        raise InputError("--family", text, f"{name} = {first[name]!r} is tried first, and not in {one}")


def _annotated(cls: type[Any]) -> SearchSpace:
    """The ranges in the annotations of a constructor, and its defaults."""
    ranges = annotated_ranges(cls)
    parameters = inspect.signature(cls).parameters
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in ranges
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if missing:
        raise InputError("--family", cls.__name__, f"{missing[0]} has neither a range nor a default")
    defaults = {name: parameters[name].default for name in ranges}
    first = {
        name: value
        for name, value in defaults.items()
        if value is not inspect.Parameter.empty and value is not None
    }
    return SearchSpace(ranges, first)


@dataclass(frozen=True)
class Space:
    """Several families as one search space: which one, then its own parameters."""

    families: Sequence[Family]

    def first(self) -> list[dict[str, Value]]:
        """The parameters that are tried first: one set for each family, then what each one asks for."""
        first = [self._named(family, family.space.first) for family in self.families]
        return first + [self._named(family, one) for family in self.families for one in family.space.then]

    def spec(self, trial: optuna.Trial, before: Callable[[str], None] = lambda _: None) -> PolicySpec:
        """Let the study choose a policy.

        Args:
            before: called with the name of every parameter that is about to be chosen.

        Raises:
            InputError: its class refuses the values.
        """
        family = self.families[0]
        if len(self.families) > 1:
            before(FAMILY)
            names = [one.base for one in self.families]
            family = self.families[names.index(trial.suggest_categorical(FAMILY, names))]
        params = {}
        for name, one in family.space.ranges.items():
            before(self._prefix(family) + name)
            params[name] = _suggest(trial, self._prefix(family) + name, one)
        return family.spec(params)

    def _named(self, family: Family, params: Mapping[str, Value]) -> dict[str, Value]:
        chosen: dict[str, Value] = {FAMILY: family.base} if len(self.families) > 1 else {}
        return chosen | {self._prefix(family) + name: value for name, value in params.items()}

    def _prefix(self, family: Family) -> str:
        return f"{family.base}." if len(self.families) > 1 else ""


def _suggest(trial: optuna.Trial, name: str, one: Range) -> Value:
    match one:
        case IntRange(low, high):
            return trial.suggest_int(name, low, high)
        case FloatRange(low, high, log):
            return trial.suggest_float(name, low, high, log=log)
        case Choice(values):
            chosen = trial.suggest_categorical(name, values)
            assert chosen is not None
            return chosen
