"""Floating-point operations and bytes of a target pass, for the roofline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.latency.ops import attention_counts
from kplan.latency.shape import StepShape
from kplan.profiles import Decoder, Model

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """What the target pass does on one rank: floating-point operations and device-memory bytes."""

    flops: Array
    bytes: Array

    @property
    def flops_per_byte(self) -> Array:
        return self.flops / self.bytes


def target_work(model: Model, tp: int, shape: StepShape) -> Work:
    """Work of the target pass of ``shape`` (or of a grid of them) on one of ``tp`` ranks.

    Weights are read once, those of routed experts as far as the step's tokens touch them; the KV cache once
    per request, in windowed layers no further back than they attend. Activations are left out.
    """
    decoder, moe, stored = model.decoder, model.decoder.moe, model.weight_dtype
    head = decoder.head_matmul(tp)
    tokens = _sum(shape.decode_tokens, shape.prefill_tokens)
    flops, moved = 2.0 * head.params * _sum(shape.sampled_rows), np.asarray(head.weight_bytes(stored))
    for block in decoder.blocks(tp):
        for matmul in block.matmuls:
            flops = flops + 2.0 * block.layers * matmul.params * tokens
            moved = moved + block.layers * matmul.weight_bytes(stored)
        if moe is not None:
            for matmul in block.routed:
                flops = flops + 2.0 * block.layers * matmul.params * moe.active * tokens
                moved = moved + block.layers * matmul.weight_bytes(stored) * moe.distinct(tokens)
    counts = attention_counts(decoder, tp, model.kv_dtype)
    kv, pairs = _attended(
        decoder,
        _sum(shape.decode_requests),
        _sum(shape.decode_tokens),
        _sum(shape.decode_kv_tokens),
        _sum(shape.decode_qk_tokens),
    )
    prompt_kv, prompt_pairs = _attended(
        decoder,
        _sum(shape.prefill_requests),
        _sum(shape.prefill_tokens),
        _sum(shape.prefill_kv_tokens),
        _sum(shape.prefill_qk_tokens),
    )
    attention = counts.pair_flops * pairs + counts.prefill_pair_flops * prompt_pairs
    return Work(flops=flops + attention, bytes=moved + counts.kv_bytes * (kv + prompt_kv))


def _sum(*counts: object) -> Array:
    return np.asarray(sum(np.asarray(count, dtype=np.float64) for count in counts))


def _attended(
    decoder: Decoder, requests: Array, queries: Array, kv: Array, pairs: Array
) -> tuple[Array, Array]:
    """KV tokens and query x context pairs summed over all layers; see ``kplan.latency.attention``."""
    if (window := decoder.window) is None:
        return decoder.layers * kv, decoder.layers * pairs
    full = decoder.layers - window.layers
    near_kv = np.minimum(kv, requests * (window.tokens - 1) + queries)
    near_pairs = np.minimum(pairs, queries * window.tokens)
    return full * kv + window.layers * near_kv, full * pairs + window.layers * near_pairs
