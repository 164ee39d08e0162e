"""Kernel tables as files: which rows are taken, and what they come to in tokens, bytes and seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.errors import InputError
from kplan.latency import fit_tables
from kplan.latency.fit_tables import (
    all_reduce_rows,
    decode_rows,
    elementwise_rows,
    find_tables,
    gemm_rows,
    layer_rows,
    prefill_rows,
    sampler_rows,
    vidur_rows,
)
from kplan.profiles import Dtype


def csv(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "table.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def gemm(m: int, n: int = 4096, k: int = 4096, dtype: str = "bfloat16") -> dict[str, object]:
    return {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency_ms": 0.25}


def test_gemms_of_sides_from_1024_to_16384_are_taken(tmp_path: Path) -> None:
    sides = [(1023, 4096), (1024, 16384), (16384, 1024), (16385, 4096), (4096, 1023), (4096, 16385)]
    rows = gemm_rows(csv(tmp_path, *(gemm(7, n, k) for n, k in sides), gemm(9, dtype="fp8")))
    assert rows is not None
    assert list(zip(rows.m, rows.n, rows.k, rows.seconds, strict=True)) == [
        (7, 1024, 16384, 0.00025),
        (7, 16384, 1024, 0.00025),
    ]
    assert rows.dtype is Dtype.BF16


def test_a_table_that_names_its_matrices_is_taken_whole(tmp_path: Path) -> None:
    rows = gemm_rows(csv(tmp_path, gemm(7, n=80) | {"matrix": "router"}, gemm(7, k=64) | {"matrix": "own"}))
    assert rows is not None
    assert list(rows.n) == [80, 4096]


def test_fp8_gemms_below_16_rows_or_of_multiples_are_taken(tmp_path: Path) -> None:
    rows = gemm_rows(csv(tmp_path, *(gemm(m, dtype="fp8") for m in (1, 15, 16, 17, 31, 48, 257))), Dtype.FP8)
    assert rows is not None
    assert list(rows.m) == [1, 15, 16, 48]
    assert rows.dtype is Dtype.FP8


@pytest.mark.parametrize("row", [gemm(7, n=80), gemm(7, dtype="fp8")])
def test_a_table_without_a_row_to_take_has_none(tmp_path: Path, row: dict[str, object]) -> None:
    assert gemm_rows(csv(tmp_path, row)) is None


def test_the_second_gemm_source_is_four_matrices_over_their_ranks(tmp_path: Path) -> None:
    """Llama 2 70B: 64 + 2 x 8 heads of 128, an MLP of 28672; outputs are split but where a row is summed."""
    times = {
        "attn_pre_proj_ms": 0.1,
        "attn_post_proj_ms": 0.2,
        "mlp_up_proj_ms": 0.3,
        "mlp_down_proj_ms": 0.4,
    }
    mine = [{"model": "Llama-2-70b", "tp": tp, "num_tokens": n} | times for tp, n in ((1, 5), (4, 6))]
    path = csv(tmp_path, *mine, {"model": "other", "tp": 1, "num_tokens": 7} | times)
    rows = vidur_rows(path)
    assert list(zip(rows.m, rows.n, rows.k, np.round(rows.seconds, 9), strict=True)) == [
        (5, 10240, 8192, 1e-4),
        (6, 2560, 8192, 1e-4),
        (5, 8192, 8192, 2e-4),
        (6, 8192, 2048, 2e-4),
        (5, 57344, 8192, 3e-4),
        (6, 14336, 8192, 3e-4),
        (5, 8192, 28672, 4e-4),
        (6, 8192, 7168, 4e-4),
    ]


def attention(requests: int, kv_len: int, **more: object) -> dict[str, object]:
    heads = {"num_heads": 32, "num_kv_heads": 1, "kv_cache_dtype": "bfloat16"}
    return {"batch_size": requests, "kv_len": kv_len, "latency_ms": 2.0} | heads | more


def test_caches_between_1_and_60_mb_are_taken_for_warm(tmp_path: Path) -> None:
    """A request of one head of 125: 500 bytes a token, so 2,000 tokens are 1 MB and 120,000 are 60 MB."""
    sizes = [(1, 2000), (1, 2001), (2, 59_999), (3, 40_000), (1, 500)]
    rows = decode_rows(csv(tmp_path, *(attention(n, kv, head_dim=125) for n, kv in sizes)))
    assert rows is not None
    assert list(zip(rows.requests, rows.kv_len, strict=True)) == [(1, 2000), (3, 40_000), (1, 500)]
    warm, cold = (attention(1, 2001, head_dim=125, l2=told) for told in ("warm", "cold"))
    told = decode_rows(csv(tmp_path, warm, cold, attention(1, 10, head_dim=125, l2="warm")))
    assert told is not None
    assert list(told.kv_len) == [2001, 10]
    assert list(told.cold) == [1.0, 0.0]


def test_an_fp8_cache_is_half_as_large(tmp_path: Path) -> None:
    rows = [attention(1, kv, head_dim=125, num_kv_heads=2, kv_cache_dtype="fp8") for kv in (2000, 2001)]
    found = decode_rows(csv(tmp_path, *rows), Dtype.FP8)
    assert found is not None
    assert (list(found.kv_len), found.dtype) == ([2000], Dtype.FP8)


def test_columns_that_attention_tables_lack_are_one_query_and_heads_of_128(tmp_path: Path) -> None:
    rows = prefill_rows(csv(tmp_path, attention(3, 700)))
    assert rows is not None
    assert (rows.requests[0], rows.kv_len[0], rows.heads[0], rows.kv_heads[0]) == (3, 700, 32, 1)
    assert (rows.query_len[0], rows.head_dim[0], rows.cold[0], rows.seconds[0]) == (1, 128, 0, 0.002)
    told = prefill_rows(csv(tmp_path, attention(3, 700, query_len=4, head_dim=64)))
    assert told is not None
    assert (told.query_len[0], told.head_dim[0]) == (4, 64)


def test_all_reduces_in_graphs_are_taken_by_ranks_at_two_bytes_an_element(tmp_path: Path) -> None:
    rows = [
        {"backend": backend, "num_gpus": ranks, "message_size_elements": sent, "latency_ms": 0.5}
        for backend, ranks, sent in (("vllm_graph", 4, 100), ("vllm_graph", 2, 300), ("nccl", 2, 400))
    ]
    found = all_reduce_rows(csv(tmp_path, *rows))
    assert list(found) == [2, 4]
    assert {ranks: (list(each.message_bytes), list(each.seconds)) for ranks, each in found.items()} == {
        2: ([600.0], [0.0005]),
        4: ([200.0], [0.0005]),
    }


def test_elementwise_work_is_what_a_decode_step_of_llama_leaves(tmp_path: Path) -> None:
    row: dict[str, object] = {
        "model": "Meta-Llama-3.1-8B",
        "gemm_dtype": "bfloat16",
        "phase": "decode",
        "batch": 16,
        "total_ms": 10.0,
        "attention_ms": 2.0,
        "gemm_ms": 4.0,
        "logits_ms": 0.5,
    }
    others: list[dict[str, object]] = [{"model": "Qwen"}, {"gemm_dtype": "fp8"}, {"phase": "prefill"}]
    rows = elementwise_rows(csv(tmp_path, row, *(row | other for other in others)))
    assert (list(rows.tokens), list(rows.seconds)) == ([16.0], [pytest.approx(0.0035)])


def test_layers_and_samplers_are_read_with_what_they_move(tmp_path: Path) -> None:
    layers = layer_rows(csv(tmp_path, {"num_tokens": 3, "bytes_per_token": 100, "latency_ms": 2.0}))
    assert (layers.tokens[0], layers.traffic_bytes[0], layers.seconds[0]) == (3, 300, 0.002)
    samples = sampler_rows(csv(tmp_path, {"rows": 3, "vocab": 1000, "latency_ms": 2.0}))
    assert (samples.rows[0], samples.logits[0], samples.seconds[0]) == (3, 3000, 0.002)


def test_a_table_is_found_as_csv_or_parquet_by_what_it_holds(tmp_path: Path) -> None:
    for name in ("l40s_sampler_own.parquet", "l40s_gemm_own.csv", "l40s_notes.csv"):
        (tmp_path / name).touch()
    assert find_tables(tmp_path) == {
        fit_tables.GEMM: tmp_path / "l40s_gemm_own.csv",
        fit_tables.SAMPLER: tmp_path / "l40s_sampler_own.parquet",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "rows,vocab,latency_ms\n1,2,3\n1,0,3\n",
            r"vocab in table\.csv: got 0, must be positive .data row 2",
        ),
        (
            "rows,vocab,latency_ms\n1,2,3\n1,inf,3\n",
            r"vocab in table\.csv: got inf, must be positive .data row 2",
        ),
        ("rows,vocab,latency_ms\n1,2,3,4\n", "a row has more values than the header"),
        ("rows,vocab\n1,2\n", "got 'latency_ms', is missing; it has rows, vocab"),
        ("", "cannot be read"),
        ("rows,vocab,latency_ms," + "x" * 20_000, "its first line has more than 16,384 bytes"),
        ("rows,vocab,latency_ms," + "x" * (2**14 - 22) + "\n", "its first line has more than 16,384 bytes"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        sampler_rows(path)


def test_a_header_of_16384_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("rows,vocab,latency_ms," + "x" * (2**14 - 23) + "\n1,2,3,4\n")
    assert sampler_rows(path).logits[0] == 2
