"""The host's time per request, from closed loops of a server that schedules synchronously.

Such a server shows its host in every step: TPOT = GPU + step_s + request_s x batch. What the GPU leaves of
published TPOTs grows with the batch by the same time per request at every tensor-parallel size (26, 29 and 31
us at TP 2, 4 and 8 of Qwen3-32B on vLLM 0.12.0), while the GPU's share shrinks: so it is the host's.
"""

from __future__ import annotations

import numpy as np

from kplan.latency.fit_tpot import TpotRow
from kplan.latency.model import LatencyModel
from kplan.latency.observed import SHAPE_FIELDS
from kplan.latency.published import LoopRow
from kplan.latency.shape import StepShape


def request_s(
    rows: tuple[LoopRow, ...], model_of: dict[tuple[str, int], LatencyModel], fixed_s: float
) -> tuple[float, float]:
    """Host seconds per request and step with their standard error: relative least squares on TPOT.

    Args:
        model_of: (model, ranks) -> what prices the GPU alone; every other cost of it must be 0.
        fixed_s: host and sampling per step, known already.
    """
    left, batch, seen = [], [], []
    for row in rows:
        left.append(row.tpot_ms * 1e-3 - _gpu_s(row, model_of[row.model, row.tp]) - fixed_s)
        batch.append(row.concurrency)
        seen.append(row.tpot_ms)  # of a weight the unit does not matter
    x, y = np.array(batch) / np.array(seen), np.array(left) / np.array(seen)
    slope = float(x @ y / (x @ x))
    error = y - slope * x
    return slope, float(np.sqrt(error @ error / (len(rows) - 1) / (x @ x)))


def _gpu_s(row: LoopRow, model: LatencyModel) -> float:
    """Mean GPU seconds of the steps that a request decodes in, prefills of the others among them."""
    shapes, weights = TpotRow(
        concurrency=row.concurrency,
        tpot_ms=row.tpot_ms,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
    ).mixture()
    counts = dict(zip(SHAPE_FIELDS, np.array(shapes).T, strict=True))
    return float(np.array(weights) @ model.step_seconds(StepShape(**counts)).total_s)
