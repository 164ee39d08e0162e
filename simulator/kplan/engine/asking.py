"""Asking a policy: what it is shown, what it may answer, and whether it has to be asked at all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import NamedTuple

import numpy as np

from kplan.engine.automaton import price_by_k
from kplan.engine.kernel import seat
from kplan.engine.price import price_mixes, steady_step_s
from kplan.engine.state import F64, I64
from kplan.errors import InputError, KplanError
from kplan.latency.compiled import LOOKUP_DRAFTER, StepCost
from kplan.policy import CompiledPolicy, Policy, PolicyInfo, Rule, TablePolicy

UNCUT = 2**62
"""More than any answer."""


@dataclass(frozen=True)
class BatchCost:
    """Prices a steady decode step of one batch; implements ``StepCostView``."""

    cost: StepCost
    batch: int
    kv_tokens: int

    def seconds(self, k: int) -> float:
        """Seconds of a decode step of this batch that verifies and proposes ``k`` drafts per request."""
        return self.seconds_at(self.batch * (k + 1), k)

    def seconds_by_k(self, max_k: int) -> F64:
        """(max_k + 1,) what :meth:`seconds` says of K = 0..max_k, in one call."""
        prices = np.empty(max_k + 1)
        price_by_k(self.cost, self.batch, self.kv_tokens, prices)
        return prices

    def seconds_at(self, tokens: int, depth: int) -> float:
        """Seconds of a decode step that verifies ``tokens`` in all and drafts ``depth`` deep."""
        return float(steady_step_s(self.cost, self.batch, self.kv_tokens, tokens, depth))

    def seconds_of_mixes(self, tokens: I64, depth: I64, drafting: I64) -> F64:
        """(n,) seconds of decode steps that verify ``tokens`` in all, where the model drafter drafts
        ``depth`` deep for ``drafting`` of the requests."""
        prices = np.empty(len(tokens))
        price_mixes(self.cost, self.batch, self.kv_tokens, tokens, depth, drafting, prices)
        return prices


class Decision(NamedTuple):
    """A policy's choice for one step: ``k`` for all, or ``Replica.k_each`` with ``k`` the deepest.

    Attributes:
        rows, request, proposer: of those that decode in it; the proposer had drafted what is verified.
        teaches: the policy observes the step.
    """

    k: int
    each: bool
    batch: int
    rows: I64
    request: I64
    proposer: I64
    teaches: bool


class Form(Enum):
    """How a policy is run."""

    TABLE = "by its table, compiled"
    ORACLE = "as the compiled oracle"
    RULE = "by its compiled rule"
    PYTHON = "asked at every step"


def form_of(policy: Policy) -> Form:
    """The fastest form that says what ``policy`` does.

    A class that inherits a form but overrides what it stands for is asked at every step.
    """
    if combines(policy):
        return Form.PYTHON
    if isinstance(policy, TablePolicy) and _rules(type(policy), "table", "choose_k"):
        return Form.TABLE
    if sees_future(policy) and getattr(policy, "compiled_oracle", False):
        return Form.ORACLE
    if isinstance(policy, CompiledPolicy) and _rules(type(policy), "compiled", "choose_k", "observe"):
        return Form.RULE
    return Form.PYTHON


def sees_future(policy: Policy) -> bool:
    """Whether it says that it looks at future acceptance."""
    info = getattr(policy, "info", None)
    return isinstance(info, PolicyInfo) and info.needs_future


def combines(policy: Policy) -> bool:
    """Whether it says that it chooses the proposer too."""
    info = getattr(policy, "info", None)
    return isinstance(info, PolicyInfo) and info.combines


def lookups_of(cost: StepCost, proposers: int) -> tuple[bool, ...]:
    """Which of a server's proposers look up their drafts: of several, all but the model drafter."""
    if proposers == 1:
        return (cost.drafter == LOOKUP_DRAFTER,)
    return tuple(at != cost.drafter_at for at in range(proposers))


def runs_compiled(policy: Policy) -> bool:
    """Whether it runs whole stretches without Python."""
    return form_of(policy) is not Form.PYTHON


class blame:  # noqa: N801 - used as a statement; a generator would take 3 us a step
    """Whatever a policy raises (or exits with) is a fault of the policy, told in one line."""

    __slots__ = ("_doing", "_policy")

    def __init__(self, policy: object, doing: str) -> None:
        self._policy, self._doing = policy, doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, KplanError):
            name = type(self._policy).__name__
            told = f"{type(error).__name__}: {error}"
            what = f"policy {name}: {self._doing}"
            raise InputError(what, told, "it must not raise", "mend the policy") from error


def _rules(cls: type, form: str, *methods: str) -> bool:
    """Whether ``form`` is the rule of this class, not inherited beside an override of one of ``methods``."""
    names = next(vars(base).keys() for base in cls.__mro__ if {form, *methods} & vars(base).keys())
    return form in names


def table_of(policy: TablePolicy, max_batch: int) -> I64:
    """(max_batch + 1,) K >= 0 by batch size: the policy's table, checked, for compiled code does not.

    Raises:
        InputError: it raises, or is no such table.
    """
    name = f"policy {type(policy).__name__}: table"
    with blame(policy, "table"):
        table = np.asarray(policy.table(max_batch))
    if table.shape != (max_batch + 1,) or not np.issubdtype(table.dtype, np.integer):
        bound = f"must be an integer array of shape ({max_batch + 1},), one K per batch size and entry 0"
        raise InputError(name, f"an array of shape {table.shape}, {table.dtype}", bound, "mend its return")
    lowest = int(table[1:].min())
    if lowest < 0:
        raise InputError(name, lowest, "K must be 0 or more", "mend its return")
    return table.astype(np.int64)


def rule_of(policy: CompiledPolicy) -> Rule:
    """The policy's rule. Raises InputError when there is none."""
    with blame(policy, "compiled"):
        rule: object = policy.compiled()
    if not isinstance(rule, Rule):
        what = f"policy {type(policy).__name__}: compiled"
        raise InputError(what, type(rule).__name__, "must return a kplan.policy.Rule", "mend its return")
    return rule


def parted(chosen: object, proposers: tuple[str, ...], policy: Policy) -> tuple[object, object]:
    """What a policy that combines answered, as (proposer, K), a name replaced by its index.

    Raises:
        InputError: it is no such pair, or no proposer is called so.
    """
    name = f"policy {type(policy).__name__}: choose_k"
    if not isinstance(chosen, tuple) or len(chosen) != 2:
        bound = "must be (proposer, K), for the policy says that it combines"
        raise InputError(name, repr(chosen), bound, "mend its return")
    proposer, k = chosen
    if not isinstance(proposer, str):
        return proposer, k
    if proposer not in proposers:
        known = f"the proposers are {', '.join(proposers)}"
        raise InputError(name, proposer, known, "name one of them, or its index")
    return proposers.index(proposer), k


def seat_proposer(chosen: object, proposers: tuple[str, ...], rows: I64, to: I64, policy: Policy) -> None:
    """Put the chosen proposer of each request of the batch at its row of ``to``.

    Raises:
        InputError: as :func:`seated` does, or there are not so many.
    """
    highest, each = seated(chosen, rows, UNCUT, to, policy, "proposer")
    if highest >= len(proposers):
        known = f"the proposers are {', '.join(proposers)}, from index 0"
        name = f"policy {type(policy).__name__}: choose_k"
        raise InputError(name, highest, known, "return a lower index")
    if not each:
        to[rows] = highest


def seated(
    chosen: object, rows: I64, most: int, to: I64, policy: Policy, what: str = "K"
) -> tuple[int, bool]:
    """What ``choose_k`` answered: (one for all, False), or (the highest, True) with each at its row
    of ``to``.

    Args:
        rows: (B,) rows of the batch.
        most: higher answers are cut to it.

    Raises:
        InputError: it is no whole number >= 0, nor (B,) of them.
    """
    each = not isinstance(chosen, (int, np.integer)) or isinstance(chosen, bool)
    if each:
        array = np.asarray(chosen) if isinstance(chosen, np.ndarray | list | tuple) else None
        if array is None or array.shape != rows.shape or array.dtype.kind not in "iu":
            shown = repr(chosen) if array is None else f"an array of shape {array.shape}, {array.dtype}"
            bound = f"must be an int or an integer array of shape {rows.shape}, one {what} per request"
            raise InputError(f"policy {type(policy).__name__}: choose_k", shown, bound, "mend its return")
        lowest, highest = seat(array.astype(np.int64), rows, most, to)
    else:
        lowest = int(chosen)  # type: ignore[call-overload]  # an integer: see ``each``
        highest = min(lowest, most)
    if lowest < 0:
        name = f"policy {type(policy).__name__}: choose_k"
        raise InputError(name, lowest, f"{what} must be 0 or more", "mend its return")
    return highest, each
