"""``kplan simulate``: one policy on one load, with no speculation beside it on the same requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kplan import metrics
from kplan.acceptance.joint import proposers_of
from kplan.config.plan import MixResult, PolicyResult
from kplan.config.scenario import Scenario
from kplan.engine import table_of
from kplan.policy import TablePolicy
from kplan.provenance import digest
from kplan.registry import PolicySpec, parse_policy
from kplan.search.compare import compare, unsteady_note
from kplan.search.evaluate import check_room, meets_slo, result, slo_share
from kplan.search.evidence import assumptions, caveats
from kplan.search.within import slo_rate
from kplan.simulate import (
    POOL,
    Recorder,
    Setup,
    draw_requests,
    is_off,
    prepare,
    recording,
    scenario_record,
    sustained,
)
from kplan.telling import Tell, silent

MAX_SEATS = 65_536
"""Largest batch that a scenario allows."""


@dataclass(frozen=True)
class SingleRun:
    """One policy's record beside that of ``off``, and what was simulated for it (``off`` not counted).

    Attributes:
        scenario_hash, seed: those of its records; with the same versions they give the same run.
        slo_share: of the requests, those that met every SLO given; 1 without one.
        files: what its records were written to.
        mix: who drafted, of a policy that chooses among several proposers; else None.
    """

    result: PolicyResult
    off: PolicyResult
    meets_slo: bool
    slo_share: float
    requests: int
    steps: int
    output_tokens: int
    notes: tuple[str, ...]
    scenario_hash: str
    seed: int
    files: tuple[Path, ...] = ()
    mix: MixResult | None = None


def simulate_one(scenario: Scenario, progress: Tell = silent, records: Path | None = None) -> SingleRun:
    """Simulate ``scenario.policy``.

    Args:
        records: folder for the records of every step and request (see kplan.simulate.recording).

    Raises:
        InputError: a name or a combination that no profile covers, or a folder that cannot be written.
        InfeasibleError: the weights do not fit.
    """
    if records is None:
        return _simulate(scenario, progress, None)
    reads = [path for path in (scenario.replay, scenario.traces) if path is not None]
    with recording(records, reads) as recorder:
        return _simulate(scenario, progress, recorder)


def _simulate(scenario: Scenario, progress: Tell, recorder: Recorder | None) -> SingleRun:
    spec, off = parse_policy(scenario.policy), parse_policy("off")
    progress("loading profiles and pricing steps")
    # the server is started with the largest K that the policy names, as num_speculative_tokens would be
    largest = max(scenario.max_k, largest_k(spec))
    setup = prepare(scenario.model_copy(update={"max_k": largest}))
    spec, dropped = as_served(setup, spec)
    replicas = scenario.replicas or 1
    specs = [off] if spec.text == off.text else [off, spec]
    check_room(setup, specs)
    limits = {}
    if setup.rate is not None:
        samples = [draw_requests(setup, POOL, scenario.seed + i) for i in range(scenario.replications)]
        progress("finding the sustained rates")
        limits = {each.text: sustained(setup, each, samples) for each in specs}
    drawn, done = compare(setup, specs, replicas, limits, progress)
    mine = done[-1]
    progress("finding the largest rate within the SLOs")
    within = slo_rate(setup, mine, drawn, replicas)
    notes = (
        *dropped,
        *_who_drafts(setup, spec),
        *unsteady_note(setup, replicas, drawn, mine),
        *caveats(setup, drawn[0].recorded_k),
    )
    if recorder is not None:
        progress("writing the records")
        rests_on = [one.model_dump(mode="json") for one in assumptions(setup)]
        recorder.write(setup, spec, drawn, replicas, {"assumptions": rests_on, "notes": list(notes)})
    return SingleRun(
        result=result(setup, mine, done[0], within),
        off=result(setup, done[0], done[0]),
        meets_slo=meets_slo(setup, mine),
        slo_share=slo_share(setup, mine),
        requests=sum(run.requests for run in mine.runs),
        steps=sum(run.steps for run in mine.runs),
        output_tokens=sum(run.output_tokens for run in mine.runs),
        notes=notes,
        scenario_hash=digest(scenario_record(setup, spec, drawn, replicas)),
        seed=scenario.seed,
        files=() if recorder is None else recorder.paths,
        mix=metrics.mix_result(mine.runs, drawn[0].proposers) if spec.info.combines else None,
    )


def _who_drafts(setup: Setup, spec: PolicySpec) -> list[str]:
    """A sentence where several proposers are joined and the policy does not choose among them."""
    if setup.mix is None or spec.info.combines or is_off(spec):
        return []
    last = proposers_of(setup.scenario.proposer)[-1]
    return [
        f"{spec.text} does not choose among {setup.scenario.proposer}: it drafts with {last}, the last "
        "named, on a server that holds no other."
    ]


def as_served(setup: Setup, spec: PolicySpec) -> tuple[PolicySpec, list[str]]:
    """The policy that the server runs in place of ``spec``, and a sentence when it is another.

    With data-parallel ranks vLLM drops a table and drafts the K that it was started with, the largest.
    """
    policy = spec.build()
    if setup.scenario.dp == 1 or spec.name in ("off", "fixed") or not isinstance(policy, TablePolicy):
        return spec, []
    served = parse_policy(f"fixed:{table_of(policy, setup.max_num_seqs)[1:].max()}")
    return served, [
        f"{setup.engine.name} drops {spec.text} with data-parallel ranks and always drafts its largest K: "
        f"{served.text} was simulated."
    ]


def largest_k(spec: PolicySpec) -> int:
    """The largest K that the policy itself names; 0 for one that takes whatever ``max_k`` allows."""
    policy = spec.build()
    if isinstance(policy, TablePolicy):
        return int(table_of(policy, MAX_SEATS)[1:].max())
    named = getattr(policy, "max_k", 0)
    return named if isinstance(named, int) else 0
