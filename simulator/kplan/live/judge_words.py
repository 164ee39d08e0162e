"""A verification told: the answer in a sentence, what to do next, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kplan.live.judge import Figure, Verdict
from kplan.live.judge_cause import Cause

if TYPE_CHECKING:
    from kplan.live.verify import Verification

_FIRST = ("tpot_ms", "acceptance_length", "output_tok_s", "ttft_ms", "step_ms")
"""Figures that a sentence is about, the most telling first."""


def words(found: Verification) -> str:
    """The answer in one sentence."""
    by = {verdict: [one for one in found.figures if one.verdict is verdict] for verdict in Verdict}
    if found.verdict is Verdict.AGREES:
        return f"The server does what the plan said: all {len(found.figures)} figures agree."
    if found.verdict is Verdict.UNSURE:
        titles = ", ".join(one.kind.title for one in by[Verdict.UNSURE])
        return (
            f"Nothing is off, and {len(by[Verdict.AGREES])} of {len(found.figures)} figures agree; of "
            f"{titles} this run cannot tell: send more --requests, on a quieter machine."
        )
    off = sorted(
        by[Verdict.OFF], key=lambda one: _FIRST.index(one.name) if one.name in _FIRST else len(_FIRST)
    )
    cause = _joined([str(one) for one in found.attribution.causes])
    enough = "" if found.attribution.enough else ", which does not explain all of it"
    return f"{_said(off[0])}; what the plan has wrong is {cause}{enough}."


def _said(one: Figure) -> str:
    unit = f" {one.kind.unit}" if one.kind.unit else ""
    title = one.kind.title[0].upper() + one.kind.title[1:]
    digits = one.kind.digits
    return (
        f"{title}: {one.measured.value:,.{digits}f}{unit} instead of {one.predicted:,.{digits}f} "
        f"({one.words})"
    )


def _joined(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def suggestions(found: Verification) -> Iterator[str]:
    """What to do about each cause, a sentence each."""
    causes = found.attribution.causes
    asked = found.plan.question
    if Cause.ACCEPTANCE in causes:
        yield (
            "acceptance: does the server load the drafter that the plan is for "
            f"({asked.drafter or asked.proposer})? If so, record it (kplan record --url URL --prompts FILE "
            "--out run.parquet, kplan traces workload), and plan again"
        )
    if Cause.STEP_TIME in causes:
        factor = found.attribution.slower
        times = "" if factor is None else f" (steps take {factor:.2f} times as long as planned)"
        yield (
            f"step time{times}: calibrate on this server (kplan calibrate --url URL --out here.yaml), and "
            "plan again with --calibration here.yaml"
        )
    if Cause.FRONT_END in causes and found.attribution.front_s is not None:
        yield (
            f"the front end: a first token spends {1e3 * found.attribution.front_s:.0f} ms in the client, "
            "HTTP, the tokenizer and the API server, which are not simulated: measure from another machine, "
            "and see whether the API server is short of cores (vLLM --api-server-count)"
        )
    if Cause.SCHEDULING in causes:
        k = found.attribution.k
        seen = "" if k is None else f" (it always drafts {k})"
        yield (
            f"scheduling{seen}: compare the server's flags with the exported config (kplan export): K and "
            "its table, max_num_seqs, max_num_batched_tokens, prefix caching"
        )


def record_of(found: Verification) -> dict[str, Any]:
    """As JSON."""
    cause = found.attribution
    return {
        "verdict": str(found.verdict),
        "words": words(found),
        "causes": [str(one) for one in cause.causes],
        "causes_explain_all": cause.enough,
        "step_time_factor": cause.slower,
        "front_end_ms": None if cause.front_s is None else 1e3 * cause.front_s,
        "k_seen": cause.k,
        "suggestions": list(suggestions(found)),
        "server": {
            "engine": found.server.engine,
            "version": found.server.version,
            "model": found.server.model,
        },
        "plan": {"scenario_hash": found.plan.scenario_hash, "policy": found.plan.answer.policy},
        "load": found.load,
        "load_generator": found.generator,
        "duration_s": found.duration_s,
        "findings": list(found.findings),
        "figures": [_figure_record(one) for one in found.figures],
        "under_the_causes": [_figure_record(one) for one in cause.figures] if cause.causes else [],
        "acceptance_by_position": [
            {"position": at, "predicted": said, "measured": came}
            for at, (said, came) in enumerate(found.positions, start=1)
        ],
        "notes": list(found.notes),
        "versions": found.versions,
    }


def _figure_record(one: Figure) -> dict[str, Any]:
    half = one.measured.half
    value = one.measured.value
    return {
        "name": one.name,
        "unit": one.kind.unit,
        "predicted": one.predicted,
        "measured": value,
        "measured_ci95": None if half is None else [value - half, value + half],
        "change": one.change,
        "tolerance": one.tolerance,
        "verdict": str(one.verdict),
    }
