"""GPUs against their datasheets, and the calibration that one without its own borrows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import pytest

from kplan.profiles import Dtype, available, load_calibration, load_engine, load_hardware
from kplan.provenance import Figure, Kind

DATASHEETS = {  # dense bf16 and fp8 TFLOP/s, TB/s, link GB/s one way
    "h100-sxm": (989.4, 1978.9, 3.35, 450),
    "h100-nvl": (835.5, 1671, 3.9, 300),
    "h100-pcie": (756, 1513, 2.0, 64),
    "h200": (989.4, 1978.9, 4.8, 450),
    "a100": (312, None, 2.039, 300),
    "l40s": (362.05, 733, 0.864, 32),
    "b200": (2250, 4500, 8.0, 900),
    "mi300x": (1307.4, 2614.9, 5.3, 448),
}


@pytest.mark.parametrize("name", DATASHEETS)
def test_peaks_are_those_of_the_datasheet(name: str) -> None:
    bf16, fp8, bandwidth, link = DATASHEETS[name]
    gpu = load_hardware(name)
    assert gpu.peak(Dtype.BF16).value / 1e12 == pytest.approx(bf16)
    assert gpu.peak(Dtype.FP8).value / 1e12 == pytest.approx(fp8 or bf16)  # else multiplied as bf16
    assert gpu.peak(Dtype.INT4) == gpu.peak_flops
    assert gpu.bandwidth_bytes_s.value / 1e12 == pytest.approx(bandwidth)
    assert gpu.link_bytes_s is not None
    assert gpu.link_bytes_s.value / 1e9 == pytest.approx(link)
    assert gpu.peak_flops.provenance.kind is Kind.PUBLISHED


def test_every_gpu_is_listed_as_calibrated_or_not() -> None:
    own = {line.name for line in available("calibrations")}
    listed = {line.name: line for line in available("hardware")}
    for name in DATASHEETS:
        assert ("not calibrated" in listed[name].summary) == (name not in own)


def figures(record: object) -> Iterator[Figure]:
    if isinstance(record, Figure):
        yield record
    elif isinstance(record, dict):
        for value in record.values():
            yield from figures(value)
    elif is_dataclass(record):
        for field in fields(record):
            yield from figures(getattr(record, field.name))


def test_a_borrowed_calibration_is_assumed_throughout() -> None:
    lent, mine = load_calibration("h100-sxm"), load_calibration("l40s")
    assert (mine.hardware, mine.borrowed_from, lent.borrowed_from) == ("l40s", "h100-sxm", "")
    all_figures = list(figures(mine))
    assert len(all_figures) == len(list(figures(lent)))
    for figure in all_figures:
        assert figure.provenance.kind is Kind.ASSUMED
        assert "borrowed from h100-sxm" in figure.provenance.source
        assert figure.stderr is None
    assert mine.provenance.kind is Kind.ASSUMED
    assert mine.gemm.bandwidth_eff.value == lent.gemm.bandwidth_eff.value
    assert mine.host.step_s.value == lent.host.step_s.value
    assert mine.slower(2.0).borrowed_from == "h100-sxm"


def test_all_reduce_follows_the_link_and_needs_one() -> None:
    lent, gpu = load_calibration("h100-sxm"), load_hardware("a100")
    mine = load_calibration(gpu)
    for ranks, fit in mine.all_reduce.items():
        assert fit.bytes_per_s.value == pytest.approx(lent.all_reduce[ranks].bytes_per_s.value * 300 / 450)
        one_shot = lent.all_reduce[ranks].one_shot_bytes_per_s.value
        assert fit.one_shot_bytes_per_s.value == pytest.approx(one_shot * 300 / 450)
        assert fit.t0_s.value == lent.all_reduce[ranks].t0_s.value
        assert fit.two_shot_s.value == lent.all_reduce[ranks].two_shot_s.value
    assert set(mine.all_reduce) == set(lent.all_reduce)
    assert load_calibration(replace(gpu, link_bytes_s=None)).all_reduce == {}


def test_engine_limits_of_other_gpus() -> None:
    """vLLM: >= 160 GB 16384/1024, >= 70 GB 8192/1024 but never an A100, else 2048/256."""
    engine = load_engine("vllm")
    found = {name: engine.limits(load_hardware(name), drafting=False) for name in DATASHEETS}
    assert found["b200"] == found["mi300x"] == (16384, 1024)
    assert found["h200"] == found["h100-nvl"] == (8192, 1024)
    assert found["a100"] == found["l40s"] == (2048, 256)
