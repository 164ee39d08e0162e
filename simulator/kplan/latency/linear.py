"""The published linear model of steps, priced like the roofline's: a second opinion for cross-checks.

SpecDecode-Bench's simulator (arXiv:2601.11580) prices a step of vLLM on an H100 by a fit that is linear in
the KV tokens and in the batched tokens. Its drafting is nearly flat in K, and fitted at K = 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.latency.model import StepTime
from kplan.latency.published import LinearRow
from kplan.latency.shape import StepShape
from kplan.profiles import DrafterKind

Array = NDArray[np.float64]
Amount = float | Array | NDArray[np.int64]


@dataclass(frozen=True)
class LinearModel:
    """Prices steps from the coefficients of ``row``.

    Attributes:
        row: published coefficients.
        drafter: HEAD, LOOKUP, or None for speculation off.
    """

    row: LinearRow
    drafter: DrafterKind | None = None

    def verify_s(self, tokens: Amount, kv_tokens: Amount) -> Array:
        """Seconds of the target pass over ``tokens`` batched tokens that reads ``kv_tokens`` of cache."""
        row = self.row
        fixed = row.verify_fixed_s + np.multiply(tokens, row.verify_token_s)
        return np.asarray(fixed + np.multiply(kv_tokens, row.verify_kv_token_s))

    def draft_s(self, k: Amount, kv_tokens: Amount, verify_s: Array) -> Array:
        """Seconds of the drafting after a pass of ``verify_s``; K = 0 costs a head one input token."""
        row = self.row
        if self.drafter is None:
            return np.zeros_like(verify_s)
        if self.drafter is DrafterKind.LOOKUP:
            return row.lookup_share * verify_s
        per_token = np.multiply(np.add(k, 1), row.draft_token_s)
        return np.asarray(row.draft_fixed_s + per_token + np.multiply(kv_tokens, row.draft_kv_token_s))

    def step_seconds(self, shape: StepShape) -> StepTime:
        """Price a broadcast grid of steps. Sampling is part of its overhead; prompts read no cache."""
        kv = shape.decode_kv_tokens
        verify = self.verify_s(np.add(shape.decode_tokens, shape.prefill_tokens), kv)
        draft = self.draft_s(shape.draft_k, kv, verify)
        zero = np.zeros(np.broadcast_shapes(verify.shape, draft.shape))
        return StepTime(verify + zero, draft + zero, zero, zero + self.row.overhead_s)
