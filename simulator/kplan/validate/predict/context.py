"""Speculation over long contexts: decode steps alone, without the prompts.

Rows at ``proposer``, ``context``, ``batch`` and ``k`` (the best of those that were tried). The chance of
acceptance is inferred per proposer at the smallest batch, and taken at every other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import mul

from kplan.latency import LatencyModel, StepShape
from kplan.profiles import load_drafter
from kplan.validate.predict.serving import Speedups, infer, predict_row
from kplan.validate.predict.steady import Stand, geometric_emitted
from kplan.validate.table import Prediction, PublishedTable, Value

MOST_K = 8


@dataclass(frozen=True)
class Decode:
    """Steady decode steps: ``batch`` requests of ``context`` tokens."""

    stand: Stand
    proposer: str
    batch: int
    context: float

    @classmethod
    def of(cls, stand: Stand, at: Mapping[str, Value]) -> Decode:
        """What a row was measured at."""
        return cls(stand, str(at["proposer"]), int(at["batch"]), float(at["context"]))

    def speedups(self, k: int) -> Speedups:
        """Per source, acceptance length -> tokens per second over those without speculation."""
        drafter = load_drafter(self.proposer, self.stand.model)
        pairs = zip(self.stand.latencies(drafter, k), self.stand.latencies(None, 0), strict=True)
        return tuple(partial(mul, self._step_s(off, 0) / self._step_s(on, k)) for on, off in pairs)

    def best_k(self, alpha: float) -> int:
        """The K of 1..MOST_K with the highest speedup under the main source."""
        gains = {k: self.speedups(k)[0](geometric_emitted(alpha, k)) for k in range(1, MOST_K + 1)}
        return max(gains, key=gains.__getitem__)

    def _step_s(self, latency: LatencyModel, k: int) -> float:
        return float(latency.step_seconds(StepShape.decode(self.batch, k, self.context)).total_s)


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedup of decoding; the note says which K of 1..MOST_K would be best at the same acceptance.

    Raises:
        InputError: an unknown setting, a name without a profile, or a speedup that no acceptance gives.
    """
    stand = Stand(table)
    inferred = infer(table.rows, lambda at: Decode.of(stand, at).speedups(int(at["k"])))
    done = []
    for row in table.rows:
        decode, chance = Decode.of(stand, row.at), inferred[row.at["proposer"]]
        note = f"best K {decode.best_k(float(chance.alpha[0]))}"
        done.append(predict_row(row, chance, decode.speedups(int(row.at["k"])), note))
    return done
