"""What is measured, in which order, and what a run that is cut off has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kplan.errors import InputError
from kplan.profiles import load_model
from tests.gpu.limits import MOST_COPIES, Budget, copies_to_be_cold, is_cold
from tests.gpu.plan import FIRST, coarse_to_fine, corners_first, interleaved, main, measurements

LLAMA = load_model("llama-3.1-8b").decoder


def test_the_ends_of_an_axis_come_first_then_the_middle() -> None:
    assert coarse_to_fine(1) == [0]
    assert coarse_to_fine(2) == [0, 0]
    assert coarse_to_fine(9) == [0, 3, 2, 3, 1, 3, 2, 3, 0]


def test_all_combinations_come_once_and_the_corners_first() -> None:
    order = corners_first({"a": (1, 2, 3), "b": (10, 20, 30)})
    assert {tuple(one.values()) for one in order[:4]} == {(1, 10), (1, 30), (3, 10), (3, 30)}
    assert tuple(order[-1].values()) == (2, 20)
    assert len({tuple(one.values()) for one in order}) == len(order) == 9


def test_every_group_has_its_first_rows_and_then_its_share() -> None:
    small = [{"op": "small", "i": i} for i in range(40)]
    large = [{"op": "large", "i": i} for i in range(400)]
    order = interleaved((small, large))
    assert Counter(row["op"] for row in order[: 2 * FIRST]) == {"small": FIRST, "large": FIRST}
    for op in ("small", "large"):
        assert [row["i"] for row in order if row["op"] == op] == list(
            range(len(small if op == "small" else large))
        )
    for cut in (0.3, 0.5, 0.8):
        seen = Counter(row["op"] for row in order[: int(cut * len(order))])
        assert seen["large"] / 400 == pytest.approx(cut, abs=0.05)
        assert seen["small"] / 40 >= cut - 0.05


def test_a_plan_has_the_matrices_of_the_model_and_every_query_length() -> None:
    rows = measurements(LLAMA)
    matrices = {(row["matrix"], row["n"], row["k"]) for row in rows if row["op"] == "gemm"}
    assert (
        matrices
        == {  # of Llama 3.1 8B's config.json: 32 heads and 8 KV heads of 128, 14336 wide, 128256 words
            ("qkv", 6144, 4096),
            ("o", 4096, 4096),
            ("gate_up", 28672, 4096),
            ("down", 4096, 14336),
            ("lm_head", 128256, 4096),
        }
    )
    verify = [row for row in rows if row["op"] == "generation_attention"]
    assert len(verify) == 8 * 9 * 9
    assert {row["query_len"] for row in verify} == set(range(1, 9))
    assert {(row["num_heads"], row["num_kv_heads"], row["head_dim"]) for row in verify} == {(32, 8, 128)}
    prompts = [row for row in rows if row["op"] == "context_attention"]
    assert max(int(row["batch_size"]) * int(row["kv_len"]) for row in prompts) == 32768
    assert len({tuple(row.items()) for row in rows}) == len(rows)


def test_models_without_a_benchmark_are_refused() -> None:
    for name in ("deepseek-v2-lite", "mixtral-8x7b"):
        with pytest.raises(InputError, match="has no microbenchmark"):
            measurements(load_model(name).decoder)


def test_the_plan_is_a_line_per_row(tmp_path: Path) -> None:
    main(["--model", "qwen3-0.6b", "--out", str(tmp_path / "plan.jsonl")])
    lines = (tmp_path / "plan.jsonl").read_text().splitlines()
    assert len(lines) == len(measurements(load_model("qwen3-0.6b").decoder))


def test_a_copy_is_out_of_the_cache_when_its_turn_comes() -> None:
    cache = 50_000_000
    assert copies_to_be_cold(400_000_000, cache) == 1
    assert copies_to_be_cold(50_000_000, cache) == 3
    assert copies_to_be_cold(49_000_000, cache) == 4  # 3 x 49 MB would leave a part of the cache
    assert is_cold(49_000_000, 4, cache)
    assert not is_cold(49_000_000, 3, cache)
    assert copies_to_be_cold(1000, cache) == MOST_COPIES
    assert not is_cold(1000, MOST_COPIES, cache)
    assert copies_to_be_cold(1000, 0) == 1  # a device that tells no cache
    assert not is_cold(10**9, 1, 0)


def test_a_budget_counts_from_the_start_of_the_program() -> None:
    now = [105.0]
    budget = Budget(10.0, 100.0, lambda: now[0])
    assert budget.left
    now[0] = 110.0
    assert not budget.left
    assert budget.spent_s == 10.0
