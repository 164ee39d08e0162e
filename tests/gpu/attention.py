"""Attention kernels to time: vLLM's paged FlashAttention where it runs, else torch's. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.gpu.timing import Call

BF16 = torch.bfloat16
BLOCK = 16
"""Tokens of a KV block, as vLLM's default."""

GRAPH_SPLITS = 32
"""Splits of the KV length in captured graphs: vLLM's flash_attn_max_num_splits_for_cuda_graph."""


@dataclass(frozen=True)
class Shape:
    """``batch`` requests of ``query_len`` query tokens, the last of a context of ``kv_len``."""

    batch: int
    query_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def blocks(self) -> int:
        """KV blocks of one request."""
        return -(-self.kv_len // BLOCK)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all requests, bf16, in whole blocks."""
        return self.batch * self.blocks * BLOCK * self.kv_heads * self.head_dim * 2 * 2


@dataclass(frozen=True)
class Prepared:
    """One copy of the KV cache and the call that attends to it.

    Attributes:
        call: gives (batch, query_len, heads, head_dim).
        query: as the output.
        cached: keys and values, (batch, kv_len, kv_heads, head_dim) each.
    """

    call: Call
    query: torch.Tensor
    cached: Callable[[], tuple[torch.Tensor, torch.Tensor]]


class Kernel(Protocol):
    """One implementation."""

    source: str

    def prepare(self, shape: Shape, copies: int) -> list[Prepared]:
        """``copies`` caches of random values."""

    def masks(self, shape: Shape) -> bool:
        """Whether a query token is kept from those after it."""


class Torch:
    """``scaled_dot_product_attention`` over contiguous caches."""

    source = "torch.scaled_dot_product_attention"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def masks(self, shape: Shape) -> bool:
        """Whole prompts are masked by the kernel. The few queries of a verification see all of the context:
        a mask would cost torch its fast kernel, and hides at most query_len of kv_len tokens."""
        return shape.query_len == shape.kv_len

    def prepare(self, shape: Shape, copies: int) -> list[Prepared]:
        """See :class:`Kernel`."""
        query = self._random(shape.batch, shape.heads, shape.query_len, shape.head_dim)
        return [self._one(shape, query) for _ in range(copies)]

    def _one(self, shape: Shape, query: torch.Tensor) -> Prepared:
        keys, values = (
            self._random(shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim) for _ in range(2)
        )
        causal, grouped = self.masks(shape), shape.heads != shape.kv_heads

        def call() -> torch.Tensor:
            return scaled_dot_product_attention(
                query, keys, values, is_causal=causal, enable_gqa=grouped
            ).transpose(1, 2)

        return Prepared(call, query.transpose(1, 2), lambda: (keys.transpose(1, 2), values.transpose(1, 2)))

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=BF16, device=self._device)


class Vllm:
    """vLLM's FlashAttention over blocks that lie scattered in one pool, called as its engine does."""

    def __init__(self, device: torch.device, version: int) -> None:
        self._device, self._version = device, version
        self.source = f"vllm_flash_attn_fa{version}"

    def masks(self, shape: Shape) -> bool:
        """Always."""
        return True

    def prepare(self, shape: Shape, copies: int) -> list[Prepared]:
        """See :class:`Kernel`."""
        blocks, tokens = copies * shape.batch * shape.blocks, shape.batch * shape.query_len
        keys, values = (self._random(blocks, BLOCK, shape.kv_heads, shape.head_dim) for _ in range(2))
        tables = torch.randperm(blocks, device=self._device).to(torch.int32)
        query = self._random(tokens, shape.heads, shape.head_dim)
        starts = torch.arange(0, tokens + 1, shape.query_len, dtype=torch.int32, device=self._device)
        lengths = torch.full((shape.batch,), shape.kv_len, dtype=torch.int32, device=self._device)
        arguments: dict[str, Any] = {
            "max_seqlen_q": shape.query_len,
            "cu_seqlens_q": starts,
            "max_seqlen_k": shape.kv_len,
            "seqused_k": lengths,
            "causal": True,
            "fa_version": self._version,
        } | self._schedule(shape, starts, lengths)
        return [
            self._one(shape, query, keys, values, table, arguments)
            for table in tables.view(copies, shape.batch, shape.blocks)
        ]

    def _one(
        self,
        shape: Shape,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        table: torch.Tensor,
        arguments: dict[str, Any],
    ) -> Prepared:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        by_request = (shape.batch, shape.query_len, shape.heads, shape.head_dim)

        def call() -> torch.Tensor:
            out = flash_attn_varlen_func(query, keys, values, block_table=table, **arguments)
            return out.view(by_request)  # type: ignore[no-any-return]

        def cached() -> tuple[torch.Tensor, torch.Tensor]:
            held = (shape.batch, shape.blocks * BLOCK, shape.kv_heads, shape.head_dim)
            gathered = (pool[table.long()].reshape(held)[:, : shape.kv_len] for pool in (keys, values))
            return next(gathered), next(gathered)

        return Prepared(call, query.view(by_request), cached)

    def _schedule(self, shape: Shape, starts: torch.Tensor, lengths: torch.Tensor) -> dict[str, Any]:
        """Version 3 plans once per step, outside the layers; a prompt is not bound to a graph's splits."""
        if self._version != 3:
            return {}
        from vllm.vllm_flash_attn import get_scheduler_metadata

        splits = 0 if shape.query_len == shape.kv_len else GRAPH_SPLITS
        plan = get_scheduler_metadata(
            batch_size=shape.batch,
            max_seqlen_q=shape.query_len,
            max_seqlen_k=shape.kv_len,
            num_heads_q=shape.heads,
            num_heads_kv=shape.kv_heads,
            headdim=shape.head_dim,
            cache_seqlens=lengths,
            qkv_dtype=BF16,
            cu_seqlens_q=starts,
            page_size=BLOCK,
            causal=True,
            num_splits=splits,
        )
        return {"scheduler_metadata": plan, "num_splits": splits}

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=BF16, device=self._device)


@cache
def find(device: torch.device, head_dim: int) -> Kernel:
    """The kernel that vLLM would run here, else torch's."""
    if device.type == "cuda":
        try:
            from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
        except ImportError:
            return Torch(device)
        version = get_flash_attn_version(head_size=head_dim)
        if version is not None:
            return Vllm(device, version)
    return Torch(device)


def difference(kernel: Kernel, shape: Shape) -> float:
    """Largest difference between the kernel's output and float32 arithmetic written out.

    Outputs are means of normal values: a wrong layout, mask or length shows as a difference of about 1.
    """
    (prepared,) = kernel.prepare(shape, 1)
    group = shape.heads // shape.kv_heads
    keys, values = (each.float().repeat_interleave(group, dim=2) for each in prepared.cached())
    scores = torch.einsum("bqhd,bkhd->bhqk", prepared.query.float(), keys) * shape.head_dim**-0.5
    if kernel.masks(shape):
        device = scores.device
        last = torch.arange(shape.query_len, device=device) + shape.kv_len - shape.query_len
        hidden = torch.arange(shape.kv_len, device=device) > last[:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), values)
    out = prepared.call()
    assert isinstance(out, torch.Tensor)
    return float((out.float() - expected).abs().max())
