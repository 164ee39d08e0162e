"""Tables as the microbenchmark writes them, made with known coefficients: the calibration must find these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kplan.cli.app import run
from kplan.profiles import Calibration, load_calibration, load_hardware, load_model
from kplan.provenance import Kind
from tests.gpu.plan import Row, measurements
from tests.gpu.tables import Tables

H200 = load_hardware("h200")  # has no calibration of its own
BANDWIDTH, PEAK = H200.bandwidth_bytes_s.value, H200.peak_flops.value
MODEL = load_model("llama-3.1-8b").decoder
NOISE = 0.02


def _gemm_s(row: dict[str, float]) -> float:
    """5 us, then 0.8 of the bandwidth and 0.7 of the peak, joined with p = 2.5."""
    m, n, k = row["m"], row["n"], row["k"]
    memory, compute = 2 * (m * k + k * n + m * n) / (0.8 * BANDWIDTH), 2 * m * n * k / (0.7 * PEAK)
    return float(5e-6 + (memory**2.5 + compute**2.5) ** 0.4)


def _verify_s(row: dict[str, float]) -> float:
    """9 us, then 30 ns per request and KV head and 0.85 of the bandwidth, joined with p = 2.

    The KV cache is read once per request; only queries and outputs grow with the query length.
    """
    batch, queries = row["batch_size"], row["batch_size"] * row["query_len"]
    moved = batch * row["kv_len"] * 8 * 128 * 2 * 2 + queries * 2 * 32 * 128 * 2
    return float(9e-6 + np.hypot(30e-9 * batch * 8, moved / (0.85 * BANDWIDTH)))


def _prefill_s(row: dict[str, float]) -> float:
    """9 us, 0.4 of the bandwidth and 0.6 of the peak, summed."""
    batch, length = row["batch_size"], row["kv_len"]
    moved, flops = batch * length * 2 * 40 * 2 * 128, 4 * 32 * 128 * batch * length**2 / 2
    return float(9e-6 + moved / (0.4 * BANDWIDTH) + flops / (0.6 * PEAK))


def _layer_s(row: dict[str, float]) -> float:
    """7 us and 0.9 of the bandwidth; per token 8 x 4096 + 3 x 14336 + 2 x 40 x 128 bf16 values move."""
    return float(7e-6 + row["num_tokens"] * 2 * (8 * 4096 + 3 * 14336 + 2 * 40 * 128) / (0.9 * BANDWIDTH))


def _sampler_s(row: dict[str, float]) -> float:
    """12 us and 14 bytes per logit at 0.9 of the bandwidth."""
    return float(12e-6 + row["rows"] * row["vocab"] * 14 / (0.9 * BANDWIDTH))


TIMES = {
    "gemm": _gemm_s,
    "generation_attention": _verify_s,
    "context_attention": _prefill_s,
    "elementwise": _layer_s,
    "sampler": _sampler_s,
}


def _write(folder: Path, rows: list[Row], cold: str = "cold") -> None:
    rng = np.random.default_rng(5)
    tables = Tables(folder, "h200", "torch0.0")
    for row in rows:
        if (seconds := TIMES.get(str(row["op"]))) is None:
            continue
        sizes = {name: float(value) for name, value in row.items() if not isinstance(value, str)}
        noisy = seconds(sizes) * 1e3 * float(np.exp(rng.normal(0, NOISE)))
        told = {"kernel_source": "made", "l2": cold, "replays": 5, "spread": 0.0, "latency_ms": noisy}
        tables.add(row, told)


def _calibrated(folder: Path, rows: list[Row]) -> Calibration:
    _write(folder / "tables", rows)
    out = folder / "calibration.yaml"
    argv = ["calibrate", "--hardware", "h200", "--tables", str(folder / "tables"), "--out", str(out)]
    assert run(argv) == 0
    return load_calibration(out)


@pytest.fixture(scope="module")
def plan() -> list[Row]:
    """The whole plan of the shipped default model."""
    return measurements(MODEL)


def test_the_coefficients_behind_a_whole_run_are_found(plan: list[Row], tmp_path: Path) -> None:
    found = _calibrated(tmp_path, plan)
    for figure, value in (
        (found.gemm.t0_s, 5e-6),
        (found.gemm.bandwidth_eff, 0.8),
        (found.gemm.flops_eff, 0.7),
        (found.gemm.p, 2.5),
        (found.attention.t0_s, 9e-6),
        (found.attention.tile_s, 30e-9),
        (found.attention.bandwidth_eff, 0.85),
        (found.attention.p, 2.0),
        (found.attention.prefill_bandwidth_eff, 0.4),
        (found.attention.flops_eff, 0.6),
        (found.elementwise.t0_s, 7e-6),
        (found.elementwise.bandwidth_eff, 0.9),
        (found.sampler.bytes_per_logit, 14.0),
    ):
        assert figure.provenance.kind is Kind.FITTED
        assert figure.stderr is not None
        assert abs(figure.value - value) < max(4 * figure.stderr, 0.02 * value), (figure, value)
    assert found.hardware == "h200"
    assert "h200_gemm_torch0.0.csv, blake2b" in found.gemm.t0_s.provenance.source
    assert found.sampler.step_s.provenance.kind is Kind.ASSUMED  # no table here tells the launches
    assert found.host.step_s.provenance.kind is Kind.ASSUMED


def test_a_run_cut_off_early_calibrates_too(plan: list[Row], tmp_path: Path) -> None:
    found = _calibrated(tmp_path, plan[: len(plan) // 6])
    assert found.gemm.flops_eff.value == pytest.approx(0.7, rel=0.05)
    assert found.gemm.bandwidth_eff.value == pytest.approx(0.8, rel=0.05)
    assert found.attention.bandwidth_eff.value == pytest.approx(0.85, rel=0.05)
    assert found.attention.flops_eff.value == pytest.approx(0.6, rel=0.05)
    assert found.sampler.bytes_per_logit.value == pytest.approx(14, rel=0.05)


def test_two_sources_of_elementwise_times_are_refused(
    plan: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path / "tables", plan)
    steps = "model,gemm_dtype,phase,batch,total_ms,attention_ms,gemm_ms,logits_ms\n"
    steps += "".join(f"Meta-Llama-3.1-8B,bfloat16,decode,{b},{9 + b / 100},1,7,0.5\n" for b in range(1, 20))
    (tmp_path / "tables" / "h200_aic_step_latency_lookup.csv").write_text(steps)
    out = tmp_path / "calibration.yaml"
    argv = ["calibrate", "--hardware", "h200", "--tables", str(tmp_path / "tables"), "--out", str(out)]
    assert run(argv) == 2
    assert "keep one of them" in capsys.readouterr().err
    assert not out.exists()
