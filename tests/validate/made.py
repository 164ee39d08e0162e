"""Tables with predictions given by hand."""

from __future__ import annotations

from typing import Any

from kplan.validate.table import Metric, Prediction, PublishedTable


def table(rows: list[dict[str, Any]], metric: Metric = Metric.TPOT_MS, **fields: Any) -> PublishedTable:
    """A table of ``rows``; predictor and source do not matter here."""
    given = {
        "name": "made",
        "title": "made by hand",
        "source": "nobody",
        "trust": "direct",
        "metric": metric,
        "predictor": "closed-loop",
        "rows": rows,
    }
    return PublishedTable.model_validate(given | fields)


def said(*values: float, used_at: int | None = None) -> list[Prediction]:
    """Predictions without a band; the one at ``used_at`` was inferred from its row."""
    return [Prediction(value, value, value, used_in_fit=i == used_at) for i, value in enumerate(values)]
