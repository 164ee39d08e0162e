"""One model replica: owns its arrays and advances them, compiled when the policy allows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from kplan.engine import kernel
from kplan.engine.asking import (
    BatchCost,
    Decision,
    Form,
    blame,
    combines,
    form_of,
    lookups_of,
    parted,
    rule_of,
    seat_proposer,
    seated,
    sees_future,
    table_of,
)
from kplan.engine.automaton import Automaton
from kplan.engine.execute import execute
from kplan.engine.load import Load, check_fits, new_machine, new_requests
from kplan.engine.state import (
    ADMITTED,
    DECODES,
    ENDED,
    EXPECTED,
    FINISHED,
    FREE_BLOCKS,
    I64,
    KNOWN,
    LOGGED,
    WINDOW_FROM,
    WINDOW_TO,
    Limits,
    Machine,
    Requests,
    Steps,
)
from kplan.latency.compiled import StepCost
from kplan.policy import (
    CompiledPolicy,
    Observer,
    Policy,
    StepOutcome,
    StepView,
    TablePolicy,
)

_NOBODY: I64 = np.zeros(0, np.int64)

LOG_STEPS = 65_536
"""Step records kept before they are handed on."""


class Replica:
    """A step loop over the arrays of :mod:`kplan.engine.state`.

    Args:
        load: the requests of the fleet, in order of arrival.
        limits: the engine's bounds and flavour.
        cost: compiled step cost.
        policy: a fresh policy; one instance serves one replica.
        requests: the fleet's records (see new_requests); None: this replica is all of it.
        mine: the requests of ``load`` that it serves, in order of arrival; None: all of them.
        clients: of a closed loop, bound to this replica; None: all of them.
        handed: it is handed its requests one by one (:meth:`offer`) instead.
        observe_lag: steps by which ``observe`` trails the engine (1 under overlapped scheduling).
        compiled: False forces the Python path, which must give identical bytes.
        record: is given the STEP records, some at a time; :meth:`flush` gives it the last.

    Raises:
        InputError: the load can never be served (see check_fits).
    """

    def __init__(
        self,
        load: Load,
        limits: Limits,
        cost: StepCost,
        policy: Policy,
        *,
        requests: Requests | None = None,
        mine: I64 | None = None,
        clients: int | None = None,
        handed: bool = False,
        observe_lag: int = 0,
        compiled: bool = True,
        record: Callable[[Steps], None] | None = None,
    ) -> None:
        unit_tokens = 0 if load.prefix is None else load.prefix.unit_tokens
        self.limits = limits = limits._replace(unit_tokens=unit_tokens, thinks=load.thinks)
        check_fits(load, limits)
        self.cost, self.traces = cost, load.traces
        self.records: Requests = new_requests(load) if requests is None else requests
        share = None if handed else np.arange(len(load)) if mine is None else mine
        log = 0 if record is None else LOG_STEPS
        self.machine: Machine = new_machine(self.records, load, limits, share, clients, log)
        self._record = record
        self._policy = policy
        self._observer = policy if isinstance(policy, Observer) else None
        self._lag = observe_lag
        self._late: deque[StepOutcome] = deque()
        self.k_each: I64 = np.zeros(limits.max_num_seqs + limits.max_k + 1, np.int64)
        self._sees_future, self._combines = sees_future(policy), combines(policy)
        self._proposers, self._lookups = load.proposers, lookups_of(cost, len(load.proposers))
        self._last: I64 = np.zeros((2, len(load)), np.int64)
        self._table: I64 | None = None
        self._automaton: Automaton | None = None
        self._mode = kernel.BY_TABLE
        form = form_of(policy) if compiled else Form.PYTHON
        if form is Form.TABLE:
            assert isinstance(policy, TablePolicy)
            self._table = np.minimum(table_of(policy, limits.max_num_seqs), limits.max_k)
        elif form is Form.ORACLE:
            self._mode = kernel.BY_ORACLE
            self._table = np.zeros(limits.max_num_seqs + 1, np.int64)
        elif form is Form.RULE:
            assert isinstance(policy, CompiledPolicy)
            name = type(policy).__name__
            self._automaton = Automaton(name, rule_of(policy), limits, len(load), observe_lag)

    @property
    def clock_s(self) -> float:
        """Seconds at which the latest step ended."""
        return float(self.machine.clock[0])

    @property
    def requests(self) -> Any:
        """The fleet's REQUEST records, by column as attributes (``requests.finish_s``)."""
        return self.records.view(np.recarray)

    @property
    def admitted(self) -> I64:
        """Numbers of the requests it admitted, in that order."""
        return self.machine.queue[: self.machine.counters[ADMITTED]]

    @property
    def window(self) -> slice:
        """The part of ``admitted`` whose steps were measured."""
        return slice(int(self.machine.counters[WINDOW_FROM]), int(self.machine.counters[WINDOW_TO]))

    @property
    def done(self) -> bool:
        """Every request is finished."""
        return int(self.machine.counters[FINISHED]) == int(self.machine.counters[EXPECTED])

    @property
    def ended(self) -> I64:
        """Numbers of the requests that finished in the latest step."""
        return self.machine.ended[: self.machine.counters[ENDED]]

    def offer(self, request: int, arrival_s: float) -> None:
        """Hand it a request that arrives at ``arrival_s``, seconds of its clock, which must not decrease."""
        count = self.machine.counters
        self.records["arrival_s"][request] = arrival_s
        self.machine.source[count[KNOWN]] = request
        count[KNOWN] += 1
        count[EXPECTED] += 1

    def make_log_room(self) -> None:
        """Hand on the step records when there is no room for another."""
        if self._record is not None and self.machine.counters[LOGGED] == LOG_STEPS:
            self.flush()

    def flush(self) -> None:
        """Hand on the step records written since the last time."""
        if self._record is not None:
            self._record(self.machine.log[: self.machine.counters[LOGGED]].copy())
            self.machine.counters[LOGGED] = 0

    def advance(self, until: float = np.inf, steps: int = 2**62) -> int:
        """Run until everything is finished or idle, the clock reaches ``until``, or ``steps`` were run.

        Returns:
            DONE, IDLE or PAUSED (see kernel).
        """
        while (status := self._advance(until, steps)) == kernel.FULL:
            self.flush()
        return status

    def _advance(self, until: float, steps: int) -> int:
        if self._table is not None:
            return int(
                kernel.run(
                    self.records, self.machine, self.limits, self.traces, self.cost,
                    self._mode, self._table, self.k_each, until, steps,
                )
            )  # fmt: skip
        if self._automaton is not None:
            return self._automaton.advance(
                self.records, self.machine, self.limits, self.traces, self.cost, until, steps
            )
        for _ in range(steps):
            batch = int(kernel.next_batch(self.records, self.machine, self.limits, until))
            if batch <= 0:
                return batch
            self._step(batch)
        return kernel.PAUSED

    def _step(self, batch: int) -> None:
        decision = self.decide(batch)
        k, each = decision.k, decision.each
        step_s = execute(
            self.records, self.machine, self.limits, self.traces, self.cost, k, each, self.k_each
        )
        self.learn(decision, float(step_s))

    def decide(self, batch: int) -> Decision:
        """What the policy makes of the step that is built, of ``batch`` decoding requests."""
        if self._table is not None and self._mode == kernel.BY_TABLE:
            idle = self.limits.k_now and self.machine.counters[DECODES] == 0
            k = 0 if idle else int(self._table[batch])
            return Decision(k, False, batch, _NOBODY, _NOBODY, _NOBODY, teaches=False)
        req, m, limits = self.records, self.machine, self.limits
        rows, (decode_rows, request, had), seen, kv_tokens, waits = kernel.look(
            req, m, limits, self.traces, self._last, self._sees_future
        )
        # SGLang runs prompts on their own: nothing is drafted in such a step and nothing is learnt from it
        alone = limits.k_now and len(decode_rows) == 0
        k, each = (0, False) if alone else self._choose(batch, rows, seen, kv_tokens, waits)
        if limits.k_now and len(self._proposers) > 1:  # the drafts verified are those that it asks for now
            drafts = self.k_each[decode_rows] > 0 if each else k > 0
            had = np.where(drafts, m.proposer[decode_rows], had)
        return Decision(k, each, batch, decode_rows, request, had, teaches=not alone)

    def learn(self, decision: Decision, step_s: float) -> None:
        """Let the policy observe the step that was run in ``step_s`` seconds, as late as the engine would."""
        if not decision.teaches:
            return
        rows = self.machine.rows
        self._late.append(
            StepOutcome(
                batch=decision.batch,
                step_s=step_s,
                request=decision.request,
                proposed=rows["proposed"][decision.rows],
                accepted=rows["accepted"][decision.rows],
                proposer=decision.proposer,
            )
        )
        while len(self._late) > self._lag:
            outcome = self._late.popleft()
            self._last[0, outcome.request] = outcome.proposed
            self._last[1, outcome.request] = outcome.accepted
            if self._observer is not None:
                with blame(self._policy, f"observe at batch {outcome.batch}"):
                    self._observer.observe(outcome)

    def _choose(self, batch: int, rows: I64, seen: I64, kv_tokens: int, waits: int) -> tuple[int, bool]:
        """Ask the policy; returns (K for all, False) or (deepest K, True) with ``k_each`` filled."""
        m, limits, names = self.machine, self.limits, self._proposers
        future = seen[5 + len(names) :] if self._sees_future else None
        view = StepView(
            now_s=float(m.clock[0]),
            batch=batch,
            waiting=waits,
            kv_free_tokens=int(m.counters[FREE_BLOCKS]) * limits.block_tokens,
            max_k=limits.max_k,
            request=seen[0],
            position=seen[1],
            context=seen[2],
            last_proposed=seen[3],
            last_accepted=seen[4],
            cost=BatchCost(self.cost, batch, kv_tokens),
            future_accepted=None if future is None else future[-1],
            proposers=names,
            lookups=self._lookups,
            offered=seen[5 : 5 + len(names)],
            future_by_proposer=future,
        )
        with blame(self._policy, f"choose_k at batch {batch}"):
            chosen: object = self._policy.choose_k(view)
        if self._combines:
            proposer, chosen = parted(chosen, names, self._policy)
            seat_proposer(proposer, names, rows, m.proposer, self._policy)
        return seated(chosen, rows, limits.max_k, self.k_each, self._policy)
