"""Speedups by batch of unpublished acceptance: inferred at the smallest batch, predicted at the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kplan.profiles import load_drafter
from kplan.validate.predict.bench import Floats, prediction
from kplan.validate.predict.steady import Stand, geometric_emitted, infer_alpha
from kplan.validate.table import Prediction, PublishedRow, PublishedTable, Value

Speedups = Sequence[Callable[[float], float]]
"""Per source of GEMM times, acceptance length -> speedup."""


@dataclass(frozen=True)
class Inferred:
    """The chance that a draft is accepted, per source (S,), and the row that it was inferred from."""

    row: PublishedRow
    alpha: Floats


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedup of output tokens per second: rows at ``proposer``, ``k`` and ``batch``.

    Raises:
        InputError: an unknown setting, a name without a profile, or a speedup that no acceptance gives.
    """
    stand = Stand(table)

    def speedups(at: Mapping[str, Value]) -> Speedups:
        drafter = load_drafter(str(at["proposer"]), stand.model)
        return stand.speedups(drafter, stand.crowd(int(at["batch"])), int(at["k"]))

    inferred = infer(table.rows, speedups)
    return [predict_row(row, inferred[row.at["proposer"]], speedups(row.at)) for row in table.rows]


def infer(
    rows: Sequence[PublishedRow], speedups: Callable[[Mapping[str, Value]], Speedups]
) -> dict[Value, Inferred]:
    """One chance of acceptance per proposer, from the first of its rows with the smallest batch.

    Each source of GEMM times infers its own, so that the band is that of the predictions alone.

    Raises:
        InputError: a speedup that no acceptance gives.
    """
    found: dict[Value, Inferred] = {}
    for row in sorted(rows, key=lambda row: float(row.at["batch"])):
        if row.at["proposer"] not in found:
            k = int(row.at["k"])
            alphas = [infer_alpha(each, k, row.measured) for each in speedups(row.at)]
            found[row.at["proposer"]] = Inferred(row, np.array(alphas))
    return found


def predict_row(row: PublishedRow, inferred: Inferred, speedups: Speedups, note: str = "") -> Prediction:
    """The speedup of ``row`` at the acceptance that was inferred; exact, and no prediction, where it was."""
    k = int(row.at["k"])
    figures = [
        each(geometric_emitted(float(alpha), k)) for each, alpha in zip(speedups, inferred.alpha, strict=True)
    ]
    here = f"acceptance of each draft inferred here: {inferred.alpha[0]:.3f}" if row is inferred.row else ""
    notes = "; ".join(each for each in (here, note) if each)
    return prediction(np.array(figures), used_in_fit=row is inferred.row, note=notes)
