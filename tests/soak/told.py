"""What the long suites found, in the words of the README: ``python -m tests.soak.told`` prints them.

``told.jsonl`` beside this file holds the last figures of each suite that were kept; ``--keep`` takes over
those that ``runs/soak.jsonl`` has. A test holds the README to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.soak.figures import RUNS

KEPT = Path(__file__).with_name("told.jsonl")

CLAUSES = {
    "fuzz": "{inputs:,} damaged inputs to {readers} readers: {crashes} crashes, {hangs} hangs",
    "kills": "{kills:,} kills and interrupts of writers: {torn} files torn, {trials_lost} trials lost",
    "servers": "{faulty_runs:,} recordings of faulty servers: {records_lost} answers lost",
    "dashboard": "{requests:,} questions, 200 at a time, to the dashboard: {wrong} wrong",
    "flood": "{requests:,} requests at one moment: served by the laws of every run, in {peak_gib} GiB",
    "scenarios": "{scenarios:,} random scenarios in one process: memory {growth_percent:+}% after 100",
    "versions": "{figures:,} figures on the oldest dependencies: {largest_difference:.0e} apart at most",
    "coverage": "{share:.1%} of {branches:,} branches are taken by the tests",
    "mutants": "{killed} of {mutants} random changes to latency, acceptance and scheduler are noticed",
}
"""A clause a suite, in the README's order; names are those of :func:`tests.soak.figures.tell`."""


def kept(file: Path = KEPT) -> dict[str, dict[str, Any]]:
    """The last figures of each suite in a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {told["suite"]: told for told in map(json.loads, lines)}


def words(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A clause of the README for each suite that told."""
    return [text.format(**_with_share(told[suite])) for suite, text in CLAUSES.items() if suite in told]


def _with_share(figures: Mapping[str, Any]) -> dict[str, Any]:
    share = {"share": figures["taken"] / figures["branches"]} if "branches" in figures else {}
    return {**figures, **share}


def main(arguments: Sequence[str]) -> int:
    """Print the clauses, after keeping the figures of this machine where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.told")
    parser.add_argument("--keep", action="store_true", help="take over the figures of runs/soak.jsonl")
    if parser.parse_args(arguments).keep:
        told = (kept() if KEPT.exists() else {}) | kept(RUNS / "soak.jsonl")
        KEPT.write_text(
            "".join(f"{json.dumps(told[one])}\n" for one in CLAUSES if one in told), encoding="utf-8"
        )
    print("; ".join(words(kept())) + ".")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
