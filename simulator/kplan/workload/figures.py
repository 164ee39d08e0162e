"""A trace model from the figures a server shows: acceptance by position, or a mean acceptance length.

Such figures leave open how acceptance persists, how requests differ and, with a mean alone, its shape by
depth. All that is borrowed from a recording, and :func:`plausible` gives the models that would have done as
well: what an answer differs by under them is how sure it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.adapt import match_depths, match_walk, shift_all
from kplan.acceptance.collect import LOOKUPS
from kplan.acceptance.judge import Lenders
from kplan.acceptance.lent import Lender, Lent
from kplan.acceptance.model import TraceModel
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance
from kplan.workload.profile import available_workloads, load_workload
from kplan.workload.workload import Workload

DEFAULT_LIKE = "sharegpt-eagle3"
_SEED = 20_260_106
_SAMPLE = 4096
_LEAST = 1e-6
"""Figures stay this far from none and all accepted when their rounding is undone."""
_MET, _MISSED = 0.01, 0.05
"""Shares of a figure within which a model shows it, and beyond which it is refused; its rounding passes."""
_SHIFTS = (0.0, 2.0, -2.0)
"""Added to the log-odds of all drafts of a lender, confirmed ones too, where it cannot show the figures as
it is: those after a step that accepted much stay far from all and from none otherwise."""


class FigureKind(StrEnum):
    """What the figures are.

    MARGINAL: share of the drafts whose positions 1..d were all accepted (vLLM's per-position acceptance);
    CONDITIONAL: share of those accepted up to d - 1 that were at d; MEAN: tokens per step, bonus included.
    """

    MARGINAL = "marginal"
    CONDITIONAL = "conditional"
    MEAN = "mean"


@dataclass(frozen=True)
class Figures:
    """What is known.

    Attributes:
        kind: see :class:`FigureKind`.
        values: (k,) by position, or one mean.
        k: drafts per step on the server that showed them.
        rounding: half the last digit shown; 0 when exact.
    """

    kind: FigureKind
    values: tuple[float, ...]
    k: int
    rounding: float = 0.0

    def __post_init__(self) -> None:
        wanted = 1 if self.kind is FigureKind.MEAN else self.k
        if len(self.values) != wanted:
            raise InputError(
                f"{self.kind} acceptance", f"{len(self.values)} values",
                f"{wanted} needed at K = {self.k}",
                "give one value per position, of the K that the server ran",
            )  # fmt: skip
        if not all(map(np.isfinite, self.values)):
            raise InputError(f"{self.kind} acceptance", str(self.values), "finite values are needed")
        low, high = (1.0, self.k + 1.0) if self.kind is FigureKind.MEAN else (0.0, 1.0)
        for value in self.values:
            if not low < value < high:
                percents = self.kind is not FigureKind.MEAN and 1 < value <= 100
                bound = f"more than {low:g} and less than {high:g} is possible"
                fix = "divide percents by 100" if percents else ""
                raise InputError(f"{self.kind} acceptance at K = {self.k}", value, bound, fix)

    def text(self) -> str:
        """For a sentence."""
        listed = ", ".join(f"{value:g}" for value in self.values)
        what = "mean acceptance length" if self.kind is FigureKind.MEAN else f"{self.kind} acceptance"
        return f"{what} {listed} at K = {self.k}"

    def moved(self, by: float) -> Figures:
        """The same with every value moved by ``by``, within what is possible."""
        low, high = (1.0, self.k + 1.0) if self.kind is FigureKind.MEAN else (0.0, 1.0)
        values = tuple(float(np.clip(value + by, low + _LEAST, high - _LEAST)) for value in self.values)
        return replace(self, values=values, rounding=0.0)

    @property
    def target(self) -> NDArray[np.float64]:
        """What a model's walk has to show: the mean, or (k,) marginal acceptance by position."""
        values = np.array(self.values)
        return np.cumprod(values) if self.kind is FigureKind.CONDITIONAL else values


def from_figures(
    figures: Figures, proposer: str, lengths: Workload, *, like: str = DEFAULT_LIKE, source: str = ""
) -> TraceModel:
    """A model of ``proposer`` that shows ``figures`` on its walk over the outputs of ``lengths``.

    Args:
        like: WORKLOAD-PROPOSER whose shipped model lends all that the figures leave open.
        source: where the figures were published; "": somebody gave them.

    Raises:
        InputError: figures that no chain of drafts can have, or out of the lender's reach, an unknown
            ``like``, or one that does not always draft: figures over the drafts made do not say how often a
            lookup finds a match.
    """
    model = _nearest(figures, proposer, lengths, like, source)
    if not _within(figures, model.facts["reached"], _MISSED):
        shown = ", ".join(f"{value:.4g}" for value in model.facts["reached"])
        raise InputError(
            figures.text(), "out of reach", f"a model like {like} comes to {shown}",
            "check the figures, or name another lender with --like",
        )  # fmt: skip
    return model


def _within(figures: Figures, reached: Sequence[float], share: float) -> bool:
    """Whether every figure is reached but for its rounding, or ``share`` of it."""
    target = figures.target
    return bool((np.abs(np.array(reached) - target) <= np.maximum(figures.rounding, share * target)).all())


def _nearest(figures: Figures, proposer: str, lengths: Workload, like: str, source: str = "") -> TraceModel:
    """The model of :func:`from_figures`, or as near to the figures as the lender comes."""
    lender = _lender(like)
    _, output_len = lengths.sample_lengths(_SEED, _SAMPLE)
    mean = figures.kind is FigureKind.MEAN
    borrowed = "persistence and the spread between requests"
    if mean:
        borrowed = f"the shape by depth, {borrowed}"
    tried: list[tuple[float, TraceModel, list[float]]] = []
    for shift in _SHIFTS:
        start = shift_all(lender, shift) if shift else lender
        if mean:
            matched, by_k = match_walk(start, {figures.k: figures.values[0]}, output_len)
            reached = list(by_k.values())
        else:
            matched, shares = match_depths(start, figures.target, output_len)
            reached = shares.tolist()
        tried.append((float(np.abs(reached / figures.target - 1).max()), matched, reached))
        if _within(figures, reached, _MET):
            break
    _, matched, reached = min(tried, key=lambda one: one[0])
    return replace(
        matched,
        proposer=proposer,
        known_k=figures.k,
        provenance=Provenance(
            Kind.PUBLISHED if source else Kind.ASSUMED,
            source or f"given: {figures.text()}",
            f"{borrowed} assumed as in {like}",
        ),
        facts={
            "figures": asdict(figures) | {"kind": str(figures.kind)},
            "reached": [round(value, 4) for value in reached],
            "like": like,
            "assumed": borrowed,
        },
    )


def figures_of(model: TraceModel) -> Figures | None:
    """The figures that ``model`` was made from; None when it rests on a recording or published table.

    Raises:
        InputError: facts that were written by hand and hold no such figures.
    """
    facts = model.facts.get("figures")
    if facts is None:
        return None
    try:
        return Figures(
            FigureKind(facts["kind"]), tuple(map(float, facts["values"])), int(facts["k"]),
            float(facts["rounding"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "trace model, facts.figures", str(facts), "not those of a fit", "fit it again"
        ) from error


def plausible(model: TraceModel, lengths: Workload) -> list[tuple[str, TraceModel]]:
    """Models that show the same figures and are as plausible, each with what is otherwise in it.

    They borrow from the other recordings that ship, or lie at the ends of the figures' rounding, or of the
    sampling error of recorded steps. Empty where the model rests on a recording of every position.

    Raises:
        InputError: facts that were written by hand.
    """
    if "plausible" in model.facts:
        return [_moved(model, variant) for variant in model.facts["plausible"]]
    figures = figures_of(model)
    if figures is None:
        return []
    own = str(model.facts.get("like", DEFAULT_LIKE))
    found = [
        (f"as in {like}", _nearest(figures, model.proposer, lengths, like))
        for like, lender in _recorded()
        if lender.lookup is None and like != own
    ]
    if figures.rounding:
        found += [
            (f"figures {by:+g}", _nearest(figures.moved(by), model.proposer, lengths, own))
            for by in (-figures.rounding, figures.rounding)
        ]
    return found


def known_by(model: TraceModel) -> str:
    """What is known of the acceptance where not all of it is, for a sentence."""
    steps = "plausible" in model.facts
    return (
        "the steps of a server are known of the acceptance"
        if steps
        else "figures of the acceptance are known"
    )


def lenders(proposer: str, like: str | None = None) -> Lenders:
    """Models that a recording of the steps of ``proposer`` may borrow from: those of its kind (heads, or the
    same lookup) fitted on recordings that ship, and ``like``.

    Raises:
        InputError: an unknown ``like``, or one of another kind.
    """
    lookup = next((name for name in LOOKUPS if proposer.startswith(name)), None)
    found = {
        name: model
        for name, model in _recorded()
        if model.proposer == lookup or (not lookup and model.lookup is None)
    }
    if like is not None:
        found[like] = model = _shipped(like)
        if (model.lookup is not None) != (lookup is not None):
            bound = f"{proposer} is {'a lookup' if lookup else 'a head'}, and what lends is not"
            raise InputError("--like", like, bound, f"name one of {', '.join(sorted(found.keys() - {like}))}")
    return Lenders(found, like)


def _moved(model: TraceModel, variant: Mapping[str, Any]) -> tuple[str, TraceModel]:
    """A variant that a fit on steps left in its facts."""
    try:
        name, like, by = str(variant["name"]), str(variant["like"]), Lent.from_json(variant)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "trace model, facts.plausible", str(variant)[:60], "not that of a fit", "fit it again"
        ) from error
    moved = Lender(_shipped(like)).moved(by, model.known_k)
    return name, replace(moved, proposer=model.proposer, provenance=model.provenance)


def _recorded() -> Iterator[tuple[str, TraceModel]]:
    """Shipped models fitted on recordings of their own, as WORKLOAD-PROPOSER."""
    for line in available_workloads():
        workload = load_workload(line.name)
        for proposer in sorted(workload.models):
            model = workload.model(proposer)
            if model.provenance.kind is Kind.FITTED:
                yield f"{line.name}-{proposer}", model


def _shipped(like: str) -> TraceModel:
    workload, _, proposer = like.partition("-")
    if not proposer:
        raise InputError("--like", like, "WORKLOAD-PROPOSER is needed", f"for example {DEFAULT_LIKE}")
    return load_workload(workload).model(proposer)


def _lender(like: str) -> TraceModel:
    model = _shipped(like)
    if model.lookup is not None:
        raise InputError(
            "--like", like, "figures of drafts do not say how often a lookup finds a match",
            "replay the lookup over your requests' token ids, or name a head",
        )  # fmt: skip
    return model
