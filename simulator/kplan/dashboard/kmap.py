"""The best K of a steady step, by batch and context: closed form, from acceptance and step prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.latency import StepShape
from kplan.search.candidates import TIE, WalkCurve
from kplan.simulate import Setup

SHORTEST = 128
"""First context of the map, tokens; each of the others is twice the one before."""
LONGEST = 131_072


@dataclass(frozen=True)
class KMap:
    """The map, and where the load lies on it.

    Attributes:
        batch: (B,) requests that decode; context: (C,) tokens of each.
        k: (C, B) the smallest K within TIE of the best rate; NaN where the KV cache does not hold the batch.
        at_batch, at_context: means of the recommended policy's steps.
    """

    batch: NDArray[np.int64]
    context: NDArray[np.int64]
    k: NDArray[np.float64]
    at_batch: float
    at_context: float


def k_map(setup: Setup, curve: WalkCurve, at_batch: float, at_context: float) -> KMap:
    """Price a steady decode step at every batch, context and K.

    Args:
        curve: tokens and verified drafts per request and step at each K.
    """
    powers = 2 ** np.arange(int(np.log2(setup.max_num_seqs)) + 1)
    batch = np.unique(np.append(powers, setup.max_num_seqs))
    most = min(LONGEST, setup.source.max_len or LONGEST)
    context = SHORTEST * 2 ** np.arange(0, max(1, int(np.log2(most / SHORTEST)) + 1))
    ks = np.arange(len(curve.tokens))
    each, long = batch[None, :, None], context[:, None, None]
    shape = StepShape.decode(each, ks, long, curve.verified)
    rate = each * curve.tokens / setup.latency_table.step_seconds(shape).total_s  # (C, B, K + 1)
    best = np.argmax(rate >= rate.max(axis=2, keepdims=True) * (1 - TIE), axis=2).astype(np.float64)
    best[context[:, None] * batch[None, :] > setup.kv_tokens] = np.nan
    return KMap(batch, context, best, at_batch, at_context)
