"""What a search tries a policy on: every load and workload at once, each for several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kplan import metrics
from kplan.config.loads import load_words, requests_words
from kplan.config.scenario import Scenario, make_scenario
from kplan.errors import InputError
from kplan.registry import PolicySpec, parse_policy
from kplan.search.candidates import greedy_table, rates, walk_curve
from kplan.search.compare import compare, draw_all
from kplan.search.evaluate import check_room, overload, slos_s
from kplan.simulate import (
    POOL,
    Drawn,
    Setup,
    default_requests,
    draw_requests,
    prepare,
    run_policy,
    sustained,
    sustained_qps,
    with_load,
)
from kplan.space import Limits, Tiers
from kplan.telling import Tell, silent


@dataclass(frozen=True)
class Case:
    """One load of one workload, with its requests by replication: the same for every policy.

    Attributes:
        drawn: those that trials are run on.
        fresh: as many held-out ones, of seeds that no trial sees.
    """

    name: str
    setup: Setup
    drawn: tuple[Drawn, ...] = field(repr=False)
    fresh: tuple[Drawn, ...] = field(repr=False)

    @property
    def replicas(self) -> int:
        """Replicas that serve it."""
        return self.setup.scenario.replicas or 1


@dataclass(frozen=True)
class Task:
    """One policy on one replication of one case, by their numbers; those of the held-out replications follow
    those of the trials."""

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
        """Seeds of every case that trials are run on."""
        return len(self.all[0].drawn)

    @property
    def searched(self) -> range:
        """Replications that trials are run on."""
        return range(self.replications)

    @property
    def held_out(self) -> range:
        """As many that no trial sees: the best of many trials owes part of its figure to those it saw."""
        return range(self.replications, 2 * self.replications)

    def run(self, task: Task) -> Point:
        """Simulate one policy on the requests of one case and seed."""
        case = self.all[task.case]
        setup, spec = case.setup, parse_policy(task.policy)
        drawn = (case.drawn + case.fresh)[task.replication]
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
    scenario: Scenario,
    loads: Sequence[float] = (),
    workloads: Sequence[str] = (),
    tell: Tell = silent,
) -> tuple[Cases, Limits]:
    """Put the cases of a search together, and draw their requests.

    Args:
        loads: requests/s in place of the scenario's own, or clients where it is a closed loop.
        workloads: in place of the scenario's own.
        tell: told what is being done.

    Returns:
        The cases, and the limits of the search with the greedy table of their mean steps.

    Raises:
        InputError: a name that no profile covers, requests of one token, a load that is none, or a drafter
            that only serves one K.
    """
    bases = [_prepared(scenario, one) for one in dict.fromkeys(workloads or (scenario.workload,))]
    setups = bases
    if loads:
        setups = [_loaded(base, load) for base in bases for load in dict.fromkeys(loads)]
    first = setups[0]
    sample = draw_requests(first, default_requests(first, scenario.replicas or 1), scenario.seed)
    limits = search_limits(first, sample, setups)
    steady = [parse_policy("off"), greedy_spec(limits)]
    for base in bases:
        check_room(base, steady)
    return Cases(tuple(_case(one, steady, tell) for one in setups)), limits


def _prepared(scenario: Scenario, workload: str) -> Setup:
    setup = prepare(scenario.model_copy(update={"workload": workload}))
    if setup.drafter.one_k:
        raise InputError(
            "--proposer", setup.drafter.proposer, "engines keep one K while it drafts: nothing to search",
            "search with another proposer, or compare policies with kplan recommend",
        )  # fmt: skip
    if setup.lengths.longest_output < 2:
        raise InputError("output length", 1, "no request emits a second token", "nothing can be speculated")
    return setup


def _case(setup: Setup, steady: Sequence[PolicySpec], tell: Tell) -> Case:
    """One case; its held-out requests are as many as those of the trials, of the seeds that follow."""
    drawn, count = _drawn(setup, steady, tell), setup.scenario.replications
    seeds = range(setup.scenario.seed + count, setup.scenario.seed + 2 * count)
    n, stretch = len(drawn[0].prompt_len), drawn[0].stretch
    fresh = tuple(draw_requests(setup, n, seed, stretch) for seed in seeds)
    return Case(_name(setup), setup, drawn, fresh)


def _name(setup: Setup) -> str:
    return f"{requests_words(_Origin(setup.scenario))} at {load_words(setup.scenario)}"


def _drawn(setup: Setup, steady: Sequence[PolicySpec], tell: Tell) -> tuple[Drawn, ...]:
    """The requests of every replication, for as long as the policies ``steady`` take to settle (see
    kplan.search.compare): every trial then gets the same."""
    replicas = setup.scenario.replicas or 1
    if setup.scenario.requests is not None or not setup.stationary:
        return draw_all(setup, replicas)
    limits = {}
    if setup.rate is not None:
        sample = draw_requests(setup, POOL, setup.scenario.seed)
        limits = {spec.text: sustained(setup, spec, [sample]) for spec in steady}
    return compare(setup, steady, replicas, limits, tell)[0]


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

    @property
    def dataset(self) -> str | None:
        return self.scenario.dataset


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


def search_limits(setup: Setup, drawn: Drawn, beside: Sequence[Setup] = ()) -> Limits:
    """What the search knows before a trial, from the walk of one case's acceptance.

    Args:
        beside: other setups, whose contexts have tiers too and whose batches are reached.
    """
    curve = walk_curve(drawn.trace, setup.scenario.max_k, setup.drafter.tree)

    def tiers(context: float) -> Tiers:
        rate = rates(setup.latency_table, curve, setup.max_num_seqs, context)
        return tuple((one.start, one.k) for one in greedy_table(rate))

    starts = _context_tiers([one.lengths.context for one in (setup, *beside)])
    return Limits(
        max_k=setup.scenario.max_k,
        max_batch=setup.max_num_seqs,
        reach=max(_reach(one) for one in (setup, *beside)),
        greedy=tiers(setup.lengths.context),
        by_context=tuple((start, tiers(1.5 * start if start else starts[1] / 2)) for start in starts),
    )


def _reach(setup: Setup) -> int:
    clients = setup.scenario.concurrency
    return setup.max_num_seqs if clients is None else min(clients, setup.max_num_seqs)


def _context_tiers(means: Sequence[float]) -> list[int]:
    """First contexts of tiers: 0 and every power of two from the one below the smallest of the ``means`` to
    the one above the largest. A tier reaches to twice its start, so its middle is at 1.5 times that."""
    low, high = math.floor(math.log2(min(means))), math.ceil(math.log2(max(means)))
    return [0, *(2**power for power in range(low, high + 1))]


def greedy_spec(limits: Limits) -> PolicySpec:
    """The greedy table as a policy."""
    starts = [start for start, _ in limits.greedy]
    ends = [f"{start - 1}" for start in starts[1:]]
    ranges = zip(limits.greedy, [*ends, ""], strict=True)
    return parse_policy("table:" + ",".join(f"{start}-{end}={k}" for (start, k), end in ranges))
