"""What the answer would be on other figures than those it was worked out with, in words."""

from __future__ import annotations

from collections.abc import Sequence

from kplan.config.plan import Band, Stat
from kplan.search.candidates import TIE
from kplan.search.phrases import policy_text
from kplan.simulate import Setup
from kplan.workload.figures import known_by


def band_reason(setup: Setup, band: Band | None) -> list[str]:
    """Whether the choice flips on the second source of GEMM times."""
    if band is None:
        return []
    told = "it saturates" if band.tpot_ms is None else f"TPOT is {band.tpot_ms:.2f} ms"
    if band.speedup_vs_off is not None:
        told += f", {band.speedup_vs_off:.2f}x over no speculation"
    lead = f"On the other source of GEMM times ({band.source.split(',')[0]}) {told}"
    if not band.flips or band.policy is None:
        return [f"{lead}, and the choice holds."]
    other = policy_text(band.policy, setup.scenario.proposer)
    if band.loss is not None and band.loss <= TIE:
        return [f"{lead}: there {other} is as good within 1% and simpler, so either will do."]
    cost = "" if band.loss is None else f", {band.loss:.1%} faster"
    return [
        f"{lead}: there the choice flips to {other}{cost}. "
        "Calibrate on your own GPU to decide (kplan calibrate)."
    ]


def widened(tpot: Stat, acceptance: Sequence[Band]) -> tuple[float, float] | None:
    """The 95% interval of the mean TPOT, moved outwards to where other acceptance puts the mean."""
    if tpot.ci95 is None:
        return None
    moved = [0.0, *(each.tpot_ms - tpot.mean for each in acceptance if each.tpot_ms is not None)]
    return tpot.ci95[0] + min(moved), tpot.ci95[1] + max(moved)


def acceptance_reason(setup: Setup, acceptance: Sequence[Band]) -> list[str]:
    """What the answer would be under other acceptance that shows the same figures."""
    if not acceptance:
        return []
    held = [each.tpot_ms for each in acceptance if each.tpot_ms is not None]
    told = f"TPOT is {min(held):.2f} to {max(held):.2f} ms" if held else "it saturates"
    if held and len(held) < len(acceptance):
        told += " where it does not saturate"
    assert setup.workload is not None  # recorded acceptance leaves nothing open
    lead = (
        f"Only {known_by(setup.workload.model(setup.scenario.proposer))}. Under others that show the same "
        f"({', '.join(each.source for each in acceptance)}) {told}"
    )
    if setup.scenario.replications > 1:
        lead += ", which the interval of TPOT above includes"
    flips = [
        f"{policy_text(each.policy, setup.scenario.proposer)} ({each.source})"
        for each in acceptance
        if each.flips and each.policy is not None and (each.loss is None or each.loss > TIE)
    ]
    if not flips:
        return [f"{lead}, and the choice holds."]
    return [f"{lead}; the choice flips to {' or '.join(flips)}. Record traces to decide (--traces)."]
