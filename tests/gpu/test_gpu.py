"""The whole script on a real card, in short; without one it skips and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kplan.profiles import load_calibration
from kplan.provenance import Kind

HERE = Path(__file__).parent
LIMIT_S = 150


@pytest.mark.gpu
def test_a_short_run_calibrates_the_card(tmp_path: Path) -> None:
    python = os.environ.get("GPU_PYTHON", sys.executable)
    hardware = os.environ.get("HARDWARE", "h200")
    command = [str(HERE / "run.sh"), "--out", str(tmp_path / "run"), "--gpu-python", python]
    command += ["--hardware", hardware, "--limit-s", str(LIMIT_S)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S + 60, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    ran = json.loads((tmp_path / "run" / "tables" / "run.json").read_text())
    assert min(ran["done"].values()) >= 3
    found = load_calibration(tmp_path / "run" / "calibration.yaml")
    assert found.gemm.bandwidth_eff.provenance.kind is Kind.FITTED
    assert 0.5 < found.gemm.bandwidth_eff.value <= 1.0
    assert 0.3 < found.gemm.flops_eff.value <= 1.0
    assert 0.3 < found.attention.bandwidth_eff.value <= 1.0
    assert 1e-7 < found.elementwise.t0_s.value < 1e-4
