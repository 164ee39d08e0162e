"""Tables that grow by a line per measurement: cut off at any time they hold what was measured until then."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path

Cell = int | float | str

RESULTS = ("kernel_source", "l2", "replays", "spread", "latency_ms")
"""Columns that a measurement adds to those of its plan: which kernel ran, whether its inputs were out of the
L2 cache (cold), how often it was timed, (slowest - fastest) / median of these times, and the median."""


class Tables:
    """One CSV per operation, ``{hardware}_{op}_{label}.csv``, each line flushed to disk as it comes."""

    def __init__(self, folder: Path, hardware: str, label: str) -> None:
        """``folder`` is made when missing. Raises FileExistsError when it holds tables already: two runs in
        one table would be taken for one."""
        folder.mkdir(parents=True, exist_ok=True)
        if held := sorted(path.name for path in folder.iterdir()):
            raise FileExistsError(f"{folder} holds {held[0]}: give an empty folder")
        self._folder, self._hardware, self._label = folder, hardware, label
        self._columns: dict[str, tuple[str, ...]] = {}

    def path(self, op: str) -> Path:
        """Where the rows of ``op`` go."""
        return self._folder / f"{self._hardware}_{op}_{self._label}.csv"

    def add(self, planned: Mapping[str, Cell], result: Mapping[str, Cell]) -> None:
        """Append one row: the plan's sizes, then RESULTS. Raises ValueError when its columns are others than
        those of the rows before."""
        op = str(planned["op"])
        row = {name: value for name, value in planned.items() if name != "op"}
        row |= {name: result[name] for name in RESULTS}
        first = op not in self._columns
        if first:
            self._columns[op] = tuple(row)
        elif self._columns[op] != tuple(row):
            raise ValueError(f"a row of {op} has the columns {tuple(row)}, not {self._columns[op]}")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if first:
            writer.writerow(row)
        writer.writerow(row.values())
        with self.path(op).open("a", encoding="utf-8") as sink:  # one write: a kill leaves whole lines
            sink.write(text.getvalue())
            sink.flush()
            os.fsync(sink.fileno())

    def write_run(self, facts: Mapping[str, object]) -> None:
        """Replace ``run.json``: what was measured, on what, and how far the plan was followed."""
        temporary = self._folder / "run.json.tmp"
        temporary.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._folder / "run.json")
