"""Calibration and hardware files with figures that no time can be computed from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from kplan.errors import InputError
from kplan.profiles import load_calibration, load_hardware


def changed(kind: str, path: tuple[str | int, ...], value: object, out: Path) -> Path:
    """The shipped h100-sxm file with one value changed, written to ``out``."""
    content: Any = yaml.safe_load((files("kplan_profiles") / kind / "h100-sxm.yaml").read_text("utf-8"))
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    out.write_text(yaml.safe_dump(content))
    return out


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("gemm", "t0_s", "value"), float("inf"), "finite"),
        (("gemm", "t0_s", "value"), float("nan"), "gemm.t0_s.value"),
        (("gemm", "t0_s", "stderr"), float("inf"), "finite"),
        (("gemm", "p", "value"), 0.0, "greater than or equal to 1"),
        (("attention", "p", "value"), 0.5, "greater than or equal to 1"),
        (("gemm", "bandwidth_eff", "value"), 0.0, "greater than or equal to 0.000001"),
        (("gemm", "flops_eff", "value"), 5.0, "less than or equal to 1"),
        (("attention", "prefill_bandwidth_eff", "value"), 1.01, "less than or equal to 1"),
        (("elementwise", "bandwidth_eff", "value"), 0.0, "greater than or equal to 0.000001"),
        (("all_reduce", 2, "bytes_per_s", "value"), 0.0, "greater than or equal to 1000"),
        (("all_reduce", 1), {}, "greater than or equal to 2"),
        (("gemm", "p", "source"), "elsewhere", "add it to the sources"),
    ],
)
def test_a_figure_out_of_its_bounds_is_named(
    path: tuple[str | int, ...], value: object, told: str, tmp_path: Path
) -> None:
    file = changed("calibrations", path, value, tmp_path / "own.yaml")
    with pytest.raises(InputError, match=told):
        load_calibration(file)


@pytest.mark.parametrize("key", ["memory_bytes", "bandwidth_bytes_s", "peak_flops", "link_bytes_s"])
def test_hardware_without_a_rate_is_refused(key: str, tmp_path: Path) -> None:
    file = changed("hardware", (key, "value"), 0, tmp_path / "own.yaml")
    with pytest.raises(InputError, match=rf"{key}.value: got 0, input should be .* equal to 1000"):
        load_hardware(file)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    file = changed("calibrations", ("summary",), "own", tmp_path / "own.yaml")
    file.write_text(file.read_text() + "summary: again\n")
    with pytest.raises(InputError, match="'summary' is given twice"):
        load_calibration(file)
