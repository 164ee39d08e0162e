"""What a search tries a policy on: every load and workload at once, each for several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kplan import metrics
from kplan.config.loads import load_words, requests_words
from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.registry import PolicySpec, parse_policy
from kplan.search.candidates import greedy_table, rates, walk_curve
from kplan.search.evaluate import check_room, overload, slos_s
from kplan.simulate import (
    Drawn,
    Setup,
    default_requests,
    draw_requests,
    prepare,
    run_policy,
    sustained_qps,
    with_load,
)
from kplan.space import Limits


@dataclass(frozen=True)
class Case:
    """One load of one workload, with its requests by replication: the same for every policy."""

    name: str
    setup: Setup
    drawn: tuple[Drawn, ...] = field(repr=False)

    @property
    def replicas(self) -> int:
        """Replicas that serve it."""
        return self.setup.scenario.replicas or 1


@dataclass(frozen=True)
class Task:
    """One policy on one replication of one case, by their numbers."""

    policy: str
    replication: int
    case: int


@dataclass(frozen=True)
class Point:
    """What one task measured.

    Attributes:
        tpot_s, ttft_s: means over the requests.
        tok_s: output tokens/s that all replicas sustain; in a closed loop those that they emitted.
        overload: share of the sustained rate by which the load exceeds what counts as sustained.
        met: share of the requests that met every SLO given.
        output_tokens: emitted in all.
        mean_batch, mean_k: over the steps.
    """

    tpot_s: float
    ttft_s: float
    tok_s: float
    overload: float
    met: float
    output_tokens: int
    mean_batch: float
    mean_k: float


@dataclass(frozen=True)
class Cases:
    """The job of a search: every case, ``run`` one task at a time."""

    all: tuple[Case, ...]

    @property
    def first(self) -> Setup:
        """The setup of the first case; model, GPU, drafter and engine are those of all."""
        return self.all[0].setup

    @property
    def replications(self) -> int:
        """Seeds of every case."""
        return len(self.all[0].drawn)

    def run(self, task: Task) -> Point:
        """Simulate one policy on the requests of one case and seed."""
        case = self.all[task.case]
        setup, drawn, spec = case.setup, case.drawn[task.replication], parse_policy(task.policy)
        run = run_policy(setup, spec, drawn, replicas=case.replicas)
        tok_s, over = run.output_tok_s, overload(setup, [run], float("inf"))
        if setup.rate is not None:
            limit = sustained_qps(setup, spec, drawn) * case.replicas
            tok_s, over = limit * float(drawn.output_len.mean()), overload(setup, [run], limit)
        if not run.mean_tpot_s > 0 or not tok_s > 0:
            raise InputError(
                "requests", run.requests, f"too few to measure {case.name}", "give more with --requests"
            )
        return Point(
            tpot_s=run.mean_tpot_s,
            ttft_s=metrics.run_mean(run.ttft_s),
            tok_s=tok_s,
            overload=over,
            met=metrics.attainment(run, *slos_s(setup)),
            output_tokens=run.output_tokens,
            mean_batch=metrics.mean_batch([run]),
            mean_k=metrics.mean_k([run]),
        )

    def tasks(self, policy: str, replications: Sequence[int]) -> list[Task]:
        """The tasks of a policy on some replications, case after case within each."""
        return [Task(policy, one, case) for one in replications for case in range(len(self.all))]


def make_cases(
    scenario: Scenario, loads: Sequence[float] = (), workloads: Sequence[str] = ()
) -> tuple[Cases, Limits]:
    """Put the cases of a search together, and draw their requests.

    Args:
        loads: requests/s in place of the scenario's own, or clients where it is a closed loop.
        workloads: in place of the scenario's own.

    Returns:
        The cases, and the limits of the search with the greedy table of their mean steps.

    Raises:
        InputError: a name that no profile covers, requests of one token, a load that is none, or a drafter
            that only serves one K.
    """
    made: list[Case] = []
    setups: list[Setup] = []
    for workload in dict.fromkeys(workloads or (scenario.workload,)):
        base = prepare(scenario.model_copy(update={"workload": workload}))
        if base.lengths.longest_output < 2:
            raise InputError(
                "output length", 1, "no request emits a second token", "nothing can be speculated"
            )
        setups.append(base)
        for load in dict.fromkeys(loads) if loads else (None,):
            setup = base if load is None else _loaded(base, load)
            n = default_requests(setup, scenario.replicas or 1)
            seeds = range(scenario.seed, scenario.seed + scenario.replications)
            name = f"{requests_words(_Origin(setup.scenario))} at {load_words(setup.scenario)}"
            made.append(Case(name, setup, tuple(draw_requests(setup, n, seed) for seed in seeds)))
    limits = search_limits(setups[0], made[0].drawn[0])
    for setup in setups:
        check_room(setup, [parse_policy("off"), greedy_spec(limits)])
    return Cases(tuple(made)), limits


@dataclass(frozen=True)
class _Origin:
    """A scenario as kplan.config.loads.Origin: with the names of its files."""

    scenario: Scenario

    @property
    def workload(self) -> str:
        return self.scenario.workload

    @property
    def replay(self) -> str | None:
        return None if self.scenario.replay is None else self.scenario.replay.name

    @property
    def traces(self) -> str | None:
        return None if self.scenario.traces is None else self.scenario.traces.name


def _loaded(base: Setup, load: float) -> Setup:
    """``base`` at another rate, or with so many clients; the scenario checked anew."""
    scenario = base.scenario
    if scenario.ramp_to_qps is not None:
        raise InputError("--loads", load, "a ramp has no other rate", "leave --loads or the ramp out")
    closed = scenario.concurrency is not None
    if closed and load != int(load):
        raise InputError("--loads", load, "clients are counted", "give whole numbers, or --qps")
    change = {"concurrency": int(load)} if closed else {"qps": load}
    make_scenario(scenario.model_dump(exclude_unset=True) | change, "--loads")
    if scenario.replay is not None and base.log is not None:
        return prepare(scenario.model_copy(update=change))  # its log is stretched to the rate
    return with_load(base, **change)


def search_limits(setup: Setup, drawn: Drawn) -> Limits:
    """What the search knows before a trial, from the walk of one case's acceptance."""
    curve = walk_curve(drawn.trace, setup.scenario.max_k, setup.drafter.tree)
    table = greedy_table(rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context))
    return Limits(setup.scenario.max_k, setup.max_num_seqs, tuple((one.start, one.k) for one in table))


def greedy_spec(limits: Limits) -> PolicySpec:
    """The greedy table as a policy."""
    starts = [start for start, _ in limits.greedy]
    ends = [f"{start - 1}" for start in starts[1:]]
    ranges = zip(limits.greedy, [*ends, ""], strict=True)
    return parse_policy("table:" + ",".join(f"{start}-{end}={k}" for (start, k), end in ranges))
