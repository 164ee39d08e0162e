"""TPOT of clients that each keep one request in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kplan.validate.predict.bench import Settings, bench, prediction, run, settings_of, tpot_ms
from kplan.validate.table import Prediction, PublishedTable, Value

NAMES = {"batch": "concurrency", "isl": "prompt_tokens", "osl": "output_tokens"}
"""What tables call fields of a scenario."""


def predict(table: PublishedTable) -> list[Prediction]:
    """Mean TPOT in ms.

    A row's ``at`` sets fields of the scenario by their own names or by those of NAMES; ``k`` says what runs
    (0: speculation off) where no ``policy`` does.

    Raises:
        InputError: a setting or an ``at`` that no scenario has.
    """
    settings = settings_of(table, Settings)
    return [_row(settings, row.at) for row in table.rows]


def _row(settings: Settings, at: Mapping[str, Value]) -> Prediction:
    k = int(at.get("k", 0))
    scenario: dict[str, Any] = {
        NAMES.get(name, name): int(value) if isinstance(value, float) else value
        for name, value in at.items()
        if name != "k"
    }
    if "policy" not in settings.scenario | scenario:
        scenario |= {"policy": f"fixed:{k}" if k else "off", "max_k": k}
    setups = bench(settings, **scenario)
    return prediction(tpot_ms(run(setups, setups[0].scenario.policy)))
