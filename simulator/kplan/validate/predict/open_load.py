"""End-to-end latency by request rate: where the batch settles, in the mean.

By Little's law the batch that a rate keeps is the one whose tokens per second are the rate's, and the latency
is batch / rate. Two things are inferred at the lowest rate, whose rows then do not count: the output length
from the latency without speculation, and the acceptance length of each proposer from its own latency.
Arrivals that bunch are not seen, so latencies at high load come out low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from kplan.errors import InputError
from kplan.latency import LatencyModel
from kplan.profiles import load_drafter
from kplan.validate.predict.bench import prediction
from kplan.validate.predict.breakdown import OFF
from kplan.validate.predict.steady import Crowd, Stand, steady
from kplan.validate.table import Prediction, PublishedRow, PublishedTable, Value

SHORTEST_OUTPUT, LONGEST_OUTPUT = 2.0, 4096.0
MOST_BATCH = 256
"""A rate that this batch does not keep up with is given this batch's latency, a lower bound."""


def predict(table: PublishedTable) -> list[Prediction]:
    """Seconds from arrival to the last token: rows at ``proposer`` (off: no speculation), ``k`` and ``qps``.

    Raises:
        InputError: an unknown setting, a name without a profile, or a latency that nothing gives.
    """
    stand = Stand(table)
    lowest: dict[Value, float] = {}
    for row in table.rows:
        proposer, qps = row.at["proposer"], float(row.at["qps"])
        lowest[proposer] = min(qps, lowest.get(proposer, qps))
    by_source = [_latencies(table, stand, source) for source in range(len(stand.latencies(None, 0)))]
    return [
        prediction(np.array(seconds), used_in_fit=row.at["qps"] == lowest[row.at["proposer"]])
        for row, seconds in zip(table.rows, zip(*by_source, strict=True), strict=True)
    ]


def _latencies(table: PublishedTable, stand: Stand, source: int) -> list[float]:
    """Seconds of every row under one source of GEMM times."""
    rows = sorted(table.rows, key=lambda row: (float(row.at["qps"]), row.at["proposer"] != OFF))
    crowd = _infer_output(rows[0], stand.latencies(None, 0)[source], stand.crowd(1))
    emitted: dict[Value, float] = {OFF: 1.0}
    seconds: dict[int, float] = {}
    for row in rows:
        proposer, k, qps = row.at["proposer"], int(row.at["k"]), float(row.at["qps"])
        drafter = None if proposer == OFF else load_drafter(str(proposer), stand.model)
        latency = stand.latencies(drafter, k)[source]
        if proposer not in emitted:
            emitted[proposer] = _infer_emitted(row, latency, crowd)
        seconds[id(row)] = latency_s(latency, crowd, k, emitted[proposer], qps)
    return [seconds[id(row)] for row in table.rows]


def latency_s(latency: LatencyModel, crowd: Crowd, k: int, emitted: float, qps: float) -> float:
    """Seconds of a request when ``qps`` arrive: batch / rate, or those of one alone where that is longer."""

    def surplus(batch: float) -> float:
        """Tokens per second above what arrives; between whole batches, in proportion."""
        low = int(batch)
        rates = [steady(latency, replace(crowd, batch=b), k, emitted).tokens_s for b in (low, low + 1)]
        return float(np.interp(batch, (low, low + 1), rates)) - qps * crowd.output

    if surplus(1.0) >= 0.0:
        return crowd.output / (surplus(1.0) + qps * crowd.output)
    if surplus(MOST_BATCH) <= 0.0:
        return MOST_BATCH * crowd.output / (surplus(MOST_BATCH) + qps * crowd.output)
    return float(brentq(surplus, 1.0, MOST_BATCH, xtol=1e-3)) / qps


def _infer_output(row: PublishedRow, latency: LatencyModel, crowd: Crowd) -> Crowd:
    """The crowd with the output length at which a request takes as long as measured."""

    def of_length(output: float) -> Crowd:
        return replace(crowd, output=output, context=crowd.prompt + output / 2)

    qps = float(row.at["qps"])
    return of_length(
        _solve(
            lambda output: latency_s(latency, of_length(output), 0, 1.0, qps),
            row.measured,
            SHORTEST_OUTPUT,
            LONGEST_OUTPUT,
        )
    )


def _infer_emitted(row: PublishedRow, latency: LatencyModel, crowd: Crowd) -> float:
    """The acceptance length at which a request takes as long as measured."""
    k, qps = int(row.at["k"]), float(row.at["qps"])
    return _solve(lambda length: latency_s(latency, crowd, k, length, qps), row.measured, 1.0, k + 1.0)


def _solve(latency: Callable[[float], float], measured: float, low: float, high: float) -> float:
    ends = sorted((latency(low), latency(high)))
    if not ends[0] <= measured <= ends[1]:
        bound = f"lengths from {low:g} to {high:g} give {ends[0]:.3g} to {ends[1]:.3g} s"
        raise InputError("measured latency", measured, bound, "check the row and the settings of its table")
    return float(brentq(lambda length: latency(length) - measured, low, high, xtol=1e-3))
