"""``kplan simulate --records``: what it printed, found again in the files with pandas alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kplan.cli.app import run
from tests.conftest import REPOSITORY

EXACT = 1e-9


def answer(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    assert run(["simulate", *argv, "--json"]) == code, capsys.readouterr().err
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def from_files(folder: Path) -> dict[str, Any]:
    """The figures of ``simulate --json`` from the two tables, and run.json for replicas not simulated."""
    steps = pd.read_parquet(folder / "steps.parquet")
    requests = pd.read_parquet(folder / "requests.parquet")
    played = json.loads((folder / "run.json").read_text())["replications"]
    inside, counted = steps[steps["measured"]], requests[requests["measured"]]
    each = inside.groupby(["replication", "replica"])
    seconds = each["end_s"].max() - each["start_s"].min()
    scale = pd.Series({one["replication"]: one["rate_scale"] for one in played})
    rate = (each["emitted"].sum() / seconds).groupby("replication").sum() * scale
    ended = requests.join(each["start_s"].min().rename("open_s"), on=["replication", "replica"])
    ended = ended.join(each["end_s"].max().rename("close_s"), on=["replication", "replica"])
    ended = ended[(ended["finish_s"] > ended["open_s"]) & (ended["finish_s"] <= ended["close_s"])]
    share = 1 / (ended["close_s"] - ended["open_s"])
    return {
        **{
            f"{name}_ms": {
                "mean": counted[f"{name}_s"].mean() * 1e3,
                "p50": counted[f"{name}_s"].quantile(0.5) * 1e3,
                "p99": counted[f"{name}_s"].quantile(0.99) * 1e3,
            }
            for name in ("tpot", "ttft")
        },
        "output_tok_s": rate.mean(),
        "goodput_qps": (share.groupby(ended["replication"]).sum() * scale).mean(),
        "mean_batch": inside["batch"].mean(),
        "mean_k": inside["proposed"].sum() / inside["decodes"].sum(),
        "mean_context": inside["context"].sum() / inside["decodes"].sum(),
        "acceptance_length": inside["decode_emitted"].sum() / inside["decodes"].sum(),
        "split": {f"{part}_s": inside[f"{part}_s"].mean() for part in SPLIT},
        "preemptions": requests["preempted"].sum(),
        "requests": len(requests),
        "steps": len(steps),
        "output_tokens": steps["emitted"].sum(),
    }


SPLIT = ("verify", "draft", "sampling", "overhead")


@pytest.mark.parametrize(
    "argv",
    [
        ["--qps", "30", "--requests", "1500", "--replications", "2", "--replicas", "2"],
        ["--qps", "300", "--requests", "3000", "--replicas", "10", "--policy", "table:1-8=3,9-=1"],
        ["--qps", "40", "--requests", "600", "--replicas", "2", "--router", "least-outstanding"],
        ["--concurrency", "16", "--requests", "300", "--replications", "2", "--policy", "goodput"],
        ["--concurrency", "64", "--requests", "300", "--gpu-memory-utilization", "0.23", "--max-k", "3"],
        ["--qps", "30", "--requests", "600", "--engine", "sglang", "--policy", "sglang-ema"],
        ["--qps", "30", "--requests", "600", "--dp", "2", "--policy", "off"],
    ],
)
def test_every_figure_is_found_in_the_records_again(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--workload", "gsm8k", *argv]
    said = answer(capsys, *load, "--records", str(tmp_path))
    found = from_files(tmp_path)
    for key, value in found.items():
        if isinstance(value, dict):
            shown = {name: said[key][name] for name in value}
            assert shown == pytest.approx(value, rel=EXACT, abs=1e-15), key
        else:
            assert said[key] == pytest.approx(value, rel=EXACT), key
    if "--gpu-memory-utilization" in argv:
        assert said["preemptions"] > 0


def test_a_saturated_load_has_its_records_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--qps", "2000", "--requests", "30", "--workload", "gsm8k"]
    said = answer(capsys, *load, "--records", str(tmp_path), code=1)
    found = from_files(tmp_path)
    assert said["tpot_ms"] is None
    assert found["tpot_ms"]["mean"] > 0
    for key in ("output_tok_s", "mean_batch", "acceptance_length", "requests", "steps"):
        assert said[key] == pytest.approx(found[key], rel=EXACT), key


def test_recording_changes_no_byte_of_the_answer_and_names_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--qps", "9", "--requests", "100", "--workload", "gsm8k", "--policy", "goodput"]
    plain, recorded = answer(capsys, *load), answer(capsys, *load, "--records", str(tmp_path / "r"))
    assert plain.pop("files") == []
    assert recorded.pop("files") == [
        str(tmp_path / "r" / name) for name in ("run.json", "steps.parquet", "requests.parquet")
    ]
    for one in (plain, recorded):
        del one["wall_s"]
    assert json.dumps(plain) == json.dumps(recorded)


def test_the_example_of_the_page_on_the_engine_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer(
        capsys, "--concurrency", "8", "--requests", "120", "--workload", "gsm8k", "--records", str(tmp_path)
    )
    page = (REPOSITORY / "docs/engine.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace("DIR", str(tmp_path)), names)
    assert names["tpot_ms"] == pytest.approx(said["tpot_ms"]["mean"], rel=EXACT)
    assert names["ttft_p99_ms"] == pytest.approx(said["ttft_ms"]["p99"], rel=EXACT)
    for name in ("mean_batch", "acceptance_length", "output_tok_s"):
        assert names[name] == pytest.approx(said[name], rel=EXACT), name


def test_the_same_seed_gives_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--qps", "9", "--requests", "60", "--workload", "gsm8k"]
    for name in ("one", "two"):
        answer(capsys, *load, "--records", str(tmp_path / name))
    for file in ("steps.parquet", "requests.parquet", "run.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_terminal_is_told_p50_and_p99_and_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ["--concurrency", "4", "--requests", "60", "--workload", "gsm8k"]
    said = answer(capsys, *load)
    assert run(["simulate", *load, "--records", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if "TPOT ms P50" in line)
    assert lines[head].split() == ["policy", "TPOT", "ms", "P50", "P99", "TTFT", "ms", "P50", "P99"]
    assert lines[head + 1].split()[0] == "off"
    tpot, ttft = said["tpot_ms"], said["ttft_ms"]
    assert lines[head + 2].split() == [
        "fixed:3", f"{tpot['p50']:.2f}", f"{tpot['p99']:.2f}", f"{ttft['p50']:.1f}", f"{ttft['p99']:.1f}",
    ]  # fmt: skip
    assert lines[-3:] == [
        f"wrote {tmp_path / name}" for name in ("run.json", "steps.parquet", "requests.parquet")
    ]


def test_a_file_in_the_way_is_one_line_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["simulate", "--qps", "9", "--records", str(tmp_path / "file"), "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: --records: got")
    assert len(told.err.splitlines()) == 1
