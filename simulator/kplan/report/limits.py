"""What a reader must know of this answer before relying on it, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from kplan.config.plan import Plan
from kplan.report.text import number

_NAMED = 6
"""Assumed figures that are named."""


def limits(plan: Plan) -> list[str]:
    """Those that the answer's own figures show, the most telling first."""
    return list(dict.fromkeys(_limits(plan)))


def _limits(plan: Plan) -> Iterator[str]:
    answer, asked = plan.answer, plan.question
    here = next((one for one in plan.policies if one.name == answer.policy), None)
    if answer.saturated:
        yield "The load is not sustained: its queue grows, so no latency is given for it."
    elif not answer.feasible:
        yield "No policy that the engine runs serves the load as asked; what is named comes closest."
    if here is not None and not here.steady:
        yield "The run had not settled: its means hold some of the warm-up. Give more --requests."
    if asked.replications == 1:
        yield "One replication: no interval can be given. Use --replications 5."
    yield from plan.evidence.limits if plan.evidence else ()
    if answer.band is not None and answer.band.flips:
        yield "On the other source of step times another policy is best: try both on the machine."
    if any(band.flips for band in answer.acceptance):
        yield "Under acceptance that is as plausible another policy is best: record your own traces."
    if here is not None and here.preemptions:
        yield "The KV cache ran full and requests were preempted; small changes of memory move the answer."
    assumed = [item.name for item in plan.assumptions if item.kind == "assumed"]
    if assumed:
        named = ", ".join(assumed[:_NAMED]) + (" and others" if len(assumed) > _NAMED else "")
        yield f"{len(assumed)} of {len(plan.assumptions)} figures are assumed, not measured: {named}."
    yield from _closed_form(plan)
    yield "Times are the engine's: network, tokenizing and streaming come on top. Sampling is greedy."


def _closed_form(plan: Plan) -> Iterator[str]:
    """How far the closed forms are from the simulation, where both know the load asked about."""
    found = plan.evidence and plan.evidence.sensitivity
    if not found:
        return
    told = (
        "What would change the answer, the K map and the Pareto front rest on closed forms: requests all "
        "alike, in a batch that does not vary"
    )
    here = next((one.tpot_ms for one in plan.policies if one.name == plan.answer.policy), None)
    if here is None or found.closed_ms is None:
        yield f"{told}."
    else:
        yield (
            f"{told}. For the load asked about they give a TPOT of {number(found.closed_ms)} ms, "
            f"{100 * (found.closed_ms / here.mean - 1):+.0f}% beside the simulation."
        )
