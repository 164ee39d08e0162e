"""Seconds of attention from counts of requests, query tokens, KV tokens and pairs, compiled."""

from __future__ import annotations

from typing import NamedTuple

from kplan.jit import bare

UNBOUNDED = 2**40
"""Tokens of context of a request that a pass without a limit may read."""


class AttentionCost(NamedTuple):
    """Attention of all layers of one model on one rank (see :class:`kplan.profiles.AttentionFit`).

    Seconds: per launch, per request, per KV token read, per query token moved, per query x context pair;
    then the same for prefill chunks. The share ``local`` of the layers attends to ``window`` tokens at most.
    """

    launch_s: float
    request_s: float
    kv_token_s: float
    query_s: float
    pair_s: float
    p: float
    prefill_query_s: float
    prefill_kv_token_s: float
    prefill_pair_s: float
    local: float = 0.0
    window: float = float(UNBOUNDED)


@bare
def _full_attention(cost: AttentionCost, requests: float, queries: float, kv: float, pairs: float) -> float:
    """Smooth maximum of per-request work and memory traffic; the flops of K+1 queries are a plain bound."""
    work = requests * cost.request_s
    traffic = kv * cost.kv_token_s + queries * cost.query_s
    high, low = max(work, traffic), min(work, traffic)
    if low <= 0.0:
        return max(high, pairs * cost.pair_s)
    smooth: float = high * (1.0 + (low / high) ** cost.p) ** (1.0 / cost.p)
    return max(smooth, pairs * cost.pair_s)


@bare
def _inside(
    cost: AttentionCost, requests: float, queries: float, kv: float, pairs: float
) -> tuple[float, float]:
    """KV tokens and pairs that windowed layers see: a request's queries reach back ``window`` tokens each.

    Exact where all contexts lie on one side of the window, else more than they see.
    """
    return min(kv, requests * (cost.window - 1.0) + queries), min(pairs, queries * cost.window)


@bare
def decode_attention(cost: AttentionCost, requests: float, queries: float, kv: float, pairs: float) -> float:
    """Decode and verify attention of full and windowed layers, without its launch."""
    full = _full_attention(cost, requests, queries, kv, pairs)
    if cost.local <= 0.0:
        return full
    near_kv, near_pairs = _inside(cost, requests, queries, kv, pairs)
    near = _full_attention(cost, requests, queries, near_kv, near_pairs)
    return (1.0 - cost.local) * full + cost.local * near


@bare
def prompt_counts(
    cost: AttentionCost, requests: float, queries: float, kv: float, pairs: float
) -> tuple[float, float]:
    """KV tokens and pairs of prompt chunks, averaged over full and windowed layers."""
    if cost.local <= 0.0:
        return kv, pairs
    near_kv, near_pairs = _inside(cost, requests, queries, kv, pairs)
    return kv + cost.local * (near_kv - kv), pairs + cost.local * (near_pairs - pairs)


@bare
def pass_s(
    host_s: float,
    rest_s: float,
    cost: AttentionCost,
    requests: float,
    queries: float,
    kv: float,
    pairs: float,
) -> float:
    """A drafter pass: the longer of host and GPU, whose part beside decode attention is ``rest_s``."""
    most = requests * cost.request_s + kv * cost.kv_token_s + queries * cost.query_s + pairs * cost.pair_s
    if rest_s + most <= host_s:  # the sum bounds the smooth maximum, so its powers need not be taken
        return host_s
    return max(host_s, rest_s + decode_attention(cost, requests, queries, kv, pairs))
