"""Speedups by batch whose acceptance is not published: inferred at the smallest batch, predicted at the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kplan.profiles import load_drafter
from kplan.validate.predict.bench import Floats, prediction
from kplan.validate.predict.steady import Stand, geometric_emitted, infer_alpha
from kplan.validate.table import Prediction, PublishedRow, PublishedTable, Value

Speedups = Sequence[Callable[[float], float]]
"""Per source of GEMM times, acceptance length -> speedup."""


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedup of output tokens per second: rows at ``proposer``, ``k`` and ``batch``.

    Raises:
        InputError: an unknown setting, a name without a profile, or a speedup that no acceptance gives.
    """
    stand = Stand(table)

    def speedups(at: Mapping[str, Value]) -> Speedups:
        drafter = load_drafter(str(at["proposer"]), stand.model)
        return stand.speedups(drafter, stand.crowd(int(at["batch"])), int(at["k"]))

    return infer_and_predict(table.rows, ("proposer",), speedups)


def infer_and_predict(
    rows: Sequence[PublishedRow], alike: Sequence[str], speedups: Callable[[Mapping[str, Value]], Speedups]
) -> list[Prediction]:
    """One chance of acceptance per group of rows, from the one of its rows with the smallest batch.

    Each source of GEMM times infers its own, so that the band is that of the prediction alone.

    Args:
        alike: names in ``at`` whose values make a group.
    """
    alphas: dict[tuple[Value, ...], tuple[PublishedRow, Floats]] = {}
    for row in sorted(rows, key=lambda row: float(row.at["batch"])):
        group = tuple(row.at[name] for name in alike)
        if group not in alphas:
            alphas[group] = row, _infer(row, speedups(row.at))
    done = []
    for row in rows:
        reference, alpha = alphas[tuple(row.at[name] for name in alike)]
        if row is reference:
            note = f"acceptance of each draft inferred here: {alpha[0]:.3f}"
            done.append(prediction(np.full(len(alpha), row.measured), used_in_fit=True, note=note))
            continue
        emitted = [geometric_emitted(float(each), int(row.at["k"])) for each in alpha]
        figures = [each(tokens) for each, tokens in zip(speedups(row.at), emitted, strict=True)]
        done.append(prediction(np.array(figures)))
    return done


def _infer(row: PublishedRow, speedups: Speedups) -> Floats:
    k = int(row.at["k"])
    return np.array(
        [infer_alpha(lambda a, at=each: at(geometric_emitted(a, k)), row.measured) for each in speedups]
    )
