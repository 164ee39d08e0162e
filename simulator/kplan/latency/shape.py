"""The shape of one engine step: counts only, no seconds.

Every field is a number or a broadcastable array, so one shape can be a whole (B, K, context) grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Count = int | float | NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class StepShape:
    """What one target forward and the drafting after it work on.

    Attributes:
        decode_requests: requests that decode in this step.
        decode_tokens: their query tokens; a request that verifies K drafts brings K+1.
        decode_kv_tokens: sum of their context lengths; the KV cache is read once per request whatever K is.
        decode_qk_tokens: sum of query length x context length (attention flops).
        prefill_requests: requests that bring a prompt chunk.
        prefill_tokens: tokens of those chunks.
        prefill_kv_tokens: sum of (already computed + chunk), the KV tokens that their attention reads.
        prefill_qk_tokens: sum of chunk x (computed + chunk/2), their causal attention pairs.
        sampled_rows: rows that go through the LM head and the sampler (decode tokens + one per prefill).
        draft_requests: requests for which a draft is proposed after this step.
        draft_k: drafts proposed per such request (the K chosen in this step).
    """

    decode_requests: Count
    decode_tokens: Count
    decode_kv_tokens: Count
    decode_qk_tokens: Count
    prefill_requests: Count = 0
    prefill_tokens: Count = 0
    prefill_kv_tokens: Count = 0
    prefill_qk_tokens: Count = 0
    sampled_rows: Count = 0
    draft_requests: Count = 0
    draft_k: Count = 0

    @classmethod
    def decode(cls, batch: Count, k: Count, context: Count, verified: Count | None = None) -> StepShape:
        """A steady decode step: ``batch`` requests of ``context`` tokens verify K and propose K again.

        Args:
            verified: mean drafts verified per request where fewer than K (a lookup without a match).
        """
        tokens = np.multiply(batch, np.add(k if verified is None else verified, 1))
        kv = np.multiply(batch, context)
        return cls(
            decode_requests=batch,
            decode_tokens=tokens,
            decode_kv_tokens=kv,
            decode_qk_tokens=np.multiply(tokens, context),
            sampled_rows=tokens,
            draft_requests=batch,
            draft_k=k,
        )
