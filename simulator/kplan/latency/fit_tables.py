"""Read the kernel tables that a calibration is fitted on, and choose the rows that may be used.

Schemas are those of the aiconfigurator collector (GEMM, attention, all-reduce; latency in ms), of the
step lookup derived from it, of Vidur's profiles (medians per op; ms), and of tests/gpu/microbench.py, which
adds columns to the first (``matrix``, ``query_len``, ``head_dim``, ``l2``) and two tables of its own. A table
is found by its name in the folder, which begins with the GPU's; it is Parquet or CSV.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.files import check_readable
from kplan.plainparquet import read_parquet
from kplan.profiles import Dtype

Array = NDArray[np.float64]

GEMM = "*_gemm_*.parquet"
DECODE = "*_generation_attention_*.parquet"
PREFILL = "*_context_attention_*.parquet"
ALL_REDUCE = "*_allreduce_vllm*.csv"
STEPS = "*_aic_step_latency_lookup.csv"
VIDUR = "*_vidur_linear_ops.parquet"
ELEMENTWISE = "*_elementwise_*.csv"
SAMPLER = "*_sampler_*.csv"
TABLES = (GEMM, DECODE, PREFILL, ALL_REDUCE, STEPS, VIDUR, ELEMENTWISE, SAMPLER)
SUFFIXES = (".parquet", ".csv")
MOST_BYTES = 2**28
"""Largest CSV of them that is read."""
MOST_HEAD_BYTES = 2**14
"""Longest header of one: pandas takes some kB a column."""

NAMES = {Dtype.BF16: "bfloat16", Dtype.FP8: "fp8"}
"""How the tables name a number format."""

HEAD_DIM = 128
L2_WARM_BYTES = (1e6, 60e6)
"""KV footprints left out of the decode-attention fit: a benchmark that repeats one layer finds them in the
50 MB L2 cache, a server that walks through all layers does not."""

ALIGNED = 16
"""Rows of an fp8 product come in multiples of this in captured graphs."""

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
    """(r,) sizes of (m, k) x (k, n) and their seconds; ``dtype`` of the weights."""

    m: Array
    n: Array
    k: Array
    seconds: Array
    dtype: Dtype = Dtype.BF16


@dataclass(frozen=True)
class AttentionRows:
    """(r,) one layer: requests, tokens per request, heads, and seconds; ``dtype`` of the KV cache.

    Attributes:
        query_len: query tokens per request: K+1 where K drafts are verified, 1 in tables without the column.
        head_dim: width of a head; HEAD_DIM in tables without the column.
        cold: whether the KV cache was out of the L2 cache when it was read; 0 where nothing is told.
    """

    requests: Array
    kv_len: Array
    heads: Array
    kv_heads: Array
    seconds: Array
    query_len: Array
    head_dim: Array
    cold: Array
    dtype: Dtype = Dtype.BF16


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


@dataclass(frozen=True)
class LayerRows:
    """(r,) elementwise work of one layer: tokens, bytes moved, and seconds."""

    tokens: Array
    traffic_bytes: Array
    seconds: Array


@dataclass(frozen=True)
class SamplerRows:
    """(r,) greedy sampling: rows, logits in all of them, and seconds."""

    rows: Array
    logits: Array
    seconds: Array


def find_tables(folder: Path) -> dict[str, Path]:
    """The tables of ``folder`` by their pattern, as Parquet or as CSV whatever the pattern ends with.

    Raises InputError when there is none, or two of a kind.
    """
    found: dict[str, Path] = {}
    for pattern in TABLES:
        stem = Path(pattern).stem
        matches = sorted(path for suffix in SUFFIXES for path in folder.glob(stem + suffix))
        if len(matches) > 1:
            names = ", ".join(path.name for path in matches)
            raise InputError("--tables", names, f"one table may match {pattern}", "keep one of them")
        if matches:
            found[pattern] = matches[0]
    if not found:
        raise InputError(
            "--tables", str(folder), f"must hold at least one of {', '.join(TABLES)}", "give their folder"
        )
    return found


def gemm_rows(path: Path, dtype: Dtype = Dtype.BF16) -> GemmRows | None:
    """GEMMs of CUDA-graph timing with rotated weights, of sides that occur in dense models; None without
    any of ``dtype``. In a table that names the ``matrix`` every row is one of a model, so none is left out.

    fp8 kernels take up to twice as long for 257 rows as for 256; batches that are not padded to ALIGNED rows
    are left out of their fit, as a server captures its graphs at multiples of it.
    """
    table = _read(path, ("gemm_dtype", "m", "n", "k", "latency_ms"))
    used = table[table["gemm_dtype"] == NAMES[dtype]]
    if used.empty:
        return None
    sides = pd.DataFrame({name: _positive(path, used, name) for name in ("m", "n", "k")}, index=used.index)
    if "matrix" not in table:
        low, high = MATRIX_RANGE
        used = used[sides["n"].between(low, high) & sides["k"].between(low, high)]
    if dtype is Dtype.FP8:
        rows = sides.loc[used.index, "m"]
        used = used[(rows < ALIGNED) | (rows % ALIGNED == 0)]
    if used.empty:
        return None
    m, n, k, latency = (_positive(path, used, name) for name in ("m", "n", "k", "latency_ms"))
    return GemmRows(m, n, k, latency * 1e-3, dtype)


def vidur_rows(path: Path) -> GemmRows:
    """The four matrices of a 70B layer at TP 1, 2, 4 and 8: a second, independent source of GEMM times."""
    table = _read(path, ("model", "tp", "num_tokens", *VIDUR_MATRICES))
    table = table[table["model"] == VIDUR_MODEL]
    tp, m = _positive(path, table, "tp"), _positive(path, table, "num_tokens")
    parts = []
    for name, (n, k, split) in VIDUR_MATRICES.items():
        n_rank = n / tp if split == "columns" else np.full_like(tp, n)
        k_rank = k / tp if split == "rows" else np.full_like(tp, k)
        parts.append((m, n_rank, k_rank, _positive(path, table, name) * 1e-3))
    rows, columns, inner, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
    return GemmRows(rows, columns, inner, seconds)


def decode_rows(path: Path, dtype: Dtype = Dtype.BF16) -> AttentionRows | None:
    """Decode and verify attention, without the rows whose KV cache stays in L2; None without any."""
    rows = _attention(path, dtype)
    if rows is None:
        return None
    footprint = rows.requests * rows.kv_len * rows.kv_heads * 2 * rows.head_dim * dtype.bytes
    low, high = L2_WARM_BYTES
    keep = (footprint <= low) | (footprint >= high) | (rows.cold > 0)
    columns = {each.name: getattr(rows, each.name) for each in fields(rows) if each.name != "dtype"}
    return AttentionRows(**{name: column[keep] for name, column in columns.items()}, dtype=dtype)


def prefill_rows(path: Path, dtype: Dtype = Dtype.BF16) -> AttentionRows | None:
    """Causal attention of whole prompts (no cached prefix); None without any of ``dtype``."""
    return _attention(path, dtype)


def all_reduce_rows(path: Path) -> dict[int, AllReduceRows]:
    """Ranks -> custom all-reduce inside CUDA graphs; messages are counted in bf16 elements."""
    table = _read(path, ("backend", "num_gpus", "message_size_elements", "latency_ms"))
    table = table[table["backend"] == "vllm_graph"]
    return {
        ranks: AllReduceRows(
            _positive(path, used, "message_size_elements") * 2.0, _positive(path, used, "latency_ms") * 1e-3
        )
        for ranks in sorted(set(map(int, _positive(path, table, "num_gpus"))))
        for used in [table[table["num_gpus"] == ranks]]
    }


def elementwise_rows(path: Path) -> StepRows:
    """What is left of a decode step of Llama 3.1 8B, TP 1, after matrices, attention and LM head."""
    table = _read(
        path,
        ("model", "gemm_dtype", "phase", "batch", "total_ms", "attention_ms", "gemm_ms", "logits_ms"),
    )
    used = table[
        (table["model"] == "Meta-Llama-3.1-8B")
        & (table["gemm_dtype"] == NAMES[Dtype.BF16])
        & (table["phase"] == "decode")
    ]
    rest = _positive(path, used, "total_ms")
    for part in ("attention_ms", "gemm_ms", "logits_ms"):
        rest = rest - _positive(path, used, part)
    return StepRows(_positive(path, used, "batch"), rest * 1e-3)


def layer_rows(path: Path) -> LayerRows:
    """Elementwise work of one layer, timed by itself; each row tells what it moves."""
    names = ("num_tokens", "bytes_per_token", "latency_ms")
    table = _read(path, names)
    tokens, token_bytes, latency = (_positive(path, table, name) for name in names)
    return LayerRows(tokens, tokens * token_bytes, latency * 1e-3)


def sampler_rows(path: Path) -> SamplerRows:
    """Greedy sampling from bf16 logits, timed by itself."""
    names = ("rows", "vocab", "latency_ms")
    table = _read(path, names)
    rows, vocab, latency = (_positive(path, table, name) for name in names)
    return SamplerRows(rows, rows * vocab, latency * 1e-3)


def _attention(path: Path, dtype: Dtype) -> AttentionRows | None:
    names = ("batch_size", "kv_len", "num_heads", "num_kv_heads", "latency_ms")
    table = _read(path, ("kv_cache_dtype", *names))
    used = table[table["kv_cache_dtype"] == NAMES[dtype]]
    if used.empty:
        return None
    requests, kv_len, heads, kv_heads, latency = (_positive(path, used, name) for name in names)
    ones = np.ones_like(requests)
    return AttentionRows(
        requests,
        kv_len,
        heads,
        kv_heads,
        latency * 1e-3,
        query_len=_positive(path, used, "query_len") if "query_len" in used else ones,
        head_dim=_positive(path, used, "head_dim") if "head_dim" in used else HEAD_DIM * ones,
        cold=np.asarray(used["l2"] == "cold", dtype=np.float64) if "l2" in used else 0.0 * ones,
        dtype=dtype,
    )


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The table; InputError when it cannot be read (empty, cut off) or lacks a column."""
    table = read_parquet("kernel table", path).to_pandas() if path.suffix == ".parquet" else _csv(path)
    missing = [name for name in columns if name not in table]
    if missing:
        raise InputError(
            f"column of {path.name}", missing[0], f"is missing; it has {', '.join(map(str, table))}"
        )
    return table


def _csv(path: Path) -> pd.DataFrame:
    check_readable("kernel table", path, MOST_BYTES)
    try:
        with path.open("rb") as file:
            if len(file.readline(MOST_HEAD_BYTES + 1)) > MOST_HEAD_BYTES:
                bound = f"its first line has more than {MOST_HEAD_BYTES:,} bytes"
                raise InputError("kernel table", path.name, bound, "give it a header and a line a row")
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise InputError("kernel table", path.name, f"cannot be read ({error})", "copy it again") from None
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes what is too much for the rows' names
        raise InputError("kernel table", path.name, "a row has more values than the header", "copy it again")
    return table


def _positive(path: Path, table: pd.DataFrame, name: str) -> Array:
    """A column as numbers; InputError naming the first that is not a positive one."""
    values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        given = table[name].iloc[bad[0]]
        raise InputError(
            f"{name} in {path.name}", given, f"must be positive (data row {table.index[bad[0]] + 1})"
        )
    return values
