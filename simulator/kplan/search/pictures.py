"""What the pictures of a report are drawn from (:mod:`kplan.config.evidence`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import walk
from kplan.config.evidence import Depth, Evidence, Front, FrontPoint, KMap, SloCurve
from kplan.config.plan import BatchRange
from kplan.search.candidates import WalkCurve, best_k
from kplan.search.evaluate import Evaluated, batch_quantiles
from kplan.search.evidence import caveats
from kplan.search.sensitivity import sensitivity
from kplan.search.steady import Steady, spaced, steady
from kplan.search.sweep import shown, sweep
from kplan.simulate import Drawn, Setup

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MAP_BATCHES, MAP_CONTEXTS, LEAST_CONTEXT = 28, 12, 128
"""Cells of the K map, and its smallest context."""
SLO_SHARES = (0.0, 0.01, 0.05, *(round(0.1 * i, 1) for i in range(1, 10)), 0.95, 0.99, 1.0)
FRONT_POINTS = 24


@dataclass(frozen=True)
class Seen:
    """What an answer was found from.

    Attributes:
        curve: tokens and verified drafts per request and step at each K.
        table: the best K by batch in steady steps.
        sample: requests of the scenario's own seed.
        done: every policy at the load asked about.
    """

    curve: WalkCurve
    table: tuple[BatchRange, ...]
    sample: Drawn
    done: tuple[Evaluated, ...]
    chosen: Evaluated
    replicas: int


def evidence_of(setup: Setup, seen: Seen, progress: Callable[[str], None]) -> Evidence:
    """Everything that a report draws beside the policies compared.

    Args:
        progress: told, in a few words, what is being done.
    """
    chosen = seen.chosen
    policies = shown(seen.done, chosen, seen.table[0].k, seen.table[-1].k)
    progress("simulating other loads")
    swept = sweep(setup, policies, chosen, seen.replicas)
    progress("asking what would change the answer")
    load = steady(setup, seen.curve, float(seen.sample.prompt_len.mean()))
    limits = caveats(setup, seen.sample.recorded_k)
    if setup.log is not None and setup.log.prefix is not None:
        limits.append("The closed forms leave the prefix cache out: they compute every prompt in full.")
    if swept is None:
        limits.append("Other loads were not simulated: of a log, or where it takes longer than the answer.")
    return Evidence(
        sweep=swept,
        k_map=k_map(load, chosen, setup.model.max_context),
        acceptance=depths(seen.sample, setup.scenario.max_k) if setup.drafter.tree is None else (),
        slo=tuple(slo_curve(one) for one in policies if not one.saturated),
        front=front(load, setup.scenario.tp),
        sensitivity=sensitivity(setup, load, seen.done, chosen, seen.replicas),
        limits=tuple(limits),
    )


def k_map(load: Steady, chosen: Evaluated, longest: int | None) -> KMap:
    """The best fixed K of a steady decode step by batch and context.

    Args:
        longest: context of the model, None where it is not known.
    """
    batches = spaced(1, load.seats, MAP_BATCHES)
    contexts = spaced(LEAST_CONTEXT, max(LEAST_CONTEXT, min(longest or load.room, load.room)), MAP_CONTEXTS)
    low, high = batch_quantiles(chosen, 0.05, 0.95)
    return map_of(load, batches, contexts, (low, high) if high > 0 else None)


def map_of(load: Steady, batches: I64, contexts: I64, visited: tuple[int, int] | None = None) -> KMap:
    """The best fixed K of a steady decode step in every cell of (B,) batches and (C,) contexts."""
    batch, context = (grid.ravel() for grid in np.meshgrid(batches, contexts))
    step_s = load.decode_s(batch, context.astype(np.float64))
    rate = batch[:, None] * load.tokens / step_s
    best = [best_k(row) for row in rate]
    gain = [float(row[k] / row[0]) for row, k in zip(rate, best, strict=True)]
    fits = (batch * context <= load.room).tolist()
    width = len(batches)
    rows = [slice(i, i + width) for i in range(0, len(batch), width)]
    some = [k if fit else None for k, fit in zip(best, fits, strict=True)]
    gains = [value if fit else None for value, fit in zip(gain, fits, strict=True)]
    return KMap(
        batches=tuple(batches.tolist()),
        contexts=tuple(contexts.tolist()),
        best_k=tuple(tuple(some[row]) for row in rows),
        gain=tuple(tuple(gains[row]) for row in rows),
        visited=visited,
    )


def depths(sample: Drawn, max_k: int) -> tuple[Depth, ...]:
    """Acceptance by depth along the walk of ``max_k`` drafts a step."""
    found = walk(sample.trace, max_k)
    before, out = float(found.steps), []
    for depth, kept in enumerate(found.accepted_by_depth.tolist(), start=1):
        if before == 0:
            break
        out.append(
            Depth(
                draft=depth,
                kept=kept / found.steps,
                conditional=kept / before,
                known=depth <= sample.recorded_k,
            )
        )
        before = kept
    return tuple(out)


def slo_curve(done: Evaluated) -> SloCurve:
    """Quantiles of TPOT and TTFT over the requests of a policy that keeps up."""

    def quantiles(values: Sequence[F64]) -> tuple[float, ...]:
        pooled = np.concatenate(values)
        pooled = pooled[np.isfinite(pooled)]
        return tuple((np.quantile(pooled, SLO_SHARES) * 1e3).tolist()) if len(pooled) else ()

    return SloCurve(
        policy=done.spec.text,
        shares=SLO_SHARES,
        tpot_ms=quantiles([run.tpot_s for run in done.runs]),
        ttft_ms=quantiles([run.ttft_s for run in done.runs]),
    )


def front(load: Steady, tp: int) -> Front:
    """The Pareto front of TPOT against tokens per second and GPU over every K and batch.

    Args:
        tp: GPUs of a server.
    """
    batch = load.batches()
    tpot = load.tpot_s(batch)
    per_gpu = batch[:, None] / tpot / tp
    points = [
        FrontPoint(k=k, batch=int(batch[i]), tpot_ms=float(tpot[i, k]) * 1e3, tok_s_gpu=float(per_gpu[i, k]))
        for i, k in np.argwhere(np.isfinite(tpot)).tolist()
    ]
    return Front(best=_undominated(points), off=_undominated([one for one in points if one.k == 0]))


def _undominated(points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Those that no other beats in both, in rising TPOT, and at most FRONT_POINTS of them."""
    best: list[FrontPoint] = []
    for one in sorted(points, key=lambda one: (one.tpot_ms, -one.tok_s_gpu)):
        if not best or one.tok_s_gpu > best[-1].tok_s_gpu:
            best.append(one)
    return tuple(best[i] for i in np.unique(np.linspace(0, len(best) - 1, FRONT_POINTS).round().astype(int)))
