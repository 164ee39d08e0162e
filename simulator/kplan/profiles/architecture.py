"""Arithmetic of a decoder-only transformer: its matrices, parameters and KV cache.

Shared by target models and by the drafters that are models themselves. Everything is counts; no seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.profiles.dtype import Dtype

Tokens = TypeVar("Tokens", float, NDArray[np.float64])


@dataclass(frozen=True)
class Matmul:
    """A weight matrix applied to every token: (m, k) x (k, n), ``copies`` times side by side.

    Attributes:
        copies: independent products of this size in one launch (one per head in MLA's absorbed matrices);
            each reads and writes activations of its own.
        quantized: its weights have the model's weight dtype; else they stay bf16 (LM head, router, MLA's
            absorbed matrices).
    """

    n: int
    k: int
    copies: int = 1
    quantized: bool = True

    @property
    def params(self) -> int:
        return self.n * self.k * self.copies

    def weight_bytes(self, weights: Dtype) -> float:
        """Bytes of its weights in a model whose matrices are stored as ``weights``."""
        return self.params * (weights if self.quantized else Dtype.BF16).bytes


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): one compressed KV vector per token, shared by all heads.

    Attributes:
        q_rank: width of the compressed query; 0 when queries are projected directly.
        kv_rank: width of the compressed KV vector.
        rope_dim: width of the rotary key stored beside it, and of every query head's rotary part.
        nope_dim: width of a query head without its rotary part.
        v_dim: width of a value head.
    """

    q_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int


@dataclass(frozen=True)
class SlidingWindow:
    """Some layers attend to the last ``tokens`` tokens only."""

    tokens: int
    layers: int


@dataclass(frozen=True)
class MixtureOfExperts:
    """Routed MLPs: every token uses ``active`` of ``experts``, and all of the shared ones.

    Attributes:
        experts, active: routed experts of a layer, and how many a token uses.
        intermediate: width of one routed expert.
        shared_intermediate: width of all shared experts together; 0 for none.
        dense_layers: leading layers that keep a dense MLP.
    """

    experts: int
    active: int
    intermediate: int
    shared_intermediate: int = 0
    dense_layers: int = 0

    def distinct(self, tokens: Tokens) -> Tokens:
        """Expected number of routed experts that ``tokens`` tokens touch: E (1 - (1 - a/E)^T), elementwise.

        Routing is taken as uniform and independent between tokens, which maximises the number.
        """
        untouched: Tokens = (1.0 - self.active / self.experts) ** tokens
        return self.experts * (1.0 - untouched)


@dataclass(frozen=True)
class Block:
    """``layers`` identical layers on one rank: matrices every token passes, and routed ones.

    Attributes:
        routed: gate+up and down of one routed expert; () in a dense layer.
    """

    layers: int
    matmuls: tuple[Matmul, ...]
    routed: tuple[Matmul, ...] = ()


@dataclass(frozen=True)
class Decoder:
    """A stack of decoder layers with grouped-query or latent attention and gated MLPs, dense or routed.

    Attributes:
        layers: number of layers.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of one head.
        intermediate: width of the dense MLP.
        vocab: rows of the LM head (and of the embedding of a whole model).
        attention_inputs: hidden vectors concatenated before QKV (2 in an EAGLE-3 head, else 1).
        latent: MLA; ``kv_heads`` and ``head_dim`` then do not size the cache.
        window: layers with a sliding window.
        moe: routed experts.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    attention_inputs: int = 1
    latent: LatentAttention | None = None
    window: SlidingWindow | None = None
    moe: MixtureOfExperts | None = None

    def blocks(self, tp: int = 1) -> tuple[Block, ...]:
        """The layers as one of ``tp`` ranks runs them (Megatron split, experts cut like dense MLPs)."""
        attention = self._attention_matmuls(tp)
        dense = (*attention, *self._mlp(self.intermediate, tp))
        if self.moe is None:
            return (Block(self.layers, dense),)
        moe = self.moe
        shared = self._mlp(moe.shared_intermediate, tp) if moe.shared_intermediate else ()
        router = Matmul(moe.experts, self.hidden, quantized=False)
        routed = Block(
            self.layers - moe.dense_layers,
            (*attention, router, *shared),
            self._mlp(moe.intermediate, tp),
        )
        return (Block(moe.dense_layers, dense), routed) if moe.dense_layers else (routed,)

    def _mlp(self, intermediate: int, tp: int) -> tuple[Matmul, Matmul]:
        return (
            Matmul(2 * intermediate // tp, self.hidden),
            Matmul(self.hidden, intermediate // tp),
        )

    def _attention_matmuls(self, tp: int) -> tuple[Matmul, ...]:
        heads = self.heads // tp
        if self.latent is None:
            qkv_out = (heads + 2 * self.kv_heads_per_rank(tp)) * self.head_dim
            return (
                Matmul(qkv_out, self.attention_inputs * self.hidden),
                Matmul(self.hidden, heads * self.head_dim),
            )
        mla = self.latent
        down = mla.kv_rank + mla.rope_dim
        query = heads * (mla.nope_dim + mla.rope_dim)
        inputs = self.attention_inputs * self.hidden
        queries = (
            (Matmul(mla.q_rank + down, inputs), Matmul(query, mla.q_rank))
            if mla.q_rank
            else (Matmul(query + down, inputs),)
        )
        return (
            *queries,
            # Keys absorbed into the queries, values expanded after attention: vLLM has these batched products
            # in 16 bits only, on copies.
            Matmul(mla.kv_rank, mla.nope_dim, copies=heads, quantized=False),
            Matmul(mla.v_dim, mla.kv_rank, copies=heads, quantized=False),
            Matmul(self.hidden, heads * mla.v_dim),
        )

    def head_matmul(self, tp: int = 1) -> Matmul:
        """The LM head of one rank of ``tp``."""
        return Matmul(self.vocab // tp, self.hidden, quantized=False)

    def matmuls(self, tp: int = 1) -> Iterator[tuple[int, Matmul]]:
        """(copies in the stack, matrix) of every matrix of one rank of ``tp``, routed experts included."""
        for block in self.blocks(tp):
            for matmul in block.matmuls:
                yield block.layers, matmul
            for matmul in block.routed:
                assert self.moe is not None
                yield block.layers * self.moe.experts, matmul

    @property
    def norm_params(self) -> int:
        """Weights of two norms per layer."""
        return 2 * self.hidden * self.layers

    def layers_params(self) -> int:
        """Weights of all layers' matrices and norms."""
        return sum(count * matmul.params for count, matmul in self.matmuls()) + self.norm_params

    def layers_bytes(self, weights: Dtype, tp: int) -> float:
        """Bytes that the layers hold on one of ``tp`` ranks, their matrices stored as ``weights``.

        Replicated matrices (router, MLA's compressions, KV heads fewer than ranks) and norms count on every
        rank. A quantized MLA layer keeps the original of its absorbed matrices, for prompts.
        """
        held = sum(count * matmul.weight_bytes(weights) for count, matmul in self.matmuls(tp))
        if (mla := self.latent) is not None and weights is not Dtype.BF16:
            absorbed = self.heads // tp * mla.kv_rank * (mla.nope_dim + mla.v_dim)
            held += self.layers * absorbed * weights.bytes
        return held + self.norm_params * Dtype.BF16.bytes

    def kv_heads_per_rank(self, tp: int) -> int:
        """KV heads held by one rank of ``tp``; heads are replicated when there are fewer than ranks."""
        return max(1, self.kv_heads // tp)

    def layer_kv_values(self, tp: int = 1) -> int:
        """Numbers that one token adds to one layer's KV cache on one rank of ``tp`` (MLA: on each alike)."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * self.kv_heads_per_rank(tp) * self.head_dim

    def kv_values_per_token(self, tp: int = 1) -> int:
        """Numbers that one token adds to the KV cache of one rank of ``tp``.

        Layers with a sliding window count in full, as an engine without a hybrid cache manager stores them.
        """
        return self.layers * self.layer_kv_values(tp)

    def check_tp(self, tp: int) -> None:
        """Raise InputError unless heads, KV heads and MLPs split evenly over ``tp`` ranks.

        KV heads fewer than ranks are replicated, each on the same number of ranks; MLA has none.
        """

        def splits(ranks: int) -> bool:
            few, many = sorted((self.kv_heads, ranks))
            if self.latent is None and many % few:
                return False
            widths = [self.heads, self.intermediate]
            if self.moe is not None:
                widths += [self.moe.intermediate, self.moe.shared_intermediate]
            return not any(width % ranks for width in widths)

        if tp < 1 or not splits(tp):
            good = [n for n in (1, 2, 4, 8) if splits(n)]
            raise InputError(
                "tensor parallel size",
                tp,
                f"must divide {self.heads} heads ({self.kv_heads} of KV) and the MLPs",
                f"use one of {good}",
            )
