"""Tables on disk, and the profile of a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kplan.latency import fit_tables
from kplan.profiles import load_hardware
from kplan.provenance import Kind
from tests.gpu import hardware
from tests.gpu.device import parse_smi
from tests.gpu.tables import Tables

TIMED = {"kernel_source": "made, up", "l2": "warm", "replays": 5, "spread": 0.1, "latency_ms": 0.25}
ATTENTION = {
    "op": "generation_attention",
    "kv_cache_dtype": "bfloat16",
    "num_heads": 16,
    "num_kv_heads": 4,
    "head_dim": 64,
}
SMI = "NVIDIA L40S, 570.00, 46068, 2520, 2520, 9001, 350.00, 41"


def test_every_row_is_whole_on_disk_before_the_next(tmp_path: Path) -> None:
    tables = Tables(tmp_path / "new", "card", "torch2")
    gemm = {"op": "gemm", "gemm_dtype": "bfloat16", "matrix": "lm_head", "m": 4, "n": 151936, "k": 1024}
    for count in (1, 2):
        tables.add(gemm, TIMED)
        rows = fit_tables.gemm_rows(tables.path("gemm"))
        assert rows is not None
        assert list(rows.seconds) == [0.25e-3] * count
    assert list(rows.n) == [151936.0] * 2  # named, so not left out as a matrix of no dense model
    assert tables.path("gemm").name == "card_gemm_torch2.csv"
    tables.write_run({"done": 2})
    assert json.loads((tmp_path / "new" / "run.json").read_text()) == {"done": 2}


def test_rows_of_other_columns_and_used_folders_are_refused(tmp_path: Path) -> None:
    tables = Tables(tmp_path, "card", "torch2")
    tables.add({"op": "copy", "bytes": 1}, TIMED)
    with pytest.raises(ValueError, match="has the columns"):
        tables.add({"op": "copy", "size": 1}, TIMED)
    with pytest.raises(FileExistsError, match=r"holds card_copy_torch2\.csv"):
        Tables(tmp_path, "card", "torch2")


def test_verification_rows_keep_query_length_head_size_and_cold_caches(tmp_path: Path) -> None:
    tables = Tables(tmp_path, "card", "torch2")
    # 16 x 2048 tokens x 4 heads x 64 x 2 x 2 bytes = 33.6 MB: in the L2 cache unless it was swept
    for query_len, l2 in ((1, "warm"), (4, "cold"), (8, "cold")):
        sizes = ATTENTION | {"query_len": query_len, "batch_size": 16, "kv_len": 2048}
        tables.add(sizes, TIMED | {"l2": l2})
    rows = fit_tables.decode_rows(tables.path("generation_attention"))
    assert rows is not None
    assert list(rows.query_len) == [4.0, 8.0]
    assert list(rows.head_dim) == [64.0, 64.0]
    assert list(rows.heads) == [16.0, 16.0]


def test_a_card_is_a_profile_of_its_datasheet_and_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hardware, "read_smi", lambda: parse_smi(SMI))
    path = tmp_path / "mine.yaml"
    argv = ["--hardware", str(path), "--name", "mine", "--source", "a datasheet"]
    assert hardware.main([*argv, "--bandwidth-gb-s", "864", "--peak-tflops", "362"]) == 0
    assert capsys.readouterr().out == "mine\n"
    card = load_hardware(path)
    assert card.memory_bytes.value == 46068 * 1024 * 1024
    assert card.memory_bytes.provenance.kind is Kind.MEASURED
    assert (card.bandwidth_bytes_s.value, card.peak_flops.value) == (864e9, 362e12)
    assert card.peak_flops.provenance.source == "a datasheet"
    assert card.peak_flops_fp8 is None
    assert yaml.safe_load(path.read_text())["sources"]["driver"] == "nvidia-smi, driver 570.00"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--hardware", "h20"], "h200"),
        (["--hardware", "x.yaml", "--name", "x", "--peak-tflops", "1", "--source", "s"], "--bandwidth-gb-s"),
        (["--hardware", "x.yaml", "--name", "x", "--peak-tflops", "1", "--bandwidth-gb-s", "1"], "--source"),
    ],
)
def test_a_card_that_is_not_told_is_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hardware.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert len(captured.err.splitlines()) == 1


def test_a_driver_that_answers_otherwise_is_refused() -> None:
    assert parse_smi(SMI)["clocks.max.sm"] == "2520"
    with pytest.raises(ValueError, match="zip"):
        parse_smi("No devices were found")
