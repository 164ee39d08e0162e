"""The step cost as flat arrays, priced by one compiled function that every path shares.

The engine's compiled loop, a Python policy's ``step.cost`` and the vectorised grid all call
:func:`step_parts`, so there is one formula and no second opinion.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit


class StepCost(NamedTuple):
    """PLACEHOLDER (linear) until the roofline lands; fields are numpy arrays and scalars only."""

    fixed_s: float
    token_s: float
    kv_token_s: float
    draft_fixed_s: float
    draft_k_s: float
    request_s: float


@njit(cache=True)
def step_parts(
    cost: StepCost,
    decode_requests: int,
    decode_tokens: int,
    decode_kv_tokens: int,
    decode_qk_tokens: int,
    prefill_requests: int,
    prefill_tokens: int,
    prefill_kv_tokens: int,
    prefill_qk_tokens: float,
    sampled_rows: int,
    draft_requests: int,
    draft_k: int,
) -> tuple[float, float, float, float]:
    """Seconds of one step: (verify, draft, sampling, overhead). Arguments as in StepShape."""
    verify = (
        cost.fixed_s
        + cost.token_s * (decode_tokens + prefill_tokens)
        + cost.kv_token_s * (decode_kv_tokens + prefill_kv_tokens)
    )
    draft = cost.draft_fixed_s + cost.draft_k_s * draft_k if draft_requests > 0 else 0.0
    return verify, draft, 0.0, cost.request_s * (decode_requests + prefill_requests)
