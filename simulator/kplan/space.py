"""Search ranges: policies declare them, the search turns them into distributions.

A constructor's annotations are enough where the ranges do not depend on the load:

    def __init__(self, k: Annotated[int, IntRange(0, 7)] = 3) -> None: ...

The defaults are then tried first. A class whose ranges do depend on it (a table has one K per tier of batch
sizes) says so in two class methods, see :class:`Searchable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Protocol,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)


@dataclass(frozen=True)
class IntRange:
    """Integers low..high, both included."""

    low: int
    high: int


@dataclass(frozen=True)
class FloatRange:
    """Reals low..high; ``log`` searches them on a logarithmic scale."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[str | int | float | bool, ...]


Range: TypeAlias = IntRange | FloatRange | Choice
Value: TypeAlias = str | int | float | bool


Tiers: TypeAlias = tuple[tuple[int, int], ...]
"""((first batch size, K), ...), ascending from 1."""


@dataclass(frozen=True)
class Limits:
    """What a search knows before its first trial.

    Attributes:
        max_k: largest K.
        max_batch: seats of a replica.
        reach: largest batch that the loads can form: the clients of a closed loop, or ``max_batch``. What a
            policy does above it makes no difference to a trial.
        greedy: the best K of steady steps by batch size, which the latency model gives without a simulation.
        by_context: ((first context, its ``greedy``), ...), ascending from 0, tokens: the same for tiers of
            the mean context of the batch.
    """

    max_k: int
    max_batch: int
    reach: int
    greedy: Tiers
    by_context: tuple[tuple[int, Tiers], ...]


@dataclass(frozen=True)
class SearchSpace:
    """Ranges by parameter, the values that are tried first, and those that are tried ``then``."""

    ranges: Mapping[str, Range]
    first: Mapping[str, Value]
    then: tuple[Mapping[str, Value], ...] = ()


@runtime_checkable
class Searchable(Protocol):
    """A policy class whose search space depends on the load."""

    @classmethod
    def search_space(cls, limits: Limits) -> SearchSpace:
        """The parameters of a search within ``limits``."""
        ...

    @classmethod
    def from_params(cls, params: Mapping[str, Value]) -> dict[str, Any]:
        """Constructor arguments out of one value for every parameter of :meth:`search_space`."""
        ...


def tier_range(start: int, k: int, limits: Limits) -> IntRange:
    """The K of a tier of batch sizes from ``start`` on: any, or ``k`` alone where no trial would tell."""
    return IntRange(0, limits.max_k) if start <= limits.reach else IntRange(k, k)


def annotated_ranges(cls: type[Any]) -> dict[str, Range]:
    """Constructor parameter -> the range that it is annotated with, the first of several."""
    if cls.__init__ is object.__init__:
        return {}
    found: dict[str, Range] = {}
    for name, hint in get_type_hints(cls.__init__, include_extras=True).items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        ranges = [note for note in notes if isinstance(note, IntRange | FloatRange | Choice)]
        found.update((name, one) for one in ranges[:1])
    return found
