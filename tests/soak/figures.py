"""How long the long tests run, and the figures they leave: ``runs/soak.jsonl``, a line a suite and run."""

from __future__ import annotations

import json
import os
from pathlib import Path

RUNS = Path(__file__).parents[2] / "runs"


def seconds(usual: float) -> float:
    """How long a suite tries inputs: KPLAN_SOAK_S where it is set, else ``usual``."""
    return float(os.environ.get("KPLAN_SOAK_S", usual))


def tell(suite: str, **figures: float | str) -> None:
    """Append what a suite tried and found, to stand in the README's trust section.

    Args:
        suite: its name, ``fuzz`` for one.
        figures: counts before ratios, units in the names.
    """
    RUNS.mkdir(exist_ok=True)
    line = json.dumps({"suite": suite, **figures})
    with (RUNS / "soak.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(f"\n{line}")
