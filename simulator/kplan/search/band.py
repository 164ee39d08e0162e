"""Does the answer hold on the second source of GEMM times?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kplan.config.plan import Band
from kplan.registry import PolicySpec
from kplan.search.choose import choose
from kplan.search.evaluate import Evaluated, evaluate, meets_slo, paired_speedup
from kplan.simulate import UNBOUNDED, Drawn, Setup, is_off, on_calibration, sustained

NEAR = 2
"""A fixed K may win on the other source when it is no further than this from the one chosen."""


def near(spec: PolicySpec, chosen: PolicySpec) -> bool:
    """Whether the policy may win in place of ``chosen``: all but fixed Ks far from a fixed choice."""
    ks = [int(one.text.removeprefix("fixed:")) for one in (spec, chosen) if one.name == "fixed"]
    return len(ks) < 2 or abs(ks[0] - ks[1]) <= NEAR


def judge_band(
    setup: Setup,
    chosen: Evaluated,
    rivals: Sequence[Evaluated],
    drawn: Sequence[Drawn],
    sample: Drawn,
    replicas: int,
) -> Band | None:
    """Run the chosen policy, its rivals and no speculation on the same requests under the other GEMM times.

    Args:
        rivals: the policies that might win there, ``off`` among them.
        drawn, sample, replicas: as the answer was judged on.

    Returns:
        None when the calibration has one source of GEMM times.
    """
    calibration = setup.latency.calibration.alternate()
    if calibration is None:
        return None
    other = on_calibration(setup, calibration)
    done = {}
    for spec in {one.spec.text: one.spec for one in [chosen, *rivals]}.values():
        limit = UNBOUNDED  # a rival whose queue grows is slow, so it is not preferred either
        if spec is chosen.spec and setup.rate is not None:
            limit = sustained(other, spec, [sample]).of(replicas)
        done[spec.text] = evaluate(other, spec, drawn, replicas, limit)
    mine, off = done[chosen.spec.text], next(one for one in done.values() if is_off(one.spec))
    best = choose([one for one in done.values() if not one.saturated and meets_slo(other, one)])
    speedup = paired_speedup(off, mine)
    loss = None if best is None else mine.tpot_s / best.tpot_s - 1
    return Band(
        source=_citation(calibration.gemm.t0_s.provenance.source),
        tpot_ms=None if math.isnan(mine.tpot_s) else mine.tpot_s * 1e3,
        speedup_vs_off=speedup[0] if speedup else None,
        policy=None if best is None else best.spec.text,
        flips=best is not None and best.spec.text != chosen.spec.text,
        loss=None if loss is None or math.isnan(loss) else loss,
    )


def _citation(source: str) -> str:
    """Where a table was published, which follows the name and digest of its file."""
    return source.partition("; ")[2] or source
