"""One model replica: owns its arrays and advances them, compiled when the policy allows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.engine import kernel
from kplan.engine.automaton import Automaton, price_by_k
from kplan.engine.execute import execute, steady_step_s
from kplan.engine.state import (
    F64,
    FINISHED,
    FREE_BLOCKS,
    I64,
    Limits,
    Load,
    Machine,
    Requests,
    new_machine,
    new_requests,
)
from kplan.errors import InputError, KplanError
from kplan.latency.compiled import StepCost
from kplan.policy import (
    CompiledPolicy,
    Observer,
    Policy,
    PolicyInfo,
    StepOutcome,
    StepView,
    TablePolicy,
)


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


class Replica:
    """A step loop over the arrays of :mod:`kplan.engine.state`.

    Args:
        load: the requests it will serve, in order of arrival.
        limits: the engine's bounds and flavour.
        cost: compiled step cost.
        policy: a fresh policy; one instance serves one replica.
        observe_lag: steps by which ``observe`` trails the engine (1 under overlapped scheduling).
        compiled: False forces the Python path, which must give identical bytes.
    """

    def __init__(
        self,
        load: Load,
        limits: Limits,
        cost: StepCost,
        policy: Policy,
        *,
        observe_lag: int = 0,
        compiled: bool = True,
    ) -> None:
        self.limits, self.cost, self.traces = limits, cost, load.traces
        self._requests: Requests = new_requests(load)
        self.machine: Machine = new_machine(load, limits)
        self._policy = policy
        self._observer = policy if isinstance(policy, Observer) else None
        self._lag = observe_lag
        self._late: deque[StepOutcome] = deque()
        self._k_each: I64 = np.zeros(limits.max_num_seqs, np.int64)
        info = getattr(policy, "info", None)
        self._sees_future = isinstance(info, PolicyInfo) and info.needs_future
        n = len(load)
        self._last: I64 = np.zeros((2, n), np.int64)
        self._table: I64 | None = None
        self._automaton: Automaton | None = None
        self._mode = kernel.BY_TABLE
        if compiled and isinstance(policy, TablePolicy) and _rules(type(policy), "table", "choose_k"):
            self._table = np.clip(policy.table(limits.max_num_seqs), 0, limits.max_k).astype(np.int64)
        elif compiled and self._sees_future and getattr(policy, "compiled_oracle", False):
            self._mode = kernel.BY_ORACLE
            self._table = np.zeros(limits.max_num_seqs + 1, np.int64)
        elif (
            compiled
            and isinstance(policy, CompiledPolicy)
            and _rules(type(policy), "compiled", "choose_k", "observe")
        ):
            self._automaton = Automaton(type(policy).__name__, policy.compiled(), limits, n, observe_lag)

    @property
    def clock_s(self) -> float:
        """Seconds at which the latest step ended."""
        return float(self.machine.clock[0])

    @property
    def requests(self) -> Any:
        """The REQUEST records, by column as attributes (``requests.finish_s``)."""
        return self._requests.view(np.recarray)

    @property
    def done(self) -> bool:
        """Every request is finished."""
        return int(self.machine.counters[FINISHED]) == len(self._requests)

    def advance(self, until: float = np.inf) -> int:
        """Run steps until everything is finished, idle, or the clock reaches ``until`` (see kernel.run)."""
        if self._table is not None:
            return int(
                kernel.run(
                    self._requests, self.machine, self.limits, self.traces, self.cost,
                    self._mode, self._table, self._k_each, until,
                )
            )  # fmt: skip
        if self._automaton is not None:
            return self._automaton.advance(
                self._requests, self.machine, self.limits, self.traces, self.cost, until
            )
        return self._advance_python(until)

    def _advance_python(self, until: float) -> int:
        while True:
            batch = int(kernel.next_batch(self._requests, self.machine, self.limits, until))
            if batch <= 0:
                return batch
            self._step(batch)

    def _step(self, batch: int) -> None:
        req, m, limits = self._requests, self.machine, self.limits
        rows, decode_rows, seen, future = kernel.look(
            req, m, limits, self.traces, self._last, self._sees_future
        )
        # SGLang runs prompts on their own: nothing is drafted in such a step and nothing is learnt from it
        prefill_alone = limits.k_now and len(decode_rows) == 0
        k, each = (0, False) if prefill_alone else self._choose(batch, rows, seen, future)
        request = m.rows["running"][decode_rows]
        step_s = float(execute(req, m, limits, self.traces, self.cost, k, each, self._k_each))
        if prefill_alone:
            return
        self._late.append(
            StepOutcome(
                batch=batch,
                step_s=step_s,
                request=request,
                proposed=m.rows["proposed"][decode_rows],
                accepted=m.rows["accepted"][decode_rows],
            )
        )
        while len(self._late) > self._lag:
            outcome = self._late.popleft()
            self._last[0, outcome.request] = outcome.proposed
            self._last[1, outcome.request] = outcome.accepted
            if self._observer is not None:
                with _blame(self._policy, "observe", outcome.batch):
                    self._observer.observe(outcome)

    def _choose(self, batch: int, rows: I64, seen: I64, future: I64) -> tuple[int, bool]:
        """Ask the policy; returns (K for all, False) or (deepest K, True) with ``_k_each`` filled."""
        req, m, limits = self._requests, self.machine, self.limits
        view = StepView(
            now_s=float(m.clock[0]),
            batch=batch,
            waiting=int(kernel.waiting(req, m)),
            kv_free_tokens=int(m.counters[FREE_BLOCKS]) * limits.block_tokens,
            max_k=limits.max_k,
            request=seen[0],
            position=seen[1],
            context=seen[2],
            last_proposed=seen[3],
            last_accepted=seen[4],
            cost=BatchCost(self.cost, batch, int(seen[2].sum())),
            future_accepted=future if self._sees_future else None,
        )
        with _blame(self._policy, "choose_k", batch):
            chosen = self._policy.choose_k(view)
        each = _checked(chosen, batch, self._policy)
        if isinstance(each, int):
            return min(each, limits.max_k), False
        self._k_each[rows] = np.minimum(each, limits.max_k)
        return int(self._k_each[rows].max(initial=0)), True


@contextmanager
def _blame(policy: Policy, method: str, batch: int) -> Iterator[None]:
    """Whatever a policy raises (or exits with) is a fault of the policy, told in one line."""
    try:
        yield
    except KplanError:
        raise
    except (Exception, SystemExit) as error:
        name = type(policy).__name__
        what, told = f"policy {name}: {method} at batch {batch}", f"{type(error).__name__}: {error}"
        raise InputError(what, told, "it must not raise", "mend the policy") from error


def _rules(cls: type, form: str, *methods: str) -> bool:
    """Whether ``form`` is the rule of this class, not inherited beside an override of one of ``methods``."""
    names = next(vars(base).keys() for base in cls.__mro__ if {form, *methods} & vars(base).keys())
    return form in names


def _checked(chosen: object, batch: int, policy: Policy) -> int | NDArray[np.int64]:
    """What ``choose_k`` answered as an int or an array (batch,), both >= 0."""
    name = f"policy {type(policy).__name__}"
    answer: int | NDArray[np.int64]
    if isinstance(chosen, (int, np.integer)) and not isinstance(chosen, bool):
        answer = lowest = int(chosen)
    else:
        array = np.asarray(chosen) if isinstance(chosen, np.ndarray | list | tuple) else None
        if array is None or array.shape != (batch,) or not np.issubdtype(array.dtype, np.integer):
            shown = repr(chosen) if array is None else f"an array of shape {array.shape}, {array.dtype}"
            bound = f"must be an int or an integer array of shape ({batch},), one K per request"
            raise InputError(f"{name}: choose_k", shown, bound, "mend its return")
        answer, lowest = array.astype(np.int64), int(array.min(initial=0))
    if lowest < 0:
        raise InputError(f"{name}: choose_k", lowest, "K must be 0 or more", "mend its return")
    return answer
