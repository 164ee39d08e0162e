"""Every reader under coverage-guided fuzzing: no traceback, no hang, at most a GiB for a MiB of input."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.readers import READERS
from tests.soak.figures import RUNS, seconds, tell
from tests.soak.fuzz_limits import GROUPS, MOST_GROWTH_MIB, TIMEOUT_S

START_S = 900
"""Longest that a process takes to import what it fuzzes, on a busy machine."""


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no build for this platform"
)
def test_no_reader_breaks(tmp_path: Path) -> None:
    each = max(2, round(seconds(600) / GROUPS))
    inputs = read = hangs = 0
    peak_mib = 0
    broken: dict[int, str] = {}
    for number in range(GROUPS):
        corpus, kept, counts = (
            tmp_path / f"c{number}",
            RUNS / "fuzz" / str(number),
            tmp_path / f"n{number}.json",
        )
        corpus.mkdir()
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        argv = [
            sys.executable,
            "-m",
            "tests.soak.fuzz_one",
            str(number),
            str(each),
            str(corpus),
            f"{kept}/",
            str(counts),
        ]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=each + TIMEOUT_S + START_S, check=False)
        except subprocess.TimeoutExpired:
            hangs += 1
            broken[number] = f"{kept}: it did not end"
            continue
        found = json.loads(counts.read_text(encoding="utf-8")) if counts.exists() else {}
        inputs, read = inputs + found.get("inputs", 0), read + found.get("read", 0)
        peak_mib = max(peak_mib, found.get("peak_mib", 0))
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace")
            hangs += "ALARM: working on the last Unit" in said
            broken[number] = f"{kept}: {said[-1500:]}"
        else:
            kept.rmdir()
    crashes = len(broken) - hangs
    tell(
        "fuzz",
        inputs=inputs,
        read=read,
        readers=len(READERS),
        crashes=crashes,
        hangs=hangs,
        peak_mib=peak_mib,
    )
    assert not broken, "\n\n".join(f"group {number}: {told}" for number, told in broken.items())
    assert inputs > 10 * len(READERS), "too few inputs were tried to say anything"
    assert peak_mib <= MOST_GROWTH_MIB
