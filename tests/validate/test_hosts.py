"""Hosts fitted on published closed loops: the shipped figures come out again, and their rows do not count."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.latency.fit_tpot import read_rows
from kplan.latency.published import load_host_timings
from kplan.profiles import load_calibration
from kplan.validate.load import load_tables

RUNS = Path(str(files("kplan_profiles") / "calibrations/published/h100-sxm-trtllm-tpot.csv"))


def used_in_fit(name: str) -> list[float]:
    (table,) = load_tables([name])
    return sorted(row.measured for row in table.rows if row.used_in_fit)


def test_the_host_of_tensorrt_llm_is_what_its_five_runs_give(tmp_path: Path) -> None:
    out = tmp_path / "again.yaml"
    only = ["--only", "host.step_s", "--only", "host.request_s"]
    assert run(["calibrate", "--tpot", str(RUNS), "--tp", "8", *only, "--out", str(out)]) == 0
    again, shipped, vllm = (load_calibration(one) for one in (out, "h100-sxm-trtllm", "h100-sxm"))
    assert again.host.step_s.value == pytest.approx(shipped.host.step_s.value, rel=1e-3)
    assert again.host.request_s.value == pytest.approx(shipped.host.request_s.value, rel=1e-3)
    assert shipped.gemm == vllm.gemm, "nothing but the host was fitted"
    assert shipped.host.pass_s == vllm.host.pass_s
    assert shipped.host_alternate is None, "the host beside the other GEMM source is vLLM's"


def test_rows_that_a_host_was_fitted_on_are_those_said_to_be() -> None:
    runs = sorted(row.tpot_ms or 0.0 for _, row in read_rows(RUNS))
    assert used_in_fit("e2e-llama-3.1-8b-trtllm-1.0.0rc3-bf16") == pytest.approx(runs, rel=1e-4)
    loops = sorted(row.tpot_ms for row in load_host_timings().loops)
    assert used_in_fit("e2e-qwen3-32b-vllm-0.12.0-bf16") == pytest.approx(loops, rel=1e-4)
