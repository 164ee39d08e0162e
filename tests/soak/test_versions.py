"""The oldest versions that pyproject.toml allows: they install together, and give the figures of ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run
from tests.soak.figures import tell

ROOT = Path(__file__).parents[2]
ASKS = (
    ("simulate", "--qps", "9", "--requests", "100", "--workload", "gsm8k", "--policy", "goodput"),
    ("simulate", "--qps", "9", "--requests", "100", "--replications", "2", "--workload", "gsm8k"),
)
REFUSED = ("simulate", "--qps", "x")
WITHIN = 1e-8
"""Largest share by which a figure may differ: ends of intervals rest on scipy's quantiles (3.4e-10 seen)."""


def oldest() -> list[str]:
    """Every dependency at its lower bound."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert all(re.fullmatch(r"[\w.-]+>=[\w.]+", one) for one in wanted), wanted
    return [one.replace(">=", "==") for one in wanted]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the oldest versions and this kplan."""
    folder = tmp_path_factory.mktemp("oldest")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    had = subprocess.run([*pip, "--dry-run", "numpy"], capture_output=True, text=True, check=False)
    if had.returncode != 0:
        pytest.skip(f"NO PACKAGES can be had here: {had.stderr.strip().splitlines()[-1]}")
    for given in (oldest(), ["--no-deps", str(ROOT)]):
        done = subprocess.run([*pip, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"the lower bounds do not install together:\n{done.stderr[-2000:]}"
    return python


def asked(python: Path, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command in the old environment, with compiled kernels of its own."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(python.parent / "kplan"), *argv],
        cwd=folder, env=kept | {"NUMBA_CACHE_DIR": str(folder / "numba")}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Every figure of a JSON value by its place."""
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in leaves(one, f"{place}.{key}").items()}
    if isinstance(value, list):
        return {k: v for n, one in enumerate(value) for k, v in leaves(one, f"{place}[{n}]").items()}
    return {place: value}


def test_the_oldest_versions_give_the_same_figures(
    python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared, worst, exact = 0, 0.0, 0
    for ask in ASKS:
        assert run([*ask, "--json"]) == 0
        ours = json.loads(capsys.readouterr().out)
        done = asked(python, tmp_path, *ask, "--json")
        assert done.returncode == 0, done.stderr
        theirs = json.loads(done.stdout)
        assert theirs.pop("versions")["numpy"] != ours.pop("versions")["numpy"]
        for record in (ours, theirs):
            record.pop("wall_s")
        mine, other = leaves(ours), leaves(theirs)
        assert mine.keys() == other.keys()
        for place, value in mine.items():
            if isinstance(value, float):
                compared += 1
                exact += value == other[place]
                worst = max(worst, abs(value - other[place]) / max(abs(value), 1e-300))
            else:
                assert other[place] == value, place
    tell(
        "versions", figures=compared, identical=exact, largest_difference=worst, python=sys.version.split()[0]
    )
    assert worst <= WITHIN


def test_bad_input_is_one_line_with_the_oldest_versions_too(python: Path, tmp_path: Path) -> None:
    """With typer before 0.28 every fault of usage was a traceback."""
    done = asked(python, tmp_path, *REFUSED)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: got '--qps x': Invalid value for '--qps': 'x' is not a valid float. (see kplan --help)"
    ]
