"""Measured seconds of engine steps beside what they worked on, and what a calibration predicts for them.

One row is a step of a log, or the mean step of an end-to-end measurement: then a mixture of shapes (steps
with none, one, two ... prefills) with their weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.latency.model import LatencyModel
from kplan.latency.shape import StepShape
from kplan.latency.traits import engine_traits
from kplan.profiles import Calibration, Drafter, EngineProfile, Hardware, Model, load_drafter

Array = NDArray[np.float64]

SAME = 0.2
"""Step, in log, between counts that make another setting."""

MOST_DRAFTS = 254
"""No more drafts of a request are verified in a step (what kplan's traces can hold)."""

SHAPE_FIELDS = tuple(field.name for field in fields(StepShape))


@dataclass(frozen=True)
class Observation:
    """One measured row.

    Attributes:
        source: the file, as figures name it; place: where in it, for example ``row 3``.
        proposer: None for a server without speculation.
        k: drafts proposed per request and step.
        seconds: of the step, or of the mean step.
        shapes: (s, 11) counts in StepShape's order; weights: (s,) their shares of the steps, summing to 1.
    """

    source: str
    place: str
    proposer: str | None
    k: int
    seconds: float
    shapes: Array
    weights: Array

    def mean(self, name: str) -> float:
        """Mean over the mixture of one field of StepShape."""
        return float(self.weights @ self.shapes[:, SHAPE_FIELDS.index(name)])

    @property
    def batch(self) -> float:
        """Requests of the mean step."""
        return self.mean("decode_requests") + self.mean("prefill_requests")

    @property
    def tokens(self) -> float:
        """Largest number of tokens in one of its steps: batch x (K + 1), or more with a prefill."""
        columns = [SHAPE_FIELDS.index(name) for name in ("decode_tokens", "prefill_tokens")]
        return float(self.shapes[:, columns].sum(axis=1).max())

    @property
    def verified_tokens(self) -> float:
        """Largest batch x (K + 1) among its steps."""
        return float(self.shapes[:, SHAPE_FIELDS.index("decode_tokens")].max())

    @property
    def context(self) -> float:
        """Mean context of its decoding requests in tokens; 0 when none decodes."""
        requests = self.mean("decode_requests")
        return self.mean("decode_kv_tokens") / requests if requests > 0 else 0.0


def shape_row(**counts: float) -> list[float]:
    """One row of :attr:`Observation.shapes`; counts not given are 0."""
    return [float(counts.get(name, 0.0)) for name in SHAPE_FIELDS]


def repeats(rows: Sequence[Observation]) -> Array:
    """(n,) how many rows share each one's setting: proposer, K, and requests, context and prompt tokens.

    Counts are the same when they round to the same step of SAME.
    """
    settings = [
        (row.proposer, row.k, *_steps(row.batch, row.context, row.mean("prefill_tokens"))) for row in rows
    ]
    times = Counter(settings)
    return np.array([float(times[setting]) for setting in settings])


def _steps(*counts: float) -> tuple[int, ...]:
    """The step of SAME that each count rounds to."""
    return tuple(round(np.log1p(count) / SAME) for count in counts)


def medians(rows: Sequence[Observation], least: int) -> list[Observation]:
    """One row for the steps of one setting: their median seconds at their mean counts, which are rounded.

    A setting is a proposer, K and drafts verified, a number of decoding and of prefilling requests, and
    nearly a context and a number of prompt tokens. Settings of fewer than ``least`` steps are left out:
    single steps of a busy machine tell nothing.
    """
    groups: dict[tuple[object, ...], list[Observation]] = {}
    for row in rows:
        requests, prompts = row.mean("decode_requests"), row.mean("prefill_requests")
        near = _steps(row.context, row.mean("prefill_tokens"))
        tokens = round(row.mean("decode_tokens") / requests, 1) if requests else 0.0
        groups.setdefault((row.proposer, row.k, tokens, requests, prompts, *near), []).append(row)
    return [
        Observation(
            source=group[0].source,
            place=f"{len(group)} steps from {group[0].place}",
            proposer=group[0].proposer,
            k=group[0].k,
            seconds=float(np.median([row.seconds for row in group])),
            shapes=np.round([[float(np.mean([row.mean(name) for row in group])) for name in SHAPE_FIELDS]]),
            weights=np.ones(1),
        )
        for group in groups.values()
        if len(group) >= least
    ]


@dataclass(frozen=True)
class Served:
    """What the rows were served with: one model on one kind of replica.

    ``drafts_with`` names the drafter of rows with a proposer (see :func:`kplan.profiles.load_drafter`).
    """

    hardware: Hardware
    model: Model
    engine: EngineProfile
    tp: int = 1
    drafts_with: str | None = None

    def drafter(self, proposer: str | None) -> Drafter | None:
        return None if proposer is None else load_drafter(proposer, self.model, self.drafts_with)


class Predictor:
    """Predicts (n,) seconds of fixed observations for one calibration after another.

    Rows of one proposer and K are priced in one call.
    """

    def __init__(self, served: Served, observations: Sequence[Observation]) -> None:
        self._served, self._rows = served, len(observations)
        self._groups: list[tuple[Drafter | None, int, StepShape, Array, NDArray[np.int64]]] = []
        settings: dict[tuple[str | None, int], list[int]] = {}
        for number, row in enumerate(observations):
            settings.setdefault((row.proposer, row.k), []).append(number)
        for (proposer, k), numbers in settings.items():
            rows = [observations[number] for number in numbers]
            counts = np.concatenate([row.shapes for row in rows])
            shape = StepShape(**dict(zip(SHAPE_FIELDS, counts.T, strict=True)))
            owner = np.repeat(numbers, [len(row.weights) for row in rows]).astype(np.int64)
            weights = np.concatenate([row.weights for row in rows])
            self._groups.append((served.drafter(proposer), k, shape, weights, owner))

    def seconds(self, calibration: Calibration) -> Array:
        """(n,) predicted seconds in the order of the observations."""
        served = self._served
        out = np.zeros(self._rows)
        for drafter, k, shape, weights, owner in self._groups:
            _, seqs = served.engine.limits(served.hardware, drafting=drafter is not None)
            traits = engine_traits(served.engine, drafter, seqs, k)
            model = LatencyModel(served.hardware, served.model, drafter, calibration, served.tp, traits)
            np.add.at(out, owner, weights * model.step_seconds(shape).total_s)
        return out


def check_seats(served: Served, observations: Sequence[Observation]) -> None:
    """Raise InputError when a row has more requests than the engine seats by default on this GPU."""
    for row in observations:
        _, seqs = served.engine.limits(served.hardware, drafting=row.proposer is not None)
        if row.batch > seqs:
            raise InputError(
                f"requests at a time in {row.place} of {row.source.split(',')[0]}",
                f"{row.batch:g}",
                f"{served.engine.name} runs at most {seqs} by default on {served.hardware.name}",
                "leave the row out: how many really ran is not known",
            )
