"""The policies that ``recommend`` compares, and the deterministic batch table among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace, walk
from kplan.config.plan import BatchRange
from kplan.latency import LatencyModel, StepShape
from kplan.profiles import Tree
from kplan.registry import PolicySpec, parse_policy

TIE = 0.01
"""Rates, or mean TPOTs, within this share of the best count as equal: the simpler policy wins."""


@dataclass(frozen=True)
class WalkCurve:
    """What a request emits and verifies per decode step at each fixed K, along the walk.

    Attributes:
        tokens: (max_k + 1,) tokens emitted, bonus included; 0 at a K that the drafter does not run.
        verified: (max_k + 1,) drafts verified; fewer than K where a lookup finds no match.
    """

    tokens: NDArray[np.float64]
    verified: NDArray[np.float64]


def walk_curve(trace: ProposerTrace, max_k: int, tree: Tree | None = None) -> WalkCurve:
    """Walk ``trace`` at K = 0..max_k; that of a ``tree`` is known at the K that it verifies, and at 0."""
    walks = [walk(trace, k) for k in range(max_k + 1)]
    run = [tree is None or k in (0, tree.verified) for k in range(max_k + 1)]
    return WalkCurve(
        tokens=np.array([one.acceptance_length for one in walks]) * run,
        verified=np.array([one.drafted_per_step for one in walks]),
    )


def rates(latency: LatencyModel, curve: WalkCurve, max_batch: int, context: float) -> NDArray[np.float64]:
    """Output tokens per second of a steady batch by (batch, K), shape (max_batch, max_k + 1).

    Args:
        max_batch: batches 1..max_batch, one row each.
        context: mean context of a request, tokens.
    """
    batch = np.arange(1, max_batch + 1)[:, None]
    k = np.arange(len(curve.tokens))[None, :]
    shape = StepShape.decode(batch, k, context, curve.verified[None, :])
    return np.asarray(batch * curve.tokens[None, :] / latency.step_seconds(shape).total_s)


def greedy_table(rate: NDArray[np.float64]) -> tuple[BatchRange, ...]:
    """The K of the highest rate per batch size, from :func:`rates`.

    The K of the range before is kept while it is within TIE of the best, so that steps in the cost (graph
    padding, say) do not cut the table into slices; no monotonicity in batch is assumed.
    """
    chosen: list[int] = []
    for row in rate:
        best = float(row.max())
        if chosen and row[chosen[-1]] >= best * (1 - TIE):
            chosen.append(chosen[-1])
        else:
            chosen.append(best_k(row))
    starts = [0, *[i for i in range(1, len(chosen)) if chosen[i] != chosen[i - 1]]]
    ends: list[int | None] = [*starts[1:], None]
    return tuple(
        BatchRange(start=start + 1, end=end, k=chosen[start]) for start, end in zip(starts, ends, strict=True)
    )


def best_k(rate: NDArray[np.float64]) -> int:
    """The smallest K whose rate is within TIE of the best of (max_k + 1,) rates."""
    return int(np.flatnonzero(rate >= rate.max() * (1 - TIE))[0])


def longer_context(
    latency: LatencyModel, curve: WalkCurve, batch: int, context: float, room_tokens: int
) -> tuple[int, int, int] | None:
    """Whether longer contexts change the best K of a batch, as reading the KV cache makes it memory-bound.

    The context is doubled until the batch no longer fits the KV cache.

    Args:
        context: mean context now, tokens.
        room_tokens: tokens that the KV cache holds.

    Returns:
        (best K now, the first doubled context at which another K is best, that K), None when none is.
    """
    now = best_k(rates(latency, curve, batch, context)[-1])
    longer = 2 * context
    while batch * longer <= room_tokens:
        then = best_k(rates(latency, curve, batch, longer)[-1])
        if then != now:
            return now, round(longer), then
        longer *= 2
    return None


def table_text(table: tuple[BatchRange, ...]) -> str:
    """The policy text of a table, for example ``table:1-64=3,65-=1``."""
    return "table:" + ",".join(f"{r.start}-{'' if r.end is None else r.end}={r.k}" for r in table)


def candidate_specs(table: tuple[BatchRange, ...], max_k: int, tree: Tree | None = None) -> list[PolicySpec]:
    """off, every fixed K, the table (when it is not a fixed K itself), and the adaptive ones.

    A ``tree`` leaves off and the K that it verifies.
    """
    if tree is not None:
        return [parse_policy(text) for text in ("off", f"fixed:{tree.verified}")]
    texts = ["off", *[f"fixed:{k}" for k in range(1, max_k + 1)]]
    if len(table) > 1 or table[0].k == 0:
        texts.append(table_text(table))
    texts += ["sglang-ema", "goodput", "oracle"]
    return [parse_policy(text) for text in texts]
