"""Does the answer hold on the second source of GEMM times, and under other acceptance as plausible?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kplan.acceptance import to_json
from kplan.config.plan import Band
from kplan.plainjson import HeldText
from kplan.registry import PolicySpec
from kplan.search.choose import choose
from kplan.search.evaluate import Evaluated, evaluate, meets_slo, paired_speedup
from kplan.simulate import (
    POOL,
    UNBOUNDED,
    Drawn,
    Setup,
    draw_requests,
    is_off,
    on_calibration,
    sustained,
)
from kplan.workload.figures import plausible

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
    source = _citation(calibration.gemm.t0_s.provenance.source)
    return _judge(on_calibration(setup, calibration), source, chosen, rivals, drawn, sample, replicas)


def judge_acceptance(
    setup: Setup, chosen: Evaluated, rivals: Sequence[Evaluated], drawn: Sequence[Drawn], replicas: int
) -> tuple[Band, ...]:
    """Run the same policies under each model of acceptance that is as plausible as the one used.

    Args:
        rivals, drawn, replicas: as of :func:`judge_band`. The requests are the same but for their acceptance.

    Returns:
        Empty where acceptance was recorded, or its model rests on more than figures.
    """
    workload, proposer, seed = setup.workload, setup.scenario.proposer, setup.scenario.seed
    if workload is None:
        return ()
    bands = []
    for name, model in plausible(workload.model(proposer), workload):
        own = replace(workload, models={proposer: HeldText(to_json(model))})
        other = replace(setup, source=replace(setup.source, workload=own))
        requests = [
            draw_requests(other, len(one.prompt_len), seed + i, one.stretch) for i, one in enumerate(drawn)
        ]
        sample = draw_requests(other, POOL, seed)
        bands.append(_judge(other, name, chosen, rivals, requests, sample, replicas))
    return tuple(bands)


def _judge(
    other: Setup,
    source: str,
    chosen: Evaluated,
    rivals: Sequence[Evaluated],
    drawn: Sequence[Drawn],
    sample: Drawn,
    replicas: int,
) -> Band:
    """The chosen policy and its rivals on ``other``, whose difference to the setup judged is ``source``."""
    done = {}
    for spec in {one.spec.text: one.spec for one in [chosen, *rivals]}.values():
        limit = UNBOUNDED  # a rival whose queue grows is slow, so it is not preferred either
        if spec is chosen.spec and other.rate is not None:
            limit = sustained(other, spec, [sample]).of(replicas)
        done[spec.text] = evaluate(other, spec, drawn, replicas, limit)
    mine, off = done[chosen.spec.text], next(one for one in done.values() if is_off(one.spec))
    best = choose([one for one in done.values() if not one.saturated and meets_slo(other, one)])
    speedup = paired_speedup(off, mine)
    loss = None if best is None else mine.tpot_s / best.tpot_s - 1
    return Band(
        source=source,
        tpot_ms=None if math.isnan(mine.tpot_s) else mine.tpot_s * 1e3,
        speedup_vs_off=speedup[0] if speedup else None,
        policy=None if best is None else best.spec.text,
        flips=best is not None and best.spec.text != chosen.spec.text,
        loss=None if loss is None or math.isnan(loss) else loss,
    )


def _citation(source: str) -> str:
    """Where a table was published, which follows the name and digest of its file."""
    return source.partition("; ")[2] or source
