"""``kplan recommend``: compare the policies on one load, size the replicas, and answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kplan import metrics
from kplan.config.plan import Plan, Question
from kplan.config.scenario import Scenario, check_one_proposer
from kplan.errors import InputError
from kplan.provenance import digest, file_digest, versions
from kplan.registry import PolicySpec
from kplan.search import evidence, words
from kplan.search.band import judge_acceptance, judge_band, near
from kplan.search.candidates import (
    candidate_specs,
    greedy_table,
    longer_context,
    rates,
    walk_curve,
)
from kplan.search.choose import choose, simplicity
from kplan.search.compare import compare
from kplan.search.evaluate import (
    Evaluated,
    check_room,
    meets_slo,
    result,
    runnable,
    why_not_runnable,
)
from kplan.search.peaks import peak_of
from kplan.search.pictures import Seen, evidence_of
from kplan.search.replicas import alone_may_meet, fewest
from kplan.search.within import slo_rate
from kplan.simulate import (
    POOL,
    Drawn,
    Setup,
    Sustained,
    draw_requests,
    is_off,
    prepare,
    sustained,
)
from kplan.telling import Tell, silent


@dataclass(frozen=True)
class Wanted:
    """A policy that was chosen elsewhere; ``why`` says by what, in a sentence."""

    spec: PolicySpec
    why: str


@dataclass(frozen=True)
class Judged:
    """Every policy evaluated at one number of replicas, and the choice among those the engine can run.

    Attributes:
        drawn: the requests of each replication.
        fit: those that the engine can run, that keep up and meet the SLOs.
        best: None when every policy that the engine can run is saturated or misses the SLOs.
    """

    replicas: int
    drawn: tuple[Drawn, ...]
    all: tuple[Evaluated, ...]
    fit: tuple[Evaluated, ...]
    best: Evaluated | None

    def named(self, text: str) -> Evaluated:
        """The evaluated policy of that text."""
        return next(done for done in self.all if done.spec.text == text)


def recommend(scenario: Scenario, progress: Tell = silent) -> Plan:
    """Answer "what K at this load?".

    Args:
        progress: told, in a few words, what is being done.

    Raises:
        InputError: a name or a combination that no profile covers.
        InfeasibleError: nothing fits, or no number of replicas up to 256 meets the SLOs.
    """
    return answer_on(_prepared(scenario, progress), progress)


def answer_on(setup: Setup, progress: Tell = silent) -> Plan:
    """As :func:`recommend`, of a scenario that was put together before.

    Raises:
        InputError, InfeasibleError: as there.
    """
    return _plan(setup, None, progress)


def plan_for(scenario: Scenario, wanted: Wanted, progress: Tell = silent) -> Plan:
    """The plan of a policy that was chosen elsewhere, beside those that :func:`recommend` compares.

    Raises:
        InputError, InfeasibleError: as :func:`recommend`; or a policy that the engine does not run.
    """
    return _plan(_prepared(scenario, progress), wanted, progress)


def _prepared(scenario: Scenario, progress: Tell) -> Setup:
    check_one_proposer(scenario.proposer)
    progress("loading profiles and pricing steps")
    return prepare(scenario)


def _plan(setup: Setup, wanted: Wanted | None, progress: Tell) -> Plan:
    if setup.lengths.longest_output < 2:
        raise InputError("output length", 1, "no request emits a second token", "nothing can be speculated")
    sample = draw_requests(setup, POOL, setup.scenario.seed)
    max_k, tree = setup.scenario.max_k, setup.drafter.tree
    curve = walk_curve(sample.trace, max_k, tree)
    rate = rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context)
    table = greedy_table(rate)
    specs = candidate_specs(table, max_k, tree)
    if wanted is not None:
        if why := why_not_runnable(setup, wanted.spec):
            raise InputError("policy", wanted.spec.text, why, "plan for one that it runs")
        specs = list(dict.fromkeys([*specs, wanted.spec]))
    check_room(setup, specs)
    sizing = Sizing(setup, specs, sample, progress)
    judged = sizing.judge()
    off = judged.named("off")
    if wanted is not None:
        chosen = judged.named(wanted.spec.text)
        judged = replace(judged, best=chosen if chosen in judged.fit else None)
    else:
        chosen = judged.best or least_bad(setup, judged)
    points = evidence.k_curve(setup, curve, chosen)
    question = question_of(setup, judged, chosen)
    progress("judging the answer on the other source of step times")
    rivals = [one for one in judged.all if runnable(setup, one.spec) and near(one.spec, chosen.spec)]
    band = judge_band(setup, chosen, rivals, judged.drawn, sample, judged.replicas)
    acceptance = judge_acceptance(setup, chosen, rivals, judged.drawn, judged.replicas)
    batch = max(1, round(metrics.mean_batch(chosen.runs)))
    longer = longer_context(setup.latency_table, curve, batch, setup.lengths.context, setup.kv_tokens)
    progress("finding the largest rate within the SLOs")
    within = slo_rate(setup, chosen, judged.drawn, judged.replicas)
    peak = peak_of(setup, judged.drawn[0])
    given = words.Given(
        table, sizing.per_replica, points, sample.recorded_k, band, acceptance, longer, within, peak,
        "" if wanted is None else wanted.why,
    )  # fmt: skip
    answer = words.answer(setup, judged, chosen, given)
    seen = Seen(curve, table, sample, judged.all, chosen, judged.replicas)
    return Plan(
        question=question,
        answer=answer,
        policies=tuple(result(setup, done, off, within if done is chosen else None) for done in judged.all),
        k_curve=points,
        roofline=evidence.roofline(setup),
        assumptions=evidence.assumptions(setup),
        scenario_hash=digest(question.model_dump(mode="json")),
        versions=versions(),
        evidence=evidence_of(setup, seen, progress),
    )


class Sizing:
    """Finds the replicas that a load needs.

    Args:
        specs: the policies compared.
        sample: requests of the scenario's own seed; the sustained rates are measured on them and on those of
            the other replications' seeds.

    Attributes:
        per_replica: sustained requests/s of one replica by policy text; empty in a closed loop.
    """

    def __init__(self, setup: Setup, specs: Sequence[PolicySpec], sample: Drawn, progress: Tell) -> None:
        self._setup, self._specs, self._sample, self._progress = setup, specs, sample, progress
        self._runnable = [spec for spec in specs if runnable(setup, spec)]
        self._sustained: dict[str, Sustained] = {}
        scenario = setup.scenario
        if setup.rate is not None:
            seeds = range(scenario.seed + 1, scenario.seed + scenario.replications)
            samples = [sample, *(draw_requests(setup, POOL, seed) for seed in seeds)]
            for i, spec in enumerate(specs):
                progress(f"sustained rate of {spec.text}", i, len(specs))
                self._sustained[spec.text] = sustained(setup, spec, samples)
        self.per_replica = {text: rate.qps for text, rate in self._sustained.items()}

    def judge(self) -> Judged:
        """Judge the policies on the replicas asked for, or on the fewest that serve the load within the SLOs.

        Raises:
            InfeasibleError: no number of replicas up to MAX_REPLICAS meets the SLOs.
        """
        setup, scenario = self._setup, self._setup.scenario
        if scenario.replicas is not None or setup.rate is None:
            return self._on(scenario.replicas or 1)
        best = max(self.per_replica[spec.text] for spec in self._runnable)
        return fewest(setup, best, self._on, lambda: alone_may_meet(setup, self._runnable, self._sample))

    def _on(self, replicas: int) -> Judged:
        setup = self._setup
        drawn, done = compare(setup, self._specs, replicas, self._sustained, self._progress)
        fit = [
            one for one in done if one.spec in self._runnable and not one.saturated and meets_slo(setup, one)
        ]
        return Judged(replicas, drawn, done, tuple(fit), choose(fit))


def least_bad(setup: Setup, judged: Judged) -> Evaluated:
    """When nothing serves the load: the runnable policy that sustains most."""
    able = [one for one in judged.all if runnable(setup, one.spec)]
    return max(able, key=lambda one: (one.max_qps, -simplicity(one.spec)[0]))


def question_of(setup: Setup, judged: Judged, chosen: Evaluated) -> Question:
    """What was asked, as it was judged."""
    s = setup.scenario
    replicas = judged.replicas if setup.rate is None else None
    return Question(
        qps=s.qps,
        concurrency=s.concurrency,
        replay=s.replay.name if s.replay else None,
        replay_hash=file_digest(s.replay) if s.replay else None,
        columns=s.columns,
        arrivals=s.arrivals,
        burstiness=s.burstiness,
        ramp_to_qps=s.ramp_to_qps,
        think_s=s.think_s,
        model=s.model,
        hardware=s.hardware,
        calibration=s.calibration,
        tp=s.tp,
        dp=s.dp,
        quantization=s.quantization,
        kv_cache_dtype=s.kv_cache_dtype,
        proposer=s.proposer,
        drafter=s.drafter,
        workload=s.workload,
        traces=s.traces.name if s.traces else None,
        traces_hash=file_digest(s.traces) if s.traces else None,
        dataset=s.dataset,
        prompt_tokens=s.prompt_tokens,
        output_tokens=s.output_tokens,
        gpu_memory_utilization=s.gpu_memory_utilization,
        engine=s.engine,
        async_scheduling=s.async_scheduling,
        enforce_eager=s.enforce_eager,
        slo_tpot_ms=s.slo_tpot_ms,
        slo_ttft_ms=s.slo_ttft_ms,
        replicas=s.replicas if s.replicas is not None else replicas,
        router=s.router,
        max_k=s.max_k,
        max_num_seqs=setup.max_num_seqs_off if is_off(chosen.spec) else setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        max_model_len=s.max_model_len,
        prefix_caching=s.prefix_caching,
        requests=len(judged.drawn[0].prompt_len),
        replications=s.replications,
        seed=s.seed,
    )
