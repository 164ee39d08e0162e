"""What to measure on a GPU, and in which order: a list that may be cut off anywhere and still serves.

    python -m tests.gpu.plan --model llama-3.1-8b --out plan.jsonl

It runs where kplan is installed and needs no torch; ``microbench.py`` runs where torch is and needs no kplan.
A line of the plan is one row of a table to come: ``op`` names the table, the other fields are its columns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

from kplan.errors import InputError
from kplan.files import write_text
from kplan.latency.ops import elementwise_bytes_per_token
from kplan.profiles import Decoder, load_model

Row = dict[str, int | str]

MATRICES = ("qkv", "o", "gate_up", "down")
TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
QUERY_LENGTHS = tuple(range(1, 9))  # K = 0..7
BATCHES = tuple(2**i for i in range(9))  # 1..256
CONTEXTS = tuple(2**i for i in range(7, 16))  # 128..32,768
PROMPT_BATCHES = (1, 2, 4, 8, 16)
MOST_PROMPT_TOKENS = 32768
"""Tokens of all prompts of one prefill: more are cut into chunks by every engine's default."""

FIRST = 16
"""Rows of every group before all others: enough to fit its coefficients, four at most, three rows each."""

COPIED_BYTES = tuple(2**i for i in range(20, 33, 2))  # 1 MiB..4 GiB
LAUNCHES = (1, 10, 100)


def coarse_to_fine(count: int) -> list[int]:
    """Ranks of ``count`` ordered values: both ends 0, the middle 1, the quarters 2, and so on."""
    ranks = [0] * count

    def split(low: int, high: int, rank: int) -> None:
        middle = (low + high) // 2
        if low < middle < high:
            ranks[middle] = rank
            split(low, middle, rank + 1)
            split(middle, high, rank + 1)

    split(0, count - 1, 1)
    return ranks


def corners_first(axes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """All combinations of the axes' values; what lies at the ends of all axes first, then what lies between.

    The ends are the regimes (latency, bandwidth, compute) that tell coefficients apart.
    """
    ranks = {
        name: dict(zip(values, coarse_to_fine(len(values)), strict=True)) for name, values in axes.items()
    }
    combined = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return sorted(
        combined, key=lambda one: sorted((ranks[n][v] for n, v in one.items()), reverse=True)
    )  # stable: ties stay in the order of the axes


def interleaved(groups: Iterable[Sequence[Row]]) -> list[Row]:
    """One list of all groups: FIRST rows of each in turn, then so that at every point about the same share of
    each group is behind it."""
    placed = [
        (place - FIRST if place < FIRST else (place + 0.5) / len(group), number, row)
        for number, group in enumerate(groups)
        for place, row in enumerate(group)
    ]
    return [row for _, _, row in sorted(placed, key=lambda one: one[:2])]


def measurements(
    decoder: Decoder,
    *,
    tokens: Sequence[int] = TOKENS,
    query_lengths: Sequence[int] = QUERY_LENGTHS,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    copied_bytes: Sequence[int] = COPIED_BYTES,
) -> list[Row]:
    """Every row to measure for one layer and the LM head of ``decoder`` on one GPU, in order.

    Raises InputError for a decoder whose attention or matrices have no benchmark (MLA, routed experts).
    """
    if decoder.latent is not None or decoder.moe is not None:
        what = "latent attention" if decoder.latent is not None else "routed experts"
        raise InputError("--model", what, "has no microbenchmark", "measure with a dense model: the GPU's")
    attention: Row = {
        "kv_cache_dtype": "bfloat16",
        "num_heads": decoder.heads,
        "num_kv_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
    }
    (block,) = decoder.blocks()
    matrices = [*zip(MATRICES, block.matmuls, strict=True), ("lm_head", decoder.head_matmul())]
    gemms: list[Row] = [
        {"op": "gemm", "gemm_dtype": "bfloat16", "matrix": name, "m": one["m"], "n": each.n, "k": each.k}
        for one in corners_first({"m": tokens})
        for name, each in matrices
    ]
    verify: list[Row] = [
        {"op": "generation_attention"} | attention | one
        for one in corners_first({"query_len": query_lengths, "batch_size": batches, "kv_len": contexts})
    ]
    prefill: list[Row] = [
        {"op": "context_attention"} | attention | one
        for one in corners_first({"batch_size": PROMPT_BATCHES, "kv_len": contexts})
        if one["batch_size"] * one["kv_len"] <= MOST_PROMPT_TOKENS
    ]
    layer: Row = {
        "hidden": decoder.hidden,
        "intermediate": decoder.intermediate,
        "num_heads": decoder.heads,
        "num_kv_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
        "bytes_per_token": int(elementwise_bytes_per_token(decoder, 1)),
    }
    elementwise: list[Row] = [
        {"op": "elementwise"} | layer | one for one in corners_first({"num_tokens": tokens})
    ]
    sampler: list[Row] = [
        {"op": "sampler", "vocab": decoder.vocab} | one
        for one in corners_first({"rows": [count for count in tokens if count <= max(batches) * 8]})
    ]
    copies: list[Row] = [{"op": "copy"} | one for one in corners_first({"bytes": copied_bytes})]
    launches: list[Row] = [{"op": "launch", "kernels": count} for count in LAUNCHES]
    return interleaved((launches, copies, gemms, verify, prefill, elementwise, sampler))


def text(rows: Iterable[Row]) -> str:
    """The plan as JSON Lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the plan of a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="llama-3.1-8b", help="model profile, or a folder with config.json")
    parser.add_argument("--out", type=Path, required=True, help="plan to write, JSON Lines")
    arguments = parser.parse_args(argv)
    rows = measurements(load_model(arguments.model).decoder)
    write_text(text(rows), arguments.out)


if __name__ == "__main__":
    main()
