"""Asking a policy: what it is shown, what it may answer, and whether it has to be asked at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import numpy as np

from kplan.engine.automaton import price_by_k
from kplan.engine.price import price_mixes, steady_step_s
from kplan.engine.state import F64, I64
from kplan.errors import InputError, KplanError
from kplan.latency.compiled import LOOKUP_DRAFTER, StepCost
from kplan.policy import CompiledPolicy, Policy, PolicyInfo, Rule, TablePolicy


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


@dataclass(frozen=True)
class Decision:
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


@contextmanager
def blame(policy: object, doing: str) -> Iterator[None]:
    """Whatever a policy raises (or exits with) is a fault of the policy, told in one line."""
    try:
        yield
    except KplanError:
        raise
    except (Exception, SystemExit) as error:
        name = type(policy).__name__
        told = f"{type(error).__name__}: {error}"
        raise InputError(f"policy {name}: {doing}", told, "it must not raise", "mend the policy") from error


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


def checked_mix(
    chosen: object, proposers: tuple[str, ...], batch: int, policy: Policy
) -> tuple[int | I64, int | I64]:
    """What the ``choose_k`` of a policy that combines answered, as (index of the proposer, K), each an int or
    an array (batch,)."""
    name = f"policy {type(policy).__name__}: choose_k"
    if not isinstance(chosen, tuple) or len(chosen) != 2:
        bound = "must be (proposer, K), for the policy says that it combines"
        raise InputError(name, repr(chosen), bound, "mend its return")
    proposer, k = chosen
    known = f"the proposers are {', '.join(proposers)}"
    if isinstance(proposer, str):
        if proposer not in proposers:
            raise InputError(name, proposer, known, "name one of them, or its index")
        return proposers.index(proposer), checked(k, batch, policy)
    index = checked(proposer, batch, policy, "proposer")
    highest = int(np.max(index, initial=0))
    if highest >= len(proposers):
        raise InputError(name, highest, f"{known}, from index 0", "return a lower index")
    return index, checked(k, batch, policy)


def checked(chosen: object, batch: int, policy: Policy, what: str = "K") -> int | I64:
    """What ``choose_k`` answered as an int or an array (batch,), both >= 0."""
    name = f"policy {type(policy).__name__}"
    answer: int | I64
    if isinstance(chosen, (int, np.integer)) and not isinstance(chosen, bool):
        answer = lowest = int(chosen)
    else:
        array = np.asarray(chosen) if isinstance(chosen, np.ndarray | list | tuple) else None
        if array is None or array.shape != (batch,) or not np.issubdtype(array.dtype, np.integer):
            shown = repr(chosen) if array is None else f"an array of shape {array.shape}, {array.dtype}"
            bound = f"must be an int or an integer array of shape ({batch},), one {what} per request"
            raise InputError(f"{name}: choose_k", shown, bound, "mend its return")
        answer, lowest = array.astype(np.int64), int(array.min(initial=0))
    if lowest < 0:
        raise InputError(f"{name}: choose_k", lowest, f"{what} must be 0 or more", "mend its return")
    return answer
