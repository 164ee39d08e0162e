"""The operations of a decoder layer, the LM head and the sampler as calls to time. Needs torch.

Where vLLM is importable its own kernels run, else torch's: ``source`` says which. Weights, KV caches and
streams are random; the shapes come from the plan (:mod:`tests.gpu.plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import linear

from tests.gpu import attention
from tests.gpu.limits import MEMORY_SHARE, copies_to_be_cold, is_cold
from tests.gpu.timing import Call

BF16 = torch.bfloat16
EPSILON = 1e-5
Sizes = Mapping[str, Any]


class TooLargeError(Exception):
    """A row whose inputs do not fit the device."""


@dataclass(frozen=True)
class Target:
    """What is measured: the device, its L2 cache (0 when unknown), and the bytes a row's inputs may take."""

    device: torch.device
    cache_bytes: int
    memory_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """The current state of ``device``; a CPU counts as one with 2 GiB and no cache."""
        if device.type != "cuda":
            return cls(device, 0, 2 * 1024**3)
        cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's, to reuse
        return cls(device, cache, int((free + kept) * MEMORY_SHARE))

    def copies(self, footprint_bytes: int) -> int:
        """Copies of an input of that size to read in turn. Raises TooLargeError when they do not fit."""
        copies = copies_to_be_cold(footprint_bytes, self.cache_bytes)
        if footprint_bytes * copies > self.memory_bytes:
            raise TooLargeError(f"{footprint_bytes * copies / 1e9:.1f} GB of inputs")
        return copies

    def random(self, *shape: int) -> torch.Tensor:
        """A bf16 tensor of normal values."""
        return torch.randn(shape, dtype=BF16, device=self.device)


@dataclass(frozen=True)
class Work:
    """One row of the plan as calls: the same work on one copy of its inputs each."""

    calls: list[Call]
    source: str
    cold: bool


def gemm(target: Target, sizes: Sizes) -> Work:
    """(m, k) x (k, n) with the weights out of the cache; the inputs were written just before in an engine."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    footprint = 2 * n * k
    copies = target.copies(footprint)
    inputs = target.random(m, k)
    weights = [target.random(n, k) for _ in range(copies)]
    calls: list[Call] = [partial(linear, inputs, weight) for weight in weights]
    return Work(calls, "torch.nn.functional.linear", is_cold(footprint, copies, target.cache_bytes))


def decode_attention(target: Target, sizes: Sizes) -> Work:
    """``query_len`` tokens per request against a cached context of ``kv_len`` (these included)."""
    shape = attention.Shape(
        sizes["batch_size"],
        sizes["query_len"],
        sizes["kv_len"],
        sizes["num_heads"],
        sizes["num_kv_heads"],
        sizes["head_dim"],
    )
    copies = target.copies(shape.kv_bytes)
    kernel = attention.find(target.device, shape.head_dim)
    calls = [prepared.call for prepared in kernel.prepare(shape, copies)]
    return Work(calls, kernel.source, is_cold(shape.kv_bytes, copies, target.cache_bytes))


def prefill_attention(target: Target, sizes: Sizes) -> Work:
    """Causal attention of whole prompts, whose keys and values were written just before: not cold."""
    return decode_attention(
        Target(target.device, 0, target.memory_bytes), {**sizes, "query_len": sizes["kv_len"]}
    )


def elementwise(target: Target, sizes: Sizes) -> Work:
    """What a layer does beside matrices and attention: two norms with residual, rotary, gated activation."""
    tokens, hidden, dim = sizes["num_tokens"], sizes["hidden"], sizes["head_dim"]
    stream, residual, weight = (
        target.random(*shape) for shape in ((tokens, hidden), (tokens, hidden), (hidden,))
    )
    gate_up = target.random(tokens, 2 * sizes["intermediate"])
    query, key = (target.random(tokens, sizes[name] * dim) for name in ("num_heads", "num_kv_heads"))
    positions = torch.arange(tokens, device=target.device)
    angles = target.random(tokens, dim)
    gated = torch.empty_like(gate_up[:, : sizes["intermediate"]])

    if _vllm_ops():

        def layer() -> None:
            torch.ops._C.fused_add_rms_norm(stream, residual, weight, EPSILON)
            torch.ops._C.rotary_embedding(positions, query, key, dim, angles, True)
            torch.ops._C.fused_add_rms_norm(stream, residual, weight, EPSILON)
            torch.ops._C.silu_and_mul(gated, gate_up)

        return Work([layer], "vllm._C", cold=False)
    return Work(
        [lambda: _compiled_layer(stream, residual, weight, gate_up, query, key, angles)],
        "torch.compile",
        cold=False,
    )


def sampler(target: Target, sizes: Sizes) -> Work:
    """Greedy: bf16 logits to float32, then the largest of every row."""
    logits = target.random(sizes["rows"], sizes["vocab"])
    return Work([lambda: logits.float().argmax(dim=-1)], "torch.argmax", cold=False)


def copy(target: Target, sizes: Sizes) -> Work:
    """Device memory to device memory: every byte is read once and written once."""
    copies = target.copies(2 * sizes["bytes"])
    sources, sinks = (
        torch.ones((copies, sizes["bytes"]), dtype=torch.uint8, device=target.device) for _ in range(2)
    )
    calls: list[Call] = [partial(sink.copy_, source) for sink, source in zip(sinks, sources, strict=True)]
    return Work(calls, "torch.Tensor.copy_", is_cold(2 * sizes["bytes"], copies, target.cache_bytes))


def launch(target: Target, sizes: Sizes) -> Work:
    """``kernels`` kernels of one value each, one after the other: nothing but launches."""
    value = torch.zeros(1, device=target.device)

    def kernels() -> None:
        for _ in range(sizes["kernels"]):
            value.add_(1.0)

    return Work([kernels], "torch.Tensor.add_", cold=False)


OPERATIONS: Mapping[str, Callable[[Target, Sizes], Work]] = {
    "gemm": gemm,
    "generation_attention": decode_attention,
    "context_attention": prefill_attention,
    "elementwise": elementwise,
    "sampler": sampler,
    "copy": copy,
    "launch": launch,
}


@cache
def _vllm_ops() -> bool:
    """Whether vLLM's compiled operations are there."""
    try:
        import vllm._custom_ops  # noqa: F401  # registers torch.ops._C
    except ImportError:
        return False
    return hasattr(torch.ops._C, "fused_add_rms_norm")


@torch.compile(dynamic=True)
def _compiled_layer(
    stream: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    gate_up: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    angles: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The same work for the compiler to fuse."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
        return (wide * scale).to(x.dtype) * weight

    def rotated(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], -1, angles.shape[-1])
        first, second = heads.chunk(2, dim=-1)
        cos, sin = angles.unsqueeze(1).chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    added = stream + residual
    again = norm(added) + added
    gate, up = gate_up.chunk(2, dim=-1)
    return norm(again), again, torch.nn.functional.silu(gate) * up, rotated(query), rotated(key)
