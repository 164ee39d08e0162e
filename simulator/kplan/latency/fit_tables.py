"""Read the kernel tables that a calibration is fitted on, and choose the rows that may be used.

Schemas are those of the aiconfigurator collector (GEMM, attention, all-reduce; latency in ms), of the
step lookup derived from it, and of Vidur's profiles (medians per op; ms).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kplan.errors import InputError

Array = NDArray[np.float64]

GEMM = "h100_gemm_vllm0.24.parquet"
DECODE = "h100_generation_attention_vllm0.24.parquet"
PREFILL = "h100_context_attention_vllm0.24.parquet"
ALL_REDUCE = "h100_allreduce_vllm0.24.csv"
STEPS = "h100_aic_step_latency_lookup.csv"
VIDUR = "h100_vidur_linear_ops.parquet"

BF16 = "bfloat16"
HEAD_DIM = 128
L2_WARM_BYTES = (1e6, 60e6)
"""KV footprints left out of the decode-attention fit: a benchmark that repeats one layer finds them in the
50 MB L2 cache, a server that walks through all layers does not."""

MATRIX_RANGE = (1024, 16384)
"""Matrix sides that occur in dense models of 1B to 70B at TP 1 to 8."""

VIDUR_MODEL, VIDUR_HIDDEN = "Llama-2-70b", 8192
VIDUR_MATRICES = {
    "attn_pre_proj_ms": (10240, VIDUR_HIDDEN, "columns"),
    "attn_post_proj_ms": (VIDUR_HIDDEN, VIDUR_HIDDEN, "rows"),
    "mlp_up_proj_ms": (57344, VIDUR_HIDDEN, "columns"),
    "mlp_down_proj_ms": (VIDUR_HIDDEN, 28672, "rows"),
}


@dataclass(frozen=True)
class GemmRows:
    """(r,) sizes of (m, k) x (k, n) and their seconds."""

    m: Array
    n: Array
    k: Array
    seconds: Array


@dataclass(frozen=True)
class AttentionRows:
    """(r,) one layer: requests, tokens per request, heads, and seconds."""

    requests: Array
    kv_len: Array
    heads: Array
    kv_heads: Array
    seconds: Array


@dataclass(frozen=True)
class AllReduceRows:
    """(r,) message bytes and seconds over one number of ranks."""

    message_bytes: Array
    seconds: Array


@dataclass(frozen=True)
class StepRows:
    """(r,) whole-step elementwise time of one model: tokens and seconds of all layers."""

    tokens: Array
    seconds: Array


def gemm_rows(folder: Path) -> GemmRows:
    """bf16 GEMMs of CUDA-graph timing with rotated weights, of sides that occur in dense models."""
    table = pd.read_parquet(_file(folder, GEMM))
    low, high = MATRIX_RANGE
    used = table[
        (table["gemm_dtype"] == BF16) & table["n"].between(low, high) & table["k"].between(low, high)
    ]
    m, n, k, latency = (_column(used, name) for name in ("m", "n", "k", "latency_ms"))
    return GemmRows(m, n, k, latency * 1e-3)


def vidur_rows(folder: Path) -> GemmRows:
    """The four matrices of a 70B layer at TP 1, 2, 4 and 8: a second, independent source of GEMM times."""
    table = pd.read_parquet(_file(folder, VIDUR))
    table = table[table["model"] == VIDUR_MODEL]
    tp, m = _column(table, "tp"), _column(table, "num_tokens")
    parts = []
    for name, (n, k, split) in VIDUR_MATRICES.items():
        n_rank = n / tp if split == "columns" else np.full_like(tp, n)
        k_rank = k / tp if split == "rows" else np.full_like(tp, k)
        parts.append((m, n_rank, k_rank, _column(table, name) * 1e-3))
    return GemmRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def decode_rows(folder: Path) -> AttentionRows:
    """bf16 decode attention (query length 1), without the rows whose KV cache stays in L2."""
    rows = _attention(folder, DECODE)
    footprint = rows.requests * rows.kv_len * rows.kv_heads * 2 * HEAD_DIM * 2.0
    low, high = L2_WARM_BYTES
    keep = (footprint <= low) | (footprint >= high)
    return AttentionRows(
        rows.requests[keep], rows.kv_len[keep], rows.heads[keep], rows.kv_heads[keep], rows.seconds[keep]
    )


def prefill_rows(folder: Path) -> AttentionRows:
    """bf16 causal attention of whole prompts (no cached prefix)."""
    return _attention(folder, PREFILL)


def all_reduce_rows(folder: Path, ranks: int) -> AllReduceRows:
    """Custom all-reduce inside CUDA graphs; messages are counted in bf16 elements."""
    table = pd.read_csv(_file(folder, ALL_REDUCE))
    used = table[(table["backend"] == "vllm_graph") & (table["num_gpus"] == ranks)]
    return AllReduceRows(_column(used, "message_size_elements") * 2.0, _column(used, "latency_ms") * 1e-3)


def elementwise_rows(folder: Path) -> StepRows:
    """What is left of a decode step of Llama 3.1 8B, TP 1, after matrices, attention and LM head."""
    table = pd.read_csv(_file(folder, STEPS))
    used = table[
        (table["model"] == "Meta-Llama-3.1-8B") & (table["gemm_dtype"] == BF16) & (table["phase"] == "decode")
    ]
    rest = _column(used, "total_ms")
    for part in ("attention_ms", "gemm_ms", "logits_ms"):
        rest = rest - _column(used, part)
    return StepRows(_column(used, "batch"), rest * 1e-3)


def _attention(folder: Path, name: str) -> AttentionRows:
    table = pd.read_parquet(_file(folder, name))
    used = table[table["kv_cache_dtype"] == BF16]
    requests, kv_len, heads, kv_heads, latency = (
        _column(used, column)
        for column in ("batch_size", "kv_len", "num_heads", "num_kv_heads", "latency_ms")
    )
    return AttentionRows(requests, kv_len, heads, kv_heads, latency * 1e-3)


def _column(table: pd.DataFrame, name: str) -> Array:
    if name not in table:
        raise InputError("table column", name, f"is missing; the table has {', '.join(map(str, table))}")
    return table[name].to_numpy(dtype=np.float64)


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise InputError("kernel tables", str(folder), f"must hold {name}", "give the folder with --tables")
    return path
