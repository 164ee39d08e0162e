"""A model lent to a recording that shows less than a model holds, and how it was moved to fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.adapt import expit, logit, shift_depths
from kplan.acceptance.fit import events_of, pooled_hazard
from kplan.acceptance.model import TraceModel

Floats = NDArray[np.float64]

_SEED = 20_260_108
_POOLED = (400, 500)
"""Outputs generated to pool the lender's hazards, and tokens of each."""


@dataclass(frozen=True)
class Lent:
    """How a lender was moved: with the lender, all of the fitted model.

    Attributes:
        shift: (20,) added to the log-odds of unconfirmed drafts, by depth.
        between: factor on how far the classes of requests lie apart, in log-odds.
        within: factor on how far the regimes of a class do.
        length_edges, class_by_length: see :class:`kplan.acceptance.model.TraceModel`.
        match: added to the log-odds that a lookup finds a match; a head has none.
        offer: (21,) added to the logs of the chances of a lookup's offers of 0..20 drafts.
    """

    shift: Floats
    between: float
    within: float
    length_edges: Floats
    class_by_length: Floats
    match: float
    offer: Floats

    def to_json(self) -> dict[str, Any]:
        """Rounded, for the facts of a model."""
        return {
            "shift": [round(float(x), 4) for x in self.shift],
            "between": round(self.between, 4),
            "within": round(self.within, 4),
            "length_edges": [float(x) for x in self.length_edges],
            "class_by_length": [[round(float(x), 4) for x in row] for row in self.class_by_length],
            "match": round(self.match, 4),
            "offer": [round(float(x), 4) for x in self.offer],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Lent:
        """What :meth:`to_json` gave. Raises KeyError, TypeError or ValueError for anything else."""
        made = cls(
            shift=np.array(record["shift"], np.float64),
            between=float(record["between"]),
            within=float(record["within"]),
            length_edges=np.array(record["length_edges"], np.float64),
            class_by_length=np.array(record["class_by_length"], np.float64),
            match=float(record["match"]),
            offer=np.array(record["offer"], np.float64),
        )
        bins, depths = len(made.length_edges) + 1, cells.DEPTHS
        if (
            made.shift.shape != (depths,)
            or made.offer.shape != (depths + 1,)
            or len(made.class_by_length) != bins
        ):
            raise ValueError("sizes that no fit gives")
        return made


class Lender:
    """A model that lends all that a recording of steps leaves open."""

    def __init__(self, model: TraceModel) -> None:
        self.model = model
        self._pooled = logit(pooled_hazard(events_of(model.generate(_SEED, np.full(*_POOLED)))))

    def moved(self, by: Lent, known_k: int) -> TraceModel:
        """The model moved, and censored at ``known_k``."""
        model = self.model
        classes, regimes = model.regime_start.shape
        states = logit(model.hazard).reshape(classes, regimes, -1)
        own = (states * model.regime_start[:, :, None]).sum(axis=1, keepdims=True)
        stretched = self._pooled + by.between * (own - self._pooled + by.within * (states - own))
        stretched[..., cells.MATCH : cells.FIRST] += by.match
        lookup = model.lookup
        if lookup is not None:
            chances = lookup.new_offer * np.exp(by.offer)
            lookup = replace(lookup, new_offer=chances / chances.sum(axis=1, keepdims=True))
        moved = replace(
            model,
            hazard=expit(stretched.reshape(classes * regimes, -1)),
            length_edges=by.length_edges,
            class_by_length=by.class_by_length,
            lookup=lookup,
            known_k=known_k,
        )
        return shift_depths(moved, by.shift)
