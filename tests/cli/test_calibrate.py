"""``kplan calibrate`` as a user runs it: files in, files out, one line and no file on bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.profiles import load_calibration
from kplan.provenance import Kind
from tests.latency.test_fit_measured import TRUE, write_log, write_table


def test_logs_and_runs_give_a_calibration_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "steps.jsonl", (1, 16, 128))
    table = write_table(tmp_path / "tpot.csv", (1, 32, 128))
    out, page = tmp_path / "own.yaml", tmp_path / "own.html"
    argv = ["calibrate", "--steps", str(log), "--tpot", str(table), "--out", str(out), "--report", str(page)]
    assert run([*argv, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["fitted"]["gemm.flops_eff"]["value"] == pytest.approx(TRUE.flops_eff, rel=0.06)
    assert record["fits"]["steps.jsonl, eagle"]["rows"] == 8
    found = load_calibration(out)
    assert found.hardware == "h100-sxm"
    assert found.host.step_s.provenance.kind is Kind.FITTED
    assert str(tmp_path) not in out.read_text()
    html = page.read_text()
    assert "gemm.flops_eff" in html
    assert "chart-context" in html
    assert str(tmp_path) not in html
    assert 'src="http' not in html


def test_a_gpu_of_ones_own_is_calibrated_from_its_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = tmp_path / "mine.yaml"
    gpu.write_text(
        "name: mine\nsummary: made up\n"
        "memory_bytes: {value: 80.0e9, kind: assumed, source: me}\n"
        "bandwidth_bytes_s: {value: 3.35e12, kind: assumed, source: me}\n"
        "peak_flops: {value: 900.0e12, kind: assumed, source: me}\n"
        "sources: {me: guess}\nprovenance: {kind: assumed, source: guess}\n"
    )
    log = write_log(tmp_path / "steps.jsonl", (1, 4, 16, 64, 128))
    out = tmp_path / "mine-calibration.yaml"
    assert run(["calibrate", "--steps", str(log), "--hardware", str(gpu), "--out", str(out)]) == 0
    assert "wrote" in capsys.readouterr().err
    found = load_calibration(out)
    assert found.hardware == "mine"
    # the same seconds on a GPU of a smaller peak: its share of the peak is larger
    assert found.gemm.flops_eff.value == pytest.approx(TRUE.flops_eff * 989.4 / 900, rel=0.04)
    assert found.gemm.bandwidth_eff.value == pytest.approx(TRUE.bandwidth_eff, rel=0.04)
    assert found.attention.tile_s.provenance.kind is Kind.ASSUMED


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "needs --url, --tables, --steps or --tpot"),
        (["--tables", "nowhere"], "must be an existing folder"),
        (["--steps", "nowhere.jsonl"], "cannot be read"),
        (["--tpot", "nowhere.csv"], "cannot be read"),
        (["--tpot", "SMALL"], "compute-bound slope is not identified"),
        (["--tpot", "SMALL", "--base", "nothing"], "nothing"),
        (["--tpot", "SMALL", "--model", "nothing"], "nothing"),
        (["--tpot", "SMALL", "--report", "nowhere/x.html"], "its folder must exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    argv: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_table(tmp_path / "tpot.csv", (1, 2, 4))
    given = [str(small) if one == "SMALL" else one for one in argv]
    assert run(["calibrate", *given, "--out", str(tmp_path / "out.yaml")]) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["tpot.csv"]


def test_partial_keeps_the_base_where_rows_tell_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_table(tmp_path / "tpot.csv", (1, 2, 4))
    out = tmp_path / "out.yaml"
    assert run(["calibrate", "--tpot", str(small), "--partial", "--out", str(out)]) == 0
    assert "compute-bound slope is not identified" in capsys.readouterr().err
    assert load_calibration(out).gemm.flops_eff == load_calibration("h100-sxm").gemm.flops_eff
