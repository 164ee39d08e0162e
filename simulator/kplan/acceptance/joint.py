"""Several proposers on the same requests: their own trace models, generated at the same positions.

Text that is easy is easy for every proposer, so two of them accept at the same positions more often than
chance has it, and the better of both brings less than independent models say. A :class:`Dependence` holds
that for a pair; it leaves what each proposer does alone exactly as it is (:mod:`kplan.acceptance.couple`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.couple import generate_pair
from kplan.acceptance.model import TraceModel, checked_lengths
from kplan.acceptance.trace import ProposerTrace
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance
from kplan.rng import stream

WINDOW = 32
"""Positions of a window: about as far as the acceptance of n-gram and EAGLE-3 is seen to correlate."""
CANDIDATES = 16
"""Continuations that a matched window chooses from: more match better, and cost as many times more."""


def proposers_of(name: str) -> tuple[str, ...]:
    """The proposers that a name joins with ``+``, in its order: ``ngram+eagle3`` is two.

    Raises:
        InputError: a part is empty or stands there twice.
    """
    parts = tuple(name.split("+"))
    if "" in parts or len(set(parts)) < len(parts):
        raise InputError(
            "--proposer", name, "different names joined by + are needed", "for example ngram+eagle3"
        )
    return parts


@dataclass(frozen=True)
class Dependence:
    """How two proposers depend on each other, see :mod:`kplan.acceptance.couple`.

    Attributes:
        leader, follower: the proposers; the follower is drawn given the leader.
        class_share: chance that the follower takes the leader's quantile of the classes of requests, 0..1.
        window_share: chance that a window is matched, 0..1.
        window: positions of a window.
        candidates: continuations that a matched window chooses from.
        depth: drafts of a position that the matching counts.
        provenance: fitted on what.
        facts: figures of the recording and of the model, JSON-like; travels with the file.
    """

    leader: str
    follower: str
    class_share: float
    window_share: float
    window: int
    candidates: int
    depth: int
    provenance: Provenance
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its file and its entry: the two proposers joined by ``+``, the leader last."""
        return f"{self.follower}+{self.leader}"


@dataclass(frozen=True)
class JointModel:
    """Trace models of one or several proposers on the same requests.

    Attributes:
        models: proposer -> its own model, which holds alone as it does here.
        dependences: of followers on a leader that they share; proposers without one are independent.
    """

    models: Mapping[str, TraceModel]
    dependences: tuple[Dependence, ...] = ()

    @property
    def independent(self) -> tuple[str, ...]:
        """Proposers taken to be independent of the others; empty for one alone."""
        linked = {one for pair in self.dependences for one in (pair.leader, pair.follower)}
        return () if len(self.models) == 1 else tuple(name for name in self.models if name not in linked)

    @property
    def provenances(self) -> dict[str, Provenance]:
        """What the dependence of several proposers rests on; empty for one alone."""
        found = {f"dependence of {pair.name}": pair.provenance for pair in self.dependences}
        if self.independent:
            found[f"dependence of {'+'.join(self.models)}"] = Provenance(
                Kind.ASSUMED,
                "no fitted pair",
                f"{', '.join(self.independent)} taken as independent, which overstates what proposers bring "
                "together (kplan traces pair fits it)",
            )
        return found

    def generate(
        self, seed: int, output_len: NDArray[np.integer[Any]], request0: int = 0
    ) -> dict[str, ProposerTrace]:
        """The trace of every proposer; all rows are aligned. See :meth:`TraceModel.generate`.

        The leader's, and those of independent proposers, are what their own models generate, bit for bit; a
        follower's is another draw from its model.
        """
        followed = {pair.follower: pair for pair in self.dependences}
        return {
            name: model.generate(seed, output_len, request0)
            if name not in followed
            else self._follow(followed[name], seed, output_len, request0)
            for name, model in self.models.items()
        }

    def _follow(
        self, pair: Dependence, seed: int, output_len: NDArray[np.integer[Any]], request0: int
    ) -> ProposerTrace:
        lead, follow = self.models[pair.leader], self.models[pair.follower]
        lengths = checked_lengths(output_len)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        own = stream(seed, "dependence", pair.name).integers(0, 2**64, dtype=np.uint64)
        acc, drafted = generate_pair(
            np.array([lead.key(seed), follow.key(seed), own], np.uint64),
            request0,
            offsets,
            lead.tables(),
            follow.tables(),
            lead.class_cumulative(lengths),
            follow.class_cumulative(lengths),
            class_order(lead),
            class_order(follow),
            pair.class_share,
            pair.window_share,
            pair.window,
            pair.candidates,
            pair.depth,
        )[2:]
        return follow.packed(acc, drafted, offsets)


def class_order(model: TraceModel) -> NDArray[np.int64]:
    """(C,) classes of the model, the one that accepts most first.

    By the drafts that a long offer is expected to have accepted, times the chance of an offer; regimes count
    for the share of positions that they are in force in the long run.
    """
    classes, regimes = model.regime_start.shape
    first = model.hazard[:, cells.FIRST : cells.CONFIRMED].reshape(-1, cells.AGES, cells.OFFERS)
    by_depth = model.hazard[:, cells.NEW : cells.TAIL].copy()
    if model.lookup is None:
        by_depth[:, 0] = first[:, :, cells.offer_bin(model.recorded_k)].mean(axis=1)
        offered = np.ones(len(by_depth))
    else:
        by_depth[:, 0] = first.mean(axis=(1, 2))
        offered = model.hazard[:, cells.MATCH : cells.FIRST].mean(axis=1)
    accepted = (offered * np.cumprod(by_depth, axis=1).sum(axis=1)).reshape(classes, regimes)
    in_force = np.stack([np.linalg.matrix_power(switch, 4096)[0] for switch in model.regime_switch])
    return np.argsort(-(accepted * in_force).sum(axis=1), kind="stable")
