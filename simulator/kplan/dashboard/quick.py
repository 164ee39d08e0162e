"""The simulator's answer within a second: fewer requests and policies than ``recommend`` takes.

What a load does not change (profiles, prices, the rate that each policy sustains) is kept, so that a move of
the load's or an SLO's slider only simulates, and so are the requests, which no GPU changes. Of several
replicas, which are alike behind a round robin, one is simulated. The answer says so, and its intervals are as
wide as its few requests make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from kplan import metrics
from kplan.config.evidence import KMap
from kplan.config.plan import Assumption, Plan
from kplan.config.scenario import check_one_proposer
from kplan.dashboard.base import REPLICATIONS, Base, Bases
from kplan.dashboard.kmap import k_map
from kplan.dashboard.moved import with_acceptance
from kplan.dashboard.state import OWN, Files, State
from kplan.errors import InputError
from kplan.export import Exports, export_engines
from kplan.provenance import digest, versions
from kplan.registry import PolicySpec
from kplan.search import evidence, words
from kplan.search.candidates import longer_context, walk_curve
from kplan.search.choose import choose
from kplan.search.evaluate import Evaluated, meets_slo, overload, result
from kplan.search.recommend import Judged, answer_on, least_bad, question_of
from kplan.search.replicas import alone_may_meet, fewest
from kplan.simulate import (
    POOL,
    UNBOUNDED,
    Drawn,
    Setup,
    Sustained,
    default_requests,
    draw_requests,
    prepare,
    run_policy,
)
from kplan.simulate.parallel import at_once
from kplan.telling import Tell

FULL_REPLICATIONS = 5
"""Seeds of the whole ``recommend``."""
TOKENS = 1_200_000
"""Output tokens of one replication of one policy, about."""
FEWEST = 60
"""Requests of a replica: at least."""
CLIENT_TURNS = 4
"""Requests of a client of a closed loop: two to settle, one measured, one that keeps the others busy."""


@dataclass(frozen=True)
class Look:
    """An answer as the page shows it.

    Attributes:
        map: the best K by batch and context.
        at: mean batch and context of the recommended policy's steps.
        how: how much was simulated, in a sentence.
        full: by the whole ``recommend``.
    """

    plan: Plan
    exports: Exports
    map: KMap
    at: tuple[float, float]
    how: str
    full: bool


@dataclass(frozen=True)
class _Found:
    """Whether any policy serves the load on so many replicas."""

    replicas: int
    best: PolicySpec | None


class Quick:
    """Answers a :class:`State`, and keeps what the next one may need. Used by one thread at a time."""

    def __init__(self, files: Files = OWN) -> None:
        self._files, self._bases = files, Bases(files)

    def look(self, state: State) -> Look:
        """The answer.

        Raises:
            InputError: a combination that no profile covers.
            InfeasibleError: nothing fits, or no number of replicas meets the SLOs.
        """
        base = self._bases.get(state)
        scenario = state.scenario(REPLICATIONS, self._files)
        setup = replace(base.setup, scenario=scenario.model_copy(update={"max_k": base.setup.scenario.max_k}))
        judged = _Trial(base, setup).judge()
        chosen = judged.best or least_bad(setup, judged)
        how = _how(judged, _per_replica(setup, judged.replicas))
        plan = _as_moved(_plan(base, setup, judged, chosen, how), state)
        cells = k_map(base.setup, base.curve, base.sample)
        return Look(plan, exports_of(setup, plan), cells, _middle(plan), how, full=False)


class _Trial:
    """Simulates policies on one load, each once on so many replicas."""

    def __init__(self, base: Base, setup: Setup) -> None:
        self._base, self._setup = base, setup
        self._drawn: dict[int, tuple[Drawn, ...]] = {}
        self._done: dict[tuple[str, int], Evaluated] = {}

    def judge(self) -> Judged:
        """Every policy on the fewest replicas that serve the load; a closed loop has one."""
        base, setup = self._base, self._setup
        able = sorted(base.able, key=lambda spec: -base.limits[spec.text].qps)
        replicas = 1
        if setup.rate is not None:
            most = base.limits[able[0].text].qps
            may_meet = partial(alone_may_meet, setup, able, base.sample)
            replicas = fewest(setup, most, lambda n: self._first_of(able, n), may_meet).replicas
        done = self._run(base.specs, replicas)
        fit = tuple(one for one in done if one.spec in base.able and self._serves(one))
        return Judged(replicas, self._requests(replicas), done, fit, choose(fit))

    def _first_of(self, able: Sequence[PolicySpec], replicas: int) -> _Found:
        """The first that serves the load on so many replicas."""
        serving = (spec for spec in able if self._serves(self._run([spec], replicas)[0]))
        return _Found(replicas, next(serving, None))

    def _serves(self, one: Evaluated) -> bool:
        return not one.saturated and meets_slo(self._setup, one)

    def _run(self, specs: Sequence[PolicySpec], replicas: int) -> tuple[Evaluated, ...]:
        """Each of ``specs``; what its sustained rate says is saturated is run once, for its throughput."""
        setup, drawn = self._setup, self._requests(replicas)
        new = [spec for spec in specs if (spec.text, replicas) not in self._done]
        limits = [(spec, self._limit(spec, replicas)) for spec in new]
        times = {spec.text: 1 if overload(setup, (), limit.qps) > 0 else len(drawn) for spec, limit in limits}
        jobs = [(spec, one) for spec in new for one in drawn[: times[spec.text]]]
        runs = iter(
            at_once(lambda job: run_policy(setup, job[0], job[1], replicas=replicas, simulated=1), jobs)
        )
        for spec, limit in limits:
            own = tuple(islice(runs, times[spec.text]))
            over = overload(setup, own, limit.qps) > 0
            self._done[spec.text, replicas] = Evaluated(spec, own, limit, saturated=over)
        return tuple(self._done[spec.text, replicas] for spec in specs)

    def _limit(self, spec: PolicySpec, replicas: int) -> Sustained:
        return UNBOUNDED if self._setup.rate is None else self._base.limits[spec.text].of(replicas)

    def _requests(self, replicas: int) -> tuple[Drawn, ...]:
        """The requests of every replication."""
        if replicas not in self._drawn:
            n = replicas * _per_replica(self._setup, replicas)
            self._drawn[replicas] = tuple(self._base.replication(seed, n) for seed in range(REPLICATIONS))
        return self._drawn[replicas]


def full_look(state: State, tell: Tell, files: Files = OWN) -> Look:
    """The answer of the whole ``recommend``.

    Args:
        tell: told what is being done; what it raises ends the run.
        files: named at the start, in place of the workload's acceptance or the drafter's profile.

    Raises:
        InputError, InfeasibleError: as :meth:`Quick.look`.
    """
    check_one_proposer(state.proposer)
    tell("loading profiles and pricing steps")
    setup = with_acceptance(prepare(state.scenario(FULL_REPLICATIONS, files)), state.acceptance)
    plan = _as_moved(answer_on(setup, tell), state)
    asked = plan.question
    how = f"Full run: {asked.replications} x {asked.requests:,} requests under each policy."
    sample = draw_requests(setup, POOL, asked.seed)
    curve = walk_curve(sample.trace, setup.scenario.max_k, setup.drafter.tree)
    return Look(plan, exports_of(setup, plan), k_map(setup, curve, sample), _middle(plan), how, full=True)


def exports_of(setup: Setup, plan: Plan) -> Exports:
    """The plan for every engine; where its own cannot run it, for none, and why."""
    try:
        return export_engines(plan, setup.model, setup.drafter)
    except InputError as error:
        return Exports({}, {plan.question.engine: str(error)})


def _per_replica(setup: Setup, replicas: int) -> int:
    """Requests that one replica gets: what it takes to settle and be measured, while that is affordable."""
    affordable = max(FEWEST, int(TOKENS / setup.lengths.output))
    if setup.scenario.concurrency is not None:
        affordable = max(affordable, CLIENT_TURNS * setup.scenario.concurrency)
    return min(default_requests(setup, replicas) // replicas + 1, affordable)


def _how(judged: Judged, per_replica: int) -> str:
    of = "" if judged.replicas == 1 else f" on one of {judged.replicas} replicas that are alike"
    simulated = f"{len(judged.drawn)} x {per_replica:,} requests simulated"
    once = ", once under those that cannot keep up" if any(len(one.runs) == 1 for one in judged.all) else ""
    return (
        f"Quick look: {simulated} under each policy{of}{once}. The full run simulates more, judges the "
        "answer on other step times and acceptance, and finds the largest load within the SLO."
    )


def _plan(base: Base, setup: Setup, judged: Judged, chosen: Evaluated, how: str) -> Plan:
    """The plan of a quick look; its last reason says how little was simulated."""
    off, curve = judged.named("off"), base.curve
    points = evidence.k_curve(setup, curve, chosen)
    batch = max(1, round(metrics.mean_batch(chosen.runs)))
    given = words.Given(
        table=base.table,
        per_replica={} if setup.rate is None else {text: one.qps for text, one in base.limits.items()},
        points=points,
        recorded_k=base.sample.recorded_k,
        band=None,
        acceptance=(),
        longer=longer_context(setup.latency_table, curve, batch, setup.lengths.context, setup.kv_tokens),
        within=None,
        peak=None,
        chosen_by="",
    )
    answer = words.answer(setup, judged, chosen, given)
    question = question_of(setup, judged, chosen)
    return Plan(
        question=question,
        answer=answer.model_copy(update={"why": (*answer.why, how)}),
        policies=tuple(result(setup, done, off) for done in judged.all),
        k_curve=points,
        roofline=evidence.roofline(setup),
        assumptions=evidence.assumptions(setup),
        scenario_hash=digest(question.model_dump(mode="json")),
        versions=versions(),
        evidence=None,
    )


def _as_moved(plan: Plan, state: State) -> Plan:
    """The plan with a word of the acceptance, where it was moved; its hash is then another too."""
    if state.acceptance == 0:
        return plan
    told = f"{state.acceptance:+d}% accepted drafts per step against {state.workload}"
    row = Assumption(name="acceptance moved", value=f"{state.acceptance:+d}%", kind="assumed", source=told)
    why = (f"Assumed: {told}.", *plan.answer.why)
    moved = {"scenario": plan.scenario_hash, "acceptance": state.acceptance}
    return plan.model_copy(
        update={
            "answer": plan.answer.model_copy(update={"why": why}),
            "assumptions": (row, *plan.assumptions),
            "scenario_hash": digest(moved),
        }
    )


def _middle(plan: Plan) -> tuple[float, float]:
    """Mean batch and context of the recommended policy's steps."""
    mine = next(one for one in plan.policies if one.name == plan.answer.policy)
    return mine.mean_batch, mine.mean_context
