"""Number formats of weights and KV cache, and what a value of each takes in memory."""

from __future__ import annotations

from enum import StrEnum

INT4_GROUP = 128
"""Weights that share one bf16 scale and one bf16 zero point (the usual group of AWQ and GPTQ checkpoints)."""


class Dtype(StrEnum):
    """A format that weights or the KV cache are stored in."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT4 = "int4"  # weights only: expanded to bf16 before the product (W4A16)

    @property
    def bytes(self) -> float:
        """Bytes per value, scales included."""
        return {Dtype.BF16: 2.0, Dtype.FP8: 1.0, Dtype.INT4: 0.5 + 4.0 / INT4_GROUP}[self]
