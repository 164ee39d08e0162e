"""The simulator's answer within a second: fewer requests and policies than ``recommend`` takes.

What a load does not change (profiles, prices, the rate that each policy sustains, requests) is kept, so that
a move of the load's or an SLO's slider only simulates. Of several replicas, which are alike behind a round
robin, one is simulated. The answer says so, and its intervals are as wide as its few requests make them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kplan import metrics
from kplan.config.evidence import KMap
from kplan.config.plan import Assumption, BatchRange, Plan
from kplan.config.scenario import check_one_proposer
from kplan.dashboard.kept import Kept
from kplan.dashboard.kmap import k_map
from kplan.dashboard.moved import with_acceptance
from kplan.dashboard.state import State
from kplan.errors import InputError
from kplan.export import Exports, export_engines
from kplan.provenance import digest, versions
from kplan.registry import PolicySpec
from kplan.search import evidence, words
from kplan.search.candidates import (
    WalkCurve,
    candidate_specs,
    greedy_table,
    longer_context,
    rates,
    walk_curve,
)
from kplan.search.choose import choose
from kplan.search.evaluate import Evaluated, check_room, evaluate, meets_slo, result, runnable
from kplan.search.recommend import Judged, answer_on, least_bad, question_of
from kplan.search.replicas import alone_may_meet, fewest
from kplan.simulate import (
    POOL,
    Drawn,
    Setup,
    Sustained,
    default_requests,
    draw_requests,
    prepare,
    sustained,
)
from kplan.telling import Tell

REPLICATIONS, FULL_REPLICATIONS = 4, 5
"""Seeds of a quick look, and of the whole ``recommend``."""
TOKENS = 1_500_000
"""Output tokens of one replication of one policy, about."""
FEWEST, FEWEST_POOL = 60, 512
"""Requests of a replica, and distinct ones drawn: at least."""
_LEFT_OUT = frozenset(("goodput", "oracle"))
"""Candidates that no engine runs: the whole ``recommend`` has them."""


@dataclass(frozen=True)
class Base:
    """What the load and the SLOs do not change.

    Attributes:
        setup: at any rate.
        table: the best K by batch in steady steps.
        specs: the policies compared; able: those that the engine runs.
        limits: the rate that one replica sustains under each.
    """

    setup: Setup
    sample: Drawn
    curve: WalkCurve
    table: tuple[BatchRange, ...]
    specs: tuple[PolicySpec, ...]
    able: tuple[PolicySpec, ...]
    limits: dict[str, Sustained]


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
    """Answers a :class:`State`, and keeps what the next one may need. Used by one thread at a time.

    Args:
        kept: setups, and draws, that are held.
    """

    def __init__(self, kept: int = 12) -> None:
        self._bases: Kept[State, Base] = Kept(kept)
        self._draws: Kept[tuple[State, int, int], Drawn] = Kept(2 * kept)

    def look(self, state: State) -> Look:
        """The answer.

        Raises:
            InputError: a combination that no profile covers.
            InfeasibleError: nothing fits, or no number of replicas meets the SLOs.
        """
        key, base = self._base(state)
        scenario = state.scenario(REPLICATIONS)
        setup = replace(base.setup, scenario=scenario.model_copy(update={"max_k": base.setup.scenario.max_k}))
        judged = self._judge(key, base, setup)
        chosen = judged.best or least_bad(setup, judged)
        how = _how(judged, _per_replica(setup, judged.replicas))
        plan = _as_moved(_plan(base, setup, judged, chosen, how), state)
        cells = k_map(base.setup, base.curve, base.sample)
        return Look(plan, exports_of(setup, plan), cells, _middle(plan), how, full=False)

    def _base(self, state: State) -> tuple[State, Base]:
        """What the load does not change, and the state that names it."""
        free = {"qps": State().qps, "slo_tpot": None, "slo_ttft": None}
        key = state.model_copy(update=free)
        return key, self._bases.get(key, lambda: _base(key))

    def _judge(self, key: State, base: Base, setup: Setup) -> Judged:
        """Every policy on the fewest replicas that serve the load."""
        done: dict[tuple[str, int], Evaluated] = {}

        def run(spec: PolicySpec, replicas: int) -> Evaluated:
            if (spec.text, replicas) not in done:
                limit = base.limits[spec.text].of(replicas)
                drawn = self._drawn(key, base, setup, replicas)
                done[spec.text, replicas] = evaluate(setup, spec, drawn, replicas, limit, simulated=1)
            return done[spec.text, replicas]

        def serves(one: Evaluated) -> bool:
            return not one.saturated and meets_slo(setup, one)

        def on(replicas: int) -> _Found:
            return _Found(replicas, next((spec for spec in able if serves(run(spec, replicas))), None))

        able = sorted(base.able, key=lambda spec: -base.limits[spec.text].qps)
        most = base.limits[able[0].text].qps
        replicas = fewest(setup, most, on, lambda: alone_may_meet(setup, able, base.sample)).replicas
        all_done = tuple(run(spec, replicas) for spec in base.specs)
        fit = tuple(one for one in all_done if one.spec in base.able and serves(one))
        return Judged(replicas, self._drawn(key, base, setup, replicas), all_done, fit, choose(fit))

    def _drawn(self, key: State, base: Base, setup: Setup, replicas: int) -> tuple[Drawn, ...]:
        """The requests of every replication: the first of as many as the next power of two."""
        n = replicas * _per_replica(setup, replicas)
        many = max(1024, 1 << (n - 1).bit_length())
        draws = [
            self._draws.get((key, many, seed), partial(draw_requests, base.setup, many, seed))
            for seed in range(REPLICATIONS)
        ]
        return tuple(one.take(n) for one in draws)


def full_look(state: State, tell: Tell) -> Look:
    """The answer of the whole ``recommend``.

    Args:
        tell: told what is being done; what it raises ends the run.

    Raises:
        InputError, InfeasibleError: as :meth:`Quick.look`.
    """
    check_one_proposer(state.proposer)
    tell("loading profiles and pricing steps")
    setup = with_acceptance(prepare(state.scenario(FULL_REPLICATIONS)), state.acceptance)
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


def _base(key: State) -> Base:
    """Load, price and find what every policy sustains."""
    check_one_proposer(key.proposer)
    setup = with_acceptance(prepare(key.scenario(REPLICATIONS)), key.acceptance)
    if setup.lengths.longest_output < 2:
        raise InputError("output length", 1, "no request emits a second token", "nothing can be speculated")
    sample = draw_requests(setup, _pool(setup), setup.scenario.seed)
    max_k, tree = setup.scenario.max_k, setup.drafter.tree
    curve = walk_curve(sample.trace, max_k, tree)
    table = greedy_table(rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context))
    specs = tuple(
        spec
        for spec in candidate_specs(table, max_k, tree)
        if spec.name not in _LEFT_OUT and (runnable(setup, spec) or spec.name != "sglang-ema")
    )
    check_room(setup, specs)
    able = tuple(spec for spec in specs if runnable(setup, spec))
    limits = {spec.text: sustained(setup, spec, [sample]) for spec in specs}
    return Base(setup, sample, curve, table, specs, able, limits)


def _pool(setup: Setup) -> int:
    """Distinct requests drawn: fewer of very long ones."""
    return int(np.clip(2 * TOKENS / setup.lengths.output, FEWEST_POOL, POOL))


def _per_replica(setup: Setup, replicas: int) -> int:
    """Requests that one replica gets: what it takes to settle and be measured, while that is affordable."""
    affordable = max(FEWEST, int(TOKENS / setup.lengths.output))
    return min(default_requests(setup, replicas) // replicas + 1, affordable)


def _how(judged: Judged, per_replica: int) -> str:
    of = "" if judged.replicas == 1 else f" on one of {judged.replicas} replicas that are alike"
    simulated = f"{len(judged.drawn)} x {per_replica:,} requests simulated"
    return (
        f"Quick look: {simulated} under each policy{of}. The full run simulates more, judges the answer on "
        "other step times and acceptance, and finds the largest load within the SLO."
    )


def _plan(base: Base, setup: Setup, judged: Judged, chosen: Evaluated, how: str) -> Plan:
    """The plan of a quick look; its last reason says how little was simulated."""
    off, curve = judged.named("off"), base.curve
    points = evidence.k_curve(setup, curve, chosen)
    batch = max(1, round(metrics.mean_batch(chosen.runs)))
    given = words.Given(
        table=base.table,
        per_replica={text: limit.qps for text, limit in base.limits.items()},
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
