"""TPOT of clients that each keep one request in flight: rows at ``batch``, ``k`` and ``workload``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kplan.validate.predict.bench import bench, prediction, run, tpot_ms
from kplan.validate.table import Prediction, PublishedTable, Value

NAMES = {"batch": "concurrency", "isl": "prompt_tokens", "osl": "output_tokens"}
"""What tables call fields of a scenario."""


def predict(table: PublishedTable) -> list[Prediction]:
    """Mean TPOT in ms.

    A row's ``at`` sets fields of the scenario by their own names or by those of NAMES; ``k`` (0: speculation
    off) or ``policy`` says what runs.
    """
    return [_row(table, row.at) for row in table.rows]


def _row(table: PublishedTable, at: Mapping[str, Value]) -> Prediction:
    scenario: dict[str, Any] = {}
    for name, value in at.items():
        if name not in ("k", "policy"):
            scenario[NAMES.get(name, name)] = int(value) if isinstance(value, float) else value
    k = int(at.get("k", 0))
    scenario.setdefault("max_k", k)
    policy = str(at.get("policy", f"fixed:{k}" if k else "off"))
    return prediction(tpot_ms(run(bench(table, **scenario), policy)))
