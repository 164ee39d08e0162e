"""The figures carried over are those of the sources, row by row."""

from __future__ import annotations

import csv
from pathlib import Path

from kplan.validate.load import load_tables, shipped_tables


def read(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_pr_32374(shared_dir: Path) -> None:
    source = read(shared_dir / "validation" / "vllm_pr32374_dynamic_sd_tpot.csv")
    for name, column in (("off", "none"), ("eagle", "fixed"), ("dynamic", "dynamic")):
        (table,) = load_tables([f"pr32374-{name}"])
        ours = {(str(row.at["workload"]), float(row.at["batch"])): row.measured for row in table.rows}
        theirs = {
            (row["dataset"].lower(), float(row["batch_size"])): float(row[f"{column}_tpot_ms"])
            for row in source
            if row[f"{column}_tpot_ms"]
        }
        assert ours == theirs


def test_issue_20780(shared_dir: Path) -> None:
    source = read(shared_dir / "validation" / "vllm_issue20780_eagle1_vs_eagle3_k_sweep.csv")
    for name, column in (("eagle", "eagle1_tpot_ms"), ("eagle3", "eagle3_tpot_ms")):
        (table,) = load_tables([f"issue20780-{name}"])
        ours = {int(row.at["k"]): row.measured for row in table.rows}
        assert ours == {0: 7.07} | {int(row["K"]): float(row[column]) for row in source}
        assert all(row.used_in_fit for row in table.rows)


def test_every_row_of_the_speedup_figure(shared_dir: Path) -> None:
    models = {"Llama3.1-8B": "llama-3.1-8b", "Llama3-70B": "llama-3-70b", "Qwen3-8B": "qwen3-8b"}
    source = read(shared_dir / "validation" / "illusion_fig1_speedup_by_batch.csv")
    theirs = {
        (models[row["model"]], row["dataset"], row["method"], float(row["batch_size"])): float(row["speedup"])
        for row in source
    }
    ours = {
        (
            table.settings["scenario"]["model"],
            row.at["dataset"],
            row.at["method"],
            row.at["batch"],
        ): row.measured
        for table in shipped_tables()
        if table.name.startswith("illusion-fig1-")
        for row in table.rows
    }
    assert len(ours) == 104
    assert ours == theirs


def test_end_to_end_rows_without_speculation(shared_dir: Path) -> None:
    hf = {"llama-3.1-8b": "Llama-3.1-8B-Instruct", "llama-3.1-70b": "Llama-3.1-70B", "qwen3-32b": "Qwen3-32B"}
    source = {
        tuple(
            [
                row["model_path"].partition("/")[2],
                row["backend"],
                row["backend_version"],
                row["gemm_quant_mode"],
            ]
            + [float(row[name]) for name in ("tp_size", "isl", "osl", "batch_size")]
        ): float(row["silicon_tpot_ms"])
        for row in read(shared_dir / "data" / "h100_e2e_tpot_ttft.csv")
    }
    engines = {"TensorRT-LLM": "trtllm", "vLLM": "vllm", "SGLang": "sglang"}
    tables = [table for table in shipped_tables() if table.name.startswith("e2e-")]
    assert tables
    for table in tables:
        engine, _, version = table.title.partition(", ")[2].partition(": ")[0].partition(" ")
        scenario = table.settings["scenario"]
        for row in table.rows:
            at = [float(row.at[name]) for name in ("tp", "isl", "osl", "batch")]
            key = (hf[scenario["model"]], engines[engine], version, scenario.get("quantization", ""), *at)
            assert abs(row.measured / source[key] - 1) < 1e-4
