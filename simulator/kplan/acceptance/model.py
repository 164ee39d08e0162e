"""A fitted trace model: small, saved as JSON, and able to generate traces of any length.

A request draws a class by the length of its output; within it, a persistent hidden regime is in force at
each position; class and regime give the hazard of every cell (see :mod:`kplan.acceptance.cells`). This keeps
what i.i.d. draws from a histogram lose: hazard by depth, the overlap of neighbouring drafts (so the walk at
every K differs from the positions as it does in recordings), persistence within a request, the spread
between requests and its dependence on length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.generate import Tables, generate_flat
from kplan.acceptance.trace import ProposerTrace
from kplan.errors import InputError
from kplan.provenance import Provenance
from kplan.rng import stream

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lookup:
    """How a lookup proposer's offer moves.

    Attributes:
        new_offer: (2, 21) chance of an offer of 0..20 tokens given a match, after no match and after a match
            that failed; column 0 is 0.
        grow: (2,) chance that the offer grows by one while a match goes on, when the step before it accepted
            a part of it, and when it accepted all.
    """

    new_offer: Floats
    grow: Floats


@dataclass(frozen=True)
class TraceModel:
    """Acceptance of one proposer on one workload, C classes of requests and S regimes.

    Attributes:
        proposer: name of the proposer.
        recorded_k: K of the recording it was fitted on, at most 20: what a head offers at every position.
        known_k: K up to which its figures are known, at most recorded_k; generated traces are censored there.
        length_edges: (B - 1,) output lengths, increasing, that part B bins.
        class_by_length: (B, C) chance of each class by bin.
        regime_start: (C, S), regime_switch: (C, S, S) chances of the regime.
        hazard: (C * S, CELLS) chance of yes in each cell.
        lookup: None for a proposer that always offers what it is asked for.
        provenance: fitted on what, or derived how.
        facts: counts and goodness of fit, JSON-like; travels with the file.
    """

    proposer: str
    recorded_k: int
    known_k: int
    length_edges: Floats
    class_by_length: Floats
    regime_start: Floats
    regime_switch: Floats
    hazard: Floats
    lookup: Lookup | None
    provenance: Provenance
    facts: Mapping[str, Any] = field(default_factory=dict)

    def generate(self, seed: int, output_len: NDArray[np.integer[Any]], request0: int = 0) -> ProposerTrace:
        """Generate the trace of requests ``request0 + 0, 1, ...``.

        Draws are keyed by (seed, request number, position): a request's array depends on its own number and
        output length, and on nothing else.

        Args:
            seed: >= 0.
            output_len: (n,) output tokens of each request, >= 1.
            request0: number of the first request.

        Raises:
            InputError: no request, or an output length below 1.
        """
        lengths = checked_lengths(output_len)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        acc, drafted = generate_flat(
            self.key(seed), request0, offsets, self.class_cumulative(lengths), self.tables()
        )
        return self.packed(acc, drafted, offsets)

    def key(self, seed: int) -> np.uint64:
        """Key of all draws of the proposer under ``seed``."""
        return np.uint64(stream(seed, "acceptance", self.proposer).integers(0, 2**64, dtype=np.uint64))

    def class_cumulative(self, lengths: NDArray[np.int64]) -> Floats:
        """(n, C) cumulative chance of the classes of requests of those output lengths."""
        return _cumulative(self.class_by_length)[np.searchsorted(self.length_edges, lengths, side="right")]

    def tables(self) -> Tables:
        """The model as its generator reads it."""
        lookup = self.lookup or Lookup(np.zeros((2, cells.DEPTHS + 1)), np.zeros(2))
        return Tables(
            start=_cumulative(self.regime_start),
            switch=_cumulative(self.regime_switch),
            hazard=self.hazard,
            new_offer=_cumulative(lookup.new_offer),
            grow=lookup.grow,
            has_lookup=self.lookup is not None,
            max_offer=self.recorded_k,
            known_k=self.known_k,
        )

    def packed(
        self, acc: NDArray[np.uint8], drafted: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> ProposerTrace:
        """The trace of generated ``acc`` and ``drafted`` by position; ``offsets``: where requests begin."""
        return ProposerTrace(
            output_len=np.diff(offsets).astype(np.int32),
            offsets=offsets,
            acc=acc,
            drafted=None if self.lookup is None else drafted,
            aligned=np.ones(len(offsets) - 1, np.bool_),
            recorded_k=self.known_k,
        )


def checked_lengths(output_len: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Output lengths to generate. Raises InputError: no request, or an output length below 1."""
    lengths = np.asarray(output_len, np.int64)
    if lengths.ndim != 1 or len(lengths) == 0 or lengths.min() < 1:
        shown = int(lengths.min()) if lengths.size else "no request"
        raise InputError("output length", shown, "at least one request of at least 1 token is needed")
    return lengths


def _cumulative(chances: Floats) -> Floats:
    """Cumulative chances along the last axis, closed at 1 against rounding."""
    total = np.cumsum(chances, axis=-1)
    total[..., -1] = 1.0
    return np.asarray(total, np.float64)
