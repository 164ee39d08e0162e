"""Arithmetic of a decoder-only transformer: its matrices, parameters and KV cache.

Shared by target models and by the drafters that are models themselves. Everything is counts; no seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kplan.errors import InputError


@dataclass(frozen=True)
class Matmul:
    """A weight matrix applied to every token: (m, k) x (k, n)."""

    n: int
    k: int

    @property
    def params(self) -> int:
        return self.n * self.k


@dataclass(frozen=True)
class Decoder:
    """A stack of identical dense layers with grouped-query attention and a gated MLP.

    Attributes:
        layers: number of layers.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of one head.
        intermediate: width of the MLP.
        vocab: rows of the LM head (and of the embedding of a whole model).
        attention_inputs: hidden vectors concatenated before QKV (2 in an EAGLE-3 head, else 1).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    attention_inputs: int = 1

    def layer_matmuls(self, tp: int = 1) -> tuple[Matmul, Matmul, Matmul, Matmul]:
        """QKV, O, gate+up and down of one layer on one of ``tp`` ranks (Megatron split)."""
        kv = self.kv_heads_per_rank(tp)
        qkv_out = (self.heads // tp + 2 * kv) * self.head_dim
        return (
            Matmul(qkv_out, self.attention_inputs * self.hidden),
            Matmul(self.hidden, self.heads * self.head_dim // tp),
            Matmul(2 * self.intermediate // tp, self.hidden),
            Matmul(self.hidden, self.intermediate // tp),
        )

    def head_matmul(self, tp: int = 1) -> Matmul:
        """The LM head of one rank."""
        return Matmul(self.vocab // tp, self.hidden)

    def layer_params(self) -> int:
        """Weights of one layer's matrices and its two norms."""
        return sum(matmul.params for matmul in self.layer_matmuls()) + 2 * self.hidden

    def kv_heads_per_rank(self, tp: int) -> int:
        """KV heads held by one rank; heads are replicated when there are fewer than ranks."""
        return max(1, self.kv_heads // tp)

    def kv_values_per_token(self, tp: int = 1) -> int:
        """Numbers that one token adds to the KV cache of one rank."""
        return 2 * self.layers * self.kv_heads_per_rank(tp) * self.head_dim

    def check_tp(self, tp: int) -> None:
        """Raise InputError unless heads and MLP split evenly over ``tp`` ranks."""
        if tp < 1 or self.heads % tp or self.intermediate % tp:
            good = [n for n in (1, 2, 4, 8) if self.heads % n == 0 and self.intermediate % n == 0]
            raise InputError(
                "tensor parallel size", tp, f"must divide {self.heads} heads", f"use one of {good}"
            )
