"""Self-speculation over long contexts: decode steps alone, with a part of the KV cache as the drafter.

Rows at ``proposer``, ``context``, ``batch`` and ``k``. The chance of acceptance is inferred per proposer at
the smallest batch of the shortest context, and taken for every other row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kplan.latency import LatencyModel, StepShape
from kplan.profiles import load_drafter
from kplan.validate.predict.serving import Speedups, infer_and_predict
from kplan.validate.predict.steady import Stand
from kplan.validate.table import Prediction, PublishedTable, Value


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedup of decoding, prompts left out.

    Raises:
        InputError: an unknown setting, a name without a profile, or a speedup that no acceptance gives.
    """
    stand = Stand(table)

    def speedups(at: Mapping[str, Value]) -> Speedups:
        drafter, k = load_drafter(str(at["proposer"]), stand.model), int(at["k"])
        batch, context = int(at["batch"]), float(at["context"])
        return tuple(
            _decode_speedup(on, off, batch, context, k)
            for on, off in zip(stand.latencies(drafter, k), stand.latencies(None, 0), strict=True)
        )

    return infer_and_predict(table.rows, ("proposer",), speedups)


def _decode_speedup(
    on: LatencyModel, off: LatencyModel, batch: int, context: float, k: int
) -> Callable[[float], float]:
    """Acceptance length -> tokens per second of decode steps over those without speculation."""
    drafting = float(on.step_seconds(StepShape.decode(batch, k, context)).total_s)
    plain = float(off.step_seconds(StepShape.decode(batch, 0, context)).total_s)
    return partial(_ratio, plain / drafting)


def _ratio(gain: float, emitted: float) -> float:
    return gain * emitted
