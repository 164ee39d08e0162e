"""``kplan recommend``: compare the policies on one load, size the replicas, and answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kplan.config.plan import BatchRange, Plan, Question
from kplan.config.scenario import Scenario
from kplan.errors import InfeasibleError, InputError
from kplan.metrics import attainment
from kplan.provenance import digest, versions
from kplan.registry import PolicySpec
from kplan.search import evidence, words
from kplan.search.candidates import (
    candidate_specs,
    greedy_table,
    mean_context,
    rates,
    walk_curve,
)
from kplan.search.evaluate import Evaluated, capacity, evaluate, paired_speedup, result
from kplan.simulate import Drawn, Setup, default_requests, draw_requests, prepare, with_load

TIE = 0.01
"""Mean TPOTs within this share of the best count as equal: the simpler policy wins."""
ATTAINMENT = 0.9
"""Share of requests that must meet the SLOs for a policy to meet them."""
MAX_REPLICAS = 256


@dataclass(frozen=True)
class Judged:
    """Every policy evaluated at one number of replicas, and the choice among those the engine can run."""

    replicas: int
    all: tuple[Evaluated, ...]
    best: Evaluated | None
    """None when every policy that the engine can run is saturated or misses the SLOs."""

    def named(self, text: str) -> Evaluated:
        """The evaluated policy of that text."""
        return next(done for done in self.all if done.spec.text == text)


def recommend(scenario: Scenario, progress: Callable[[str], None] = lambda _: None) -> Plan:
    """Answer "what K at this load?".

    Args:
        progress: told, in a few words, what is being done.

    Raises:
        InputError: a name or a combination that no profile covers.
        InfeasibleError: nothing fits, or no number of replicas up to 256 meets the SLOs.
    """
    progress("loading profiles and pricing steps")
    setup = prepare(scenario)
    n = default_requests(setup)
    drawn = [draw_requests(setup, n, scenario.seed + i) for i in range(scenario.replications)]
    curve = walk_curve([one.trace for one in drawn], scenario.max_k)
    context = mean_context(drawn[0].prompt_len, drawn[0].output_len)
    table = greedy_table(rates(setup.latency_table, curve, setup.max_num_seqs, context))
    specs = candidate_specs(table, scenario.max_k)
    judged, limits = _size(setup, specs, drawn, progress)
    off = judged.named("off")
    chosen = judged.best or _least_bad(judged, setup.engine.name)
    points = evidence.k_curve(setup, curve, chosen, context)
    question = _question(setup, n, judged.replicas)
    answer = words.answer(setup, judged, chosen, table, limits, points)
    return Plan(
        question=question,
        answer=answer,
        policies=tuple(result(setup, done, off, setup.engine.name) for done in judged.all),
        k_curve=points,
        roofline=evidence.roofline(setup),
        assumptions=evidence.assumptions(setup),
        scenario_hash=digest(question.model_dump(mode="json")),
        versions=versions(),
    )


def _size(
    setup: Setup, specs: Sequence[PolicySpec], drawn: Sequence[Drawn], progress: Callable[[str], None]
) -> tuple[Judged, dict[str, float]]:
    """Evaluate at the replicas asked for, or at the fewest that serve the load and meet the SLOs.

    Returns the verdict and the sustained requests/s of ONE replica by policy text.
    """
    scenario = setup.scenario
    per_replica: dict[str, float] = {}
    if scenario.qps is not None:
        for spec in specs:
            progress(f"sustained rate of {spec.text}")
            per_replica[spec.text] = capacity(setup, spec, drawn[0])
    if scenario.replicas is not None or scenario.qps is None:
        replicas = scenario.replicas or 1
        return _judge(setup, specs, drawn, replicas, per_replica, progress), per_replica
    runnable = [per_replica[s.text] for s in specs if setup.engine.name in s.info.engines]
    replicas = max(1, math.ceil(scenario.qps / max(runnable)))
    while replicas <= MAX_REPLICAS:
        judged = _judge(setup, specs, drawn, replicas, per_replica, progress)
        if judged.best is not None:
            return judged, per_replica
        if not _more_helps(setup, specs, drawn):
            break
        replicas += max(1, replicas // 4)
    raise InfeasibleError(
        f"no number of replicas up to {MAX_REPLICAS} meets {words.slo_text(scenario)}: even one request at a "
        "time misses it; loosen the SLO, use more GPUs per replica (--tp) or a faster drafter"
    )


def _more_helps(setup: Setup, specs: Sequence[PolicySpec], drawn: Sequence[Drawn]) -> bool:
    """Whether any policy that the engine can run meets the SLOs on a nearly idle replica."""
    alone = with_load(setup, qps=None, concurrency=1)
    first = drawn[0].take(40)
    runnable = [s for s in specs if setup.engine.name in s.info.engines]
    return any(_meets(alone, evaluate(alone, spec, [first], 1, math.inf)) for spec in runnable)


def _judge(
    setup: Setup,
    specs: Sequence[PolicySpec],
    drawn: Sequence[Drawn],
    replicas: int,
    per_replica: dict[str, float],
    progress: Callable[[str], None],
) -> Judged:
    clients = setup.scenario.concurrency
    if clients is not None and clients < replicas:
        raise InputError(
            "--replicas", replicas, f"--concurrency {clients} gives some of them no client",
            f"use at most {clients}",
        )  # fmt: skip
    done = []
    for spec in specs:
        progress(f"simulating {spec.text} on {replicas} replica{'s' if replicas > 1 else ''}")
        limit = per_replica.get(spec.text, math.inf) * replicas
        done.append(evaluate(setup, spec, drawn, replicas, limit))
    fit = [
        one
        for one in done
        if setup.engine.name in one.spec.info.engines and not one.saturated and _meets(setup, one)
    ]
    return Judged(replicas, tuple(done), choose(fit))


def choose(fit: Sequence[Evaluated]) -> Evaluated | None:
    """The lowest mean TPOT; within 1% of it, or when the paired interval holds 1, the simplest policy."""
    fit = [one for one in fit if math.isfinite(one.tpot_s)]
    if not fit:
        return None
    best = min(fit, key=lambda one: one.tpot_s)

    def as_good(one: Evaluated) -> bool:
        if one.tpot_s <= best.tpot_s * (1 + TIE):
            return True
        pair = paired_speedup(one, best)
        return pair is not None and pair[1][0] <= 1.0

    return min((one for one in fit if as_good(one)), key=lambda one: simplicity(one.spec))


def simplicity(spec: PolicySpec) -> tuple[int, int]:
    """Sort key: off, then fixed by K, then tables, then policies that adapt while they run."""
    name, _, rest = spec.text.partition(":")
    if name == "off":
        return 0, 0
    if name == "fixed":
        return 1, int(rest)
    return (2, rest.count(",")) if name == "table" else (3, 0)


def _least_bad(judged: Judged, engine: str) -> Evaluated:
    """When nothing serves the load: the runnable policy that sustains most."""
    runnable = [one for one in judged.all if engine in one.spec.info.engines]
    return max(runnable, key=lambda one: (one.max_qps, -simplicity(one.spec)[0]))


def _meets(setup: Setup, done: Evaluated) -> bool:
    tpot, ttft = setup.scenario.slo_tpot_ms, setup.scenario.slo_ttft_ms
    if tpot is None and ttft is None:
        return True
    shares = [attainment(run, tpot and tpot / 1e3, ttft and ttft / 1e3) for run in done.runs]
    return float(np.mean(shares)) >= ATTAINMENT


def _question(setup: Setup, requests: int, replicas: int) -> Question:
    s = setup.scenario
    return Question(
        qps=s.qps,
        concurrency=s.concurrency,
        model=s.model,
        hardware=s.hardware,
        tp=s.tp,
        proposer=s.proposer,
        workload=s.workload,
        traces=s.traces.name if s.traces else None,
        engine=s.engine,
        slo_tpot_ms=s.slo_tpot_ms,
        slo_ttft_ms=s.slo_ttft_ms,
        replicas=s.replicas if s.replicas is not None else (replicas if s.qps is None else None),
        max_k=s.max_k,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        requests=requests,
        replications=s.replications,
        seed=s.seed,
    )


__all__ = ["BatchRange", "Judged", "choose", "recommend", "simplicity"]
