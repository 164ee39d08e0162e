"""The cells of a leaderboard: each workload, proposer and load with its requests and its policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.policy import TablePolicy
from kplan.registry import PolicySpec, list_policies, parse_policy
from kplan.search.cases import greedy_spec, search_limits
from kplan.search.evaluate import CLOSE, check_room
from kplan.search.single import as_served, largest_k
from kplan.simulate import (
    POOL,
    Drawn,
    Setup,
    default_requests,
    draw_requests,
    prepare,
    sustained_qps,
    with_load,
)

OFF = "off"
GREEDY = "greedy-table"
"""Name of the greedy table on the board: its text differs from cell to cell."""
BATCHES, RATES = (1, 8, 32, 128), (8.0, 32.0, 64.0)
"""Loads where none is asked for: clients of a closed loop, and requests/s of an open one."""


@dataclass(frozen=True)
class Asked:
    """What the board holds; each empty field leaves the scenario's own, or the default.

    Attributes:
        batches: clients of closed loops; rates: requests/s of open ones.
        workloads: names of workloads, or of data sets where the scenario has recorded traces.
        proposers: of which several may be joined by ``+``.
        policies: texts beside those that are registered.
        only: the policies to show: a name on the board, or what stands before its colon.
        workers: processes of this machine; not used with a ``cluster``, the address of a Dask scheduler.
    """

    batches: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    workloads: tuple[str, ...] = ()
    proposers: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    workers: int = 1
    cluster: str | None = None

    @property
    def loads(self) -> list[dict[str, float | int | None]]:
        """Each load as what it changes in a scenario."""
        asked = (self.batches, self.rates) if self.batches or self.rates else (BATCHES, RATES)
        batches, rates = map(dict.fromkeys, asked)
        return [
            *({"qps": None, "concurrency": one} for one in batches),
            *({"qps": one, "concurrency": None} for one in rates),
        ]


@dataclass(frozen=True)
class Entry:
    """A policy of a cell: its name on the board, and what is run."""

    name: str
    spec: PolicySpec


@dataclass(frozen=True)
class Cell:
    """One load of one workload and proposer, with its requests by replication and its policies.

    Attributes:
        oracle: the name of its bound.
    """

    workload: str
    proposer: str
    setup: Setup = field(repr=False)
    drawn: tuple[Drawn, ...] = field(repr=False)
    entries: tuple[Entry, ...]
    oracle: str

    @property
    def replicas(self) -> int:
        """Replicas that serve it."""
        return self.setup.scenario.replicas or 1

    @property
    def closed(self) -> bool:
        """Clients that each keep one request in flight, else requests that arrive on their own."""
        return self.setup.scenario.qps is None

    @property
    def load(self) -> float:
        """Clients, or requests/s."""
        scenario = self.setup.scenario
        found = scenario.concurrency if scenario.qps is None else scenario.qps
        assert found is not None
        return float(found)


def lay_out(scenario: Scenario, asked: Asked) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Put the cells together and draw their requests.

    Returns:
        The cells, and what was left out or runs as something else.

    Raises:
        InputError: a name, a load or a combination that no profile covers; a policy that joins no cell.
    """
    ready, notes = _ready(asked)
    cells: list[Cell] = []
    for workload in dict.fromkeys(asked.workloads or (None,)):
        for proposer in dict.fromkeys(asked.proposers or (scenario.proposer,)):
            base = prepare(_of(scenario, workload, proposer))
            if base.lengths.longest_output < 2:
                raise InputError(
                    "output length", 1, "no request emits a second token", "nothing can be speculated"
                )
            _check_policies(asked, base)
            cells += [_cell(with_load(base, **_checked(base, load)), ready, notes) for load in asked.loads]
    return _shown(cells, asked), tuple(dict.fromkeys(notes))


def _of(scenario: Scenario, workload: str | None, proposer: str) -> Scenario:
    """The scenario with another workload, or data set of its traces, and proposer; checked anew."""
    place = "workload" if scenario.traces is None else "dataset"
    named = {} if workload is None else {place: workload}
    return make_scenario(scenario.model_dump(exclude_unset=True) | named | {"proposer": proposer}, "kplan")


def _checked(base: Setup, load: dict[str, float | int | None]) -> dict[str, float | int | None]:
    """``load``, which the scenario accepts."""
    make_scenario(base.scenario.model_dump(exclude_unset=True) | load, "kplan")
    return load


def _ready(asked: Asked) -> tuple[list[PolicySpec], list[str]]:
    """Every registered policy that runs without arguments, then those asked for; and who is left out, why.

    A board of some policies says nothing of the others.
    """
    found, notes = [], []
    for name, _ in list_policies():
        if name in ("fixed", "table"):  # there at every K, and as the greedy table
            continue
        try:
            found.append(parse_policy(name))
        except InputError as error:
            if not asked.only:
                notes.append(f"{name} is left out: {error}")
    return found + [parse_policy(text) for text in asked.policies], notes


def _check_policies(asked: Asked, base: Setup) -> None:
    """Refuse a table of more drafts than its server makes: it would run as another.

    Raises:
        InputError: see there.
    """
    most = base.scenario.max_k
    for spec in map(parse_policy, asked.policies):
        if isinstance(spec.build(), TablePolicy) and (largest := largest_k(spec)) > most:
            bound = f"drafts up to K = {largest}, and the server at most {most}"
            raise InputError("--policy", spec.text, bound, f"give --max-k {largest}")


def _shown(cells: Sequence[Cell], asked: Asked) -> tuple[Cell, ...]:
    """The cells with the policies asked for, and the two that every figure refers to.

    Raises:
        InputError: a policy that is in no cell.
    """
    names = list(dict.fromkeys(entry.name for cell in cells for entry in cell.entries))
    for text in asked.policies:
        if parse_policy(text).text not in names:
            raise InputError(
                "--policy", text, "chooses among proposers, and no --proposer joins several",
                "add --proposer ngram+eagle3",
            )  # fmt: skip
    if not asked.only:
        return tuple(cells)
    wanted: set[str] = set()
    for one in asked.only:
        found = {name for name in names if one in (name, name.partition(":")[0])}
        if not found:
            raise InputError("--only", one, "is not on the board", f"it has {', '.join(names)}")
        wanted |= found
    return tuple(
        replace(
            cell,
            entries=tuple(one for one in cell.entries if one.name in wanted | {OFF, cell.oracle}),
        )
        for cell in cells
    )


def _replicas(setup: Setup) -> int:
    """Those of the scenario, or as many as no speculation needs to keep up; one in a closed loop."""
    scenario, rate = setup.scenario, setup.rate
    if scenario.replicas is not None or rate is None:
        return scenario.replicas or 1
    sustained = sustained_qps(setup, parse_policy(OFF), draw_requests(setup, POOL, scenario.seed))
    return math.ceil(rate / (CLOSE * sustained))


def _cell(setup: Setup, ready: Sequence[PolicySpec], notes: list[str]) -> Cell:
    """One cell, its requests drawn; what its server turns into another policy is noted."""
    setup = with_load(setup, replicas=_replicas(setup))
    scenario = setup.scenario
    n = default_requests(setup, scenario.replicas or 1)
    seeds = range(scenario.seed, scenario.seed + scenario.replications)
    drawn = tuple(draw_requests(setup, n, seed) for seed in seeds)
    specs = [parse_policy(text) for text in ("off", *(f"fixed:{k}" for k in range(1, scenario.max_k + 1)))]
    named = {spec.text: spec for spec in specs}
    named[GREEDY] = greedy_spec(search_limits(setup, drawn[0]))
    for spec in ready:
        if not spec.info.combines or setup.mix is not None:
            named.setdefault(spec.text, spec)
    entries = {}
    for name, spec in named.items():
        run, dropped = as_served(setup, spec)
        notes += dropped
        entries[name] = Entry(name, run)
    check_room(setup, [one.spec for one in entries.values()])
    return Cell(
        workload=scenario.dataset or (scenario.traces.stem if scenario.traces else scenario.workload),
        proposer=scenario.proposer,
        setup=setup,
        drawn=drawn,
        entries=tuple(entries.values()),
        oracle="oracle" if setup.mix is None else "combined-oracle",
    )
