"""The same load with more, or fewer, drafts accepted: what a better or worse drafter would be worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kplan.acceptance import TraceModel, cells, to_json, walk
from kplan.acceptance.adapt import sample_lengths, shift_depths
from kplan.errors import InputError
from kplan.plainjson import HeldText
from kplan.profiles import Tree
from kplan.provenance import Kind, Provenance
from kplan.simulate import Setup
from kplan.workload import Workload

WALKED_K = 3
"""The K at whose walk accepted drafts are counted; a tree has its own."""
POSITIONS = 300_000
MOST_SHIFT = 3.0
"""Log-odds by which a model is moved at most."""
_SEED = 20_260_201
_SAMPLE = 4096
_BISECTIONS = 16
_MISSED = 0.01
"""Share of the target within which a model shows it."""


def with_acceptance(setup: Setup, percent: int) -> Setup:
    """``setup`` with ``percent`` more drafts accepted per step on the walk at WALKED_K.

    The log-odds of all drafts but the confirmed ones move alike, so that no chance leaves 0..1, and
    persistence and the spread between requests stay (:mod:`kplan.acceptance.adapt`). That they do so is
    assumed, as the model's provenance then says.

    Raises:
        InputError: the workload has no model of the proposer, or it cannot be moved so far.
    """
    workload, proposer = setup.workload, setup.scenario.proposer
    if percent == 0 or workload is None:
        return setup
    model = moved(workload.model(proposer), percent, workload, setup.drafter.tree)
    own = replace(workload, models={**workload.models, proposer: HeldText(to_json(model))}, trees={})
    return replace(setup, source=replace(setup.source, workload=own))


def moved(model: TraceModel, percent: int, workload: Workload, tree: Tree | None = None) -> TraceModel:
    """``model`` with ``percent`` more drafts accepted per step; see :func:`with_acceptance`."""
    k = min(WALKED_K, model.known_k) if tree is None else tree.verified
    _, output_len = workload.sample_lengths(_SEED, _SAMPLE)
    sample = sample_lengths(output_len, POSITIONS)

    def shifted(by: float) -> TraceModel:
        return shift_depths(model, np.full(cells.DEPTHS, by))

    def accepted(by: float) -> float:
        return walk(shifted(by).generate(_SEED, sample), k).acceptance_length - 1

    target = accepted(0.0) * (1 + percent / 100)
    low, high = (0.0, MOST_SHIFT) if percent > 0 else (-MOST_SHIFT, 0.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) < target else (low, middle)
    by = (low + high) / 2
    reached = accepted(by)
    if abs(reached - target) > _MISSED * target:
        most = 100 * (reached * (1 + percent / 100) / target - 1)
        raise InputError(
            "acceptance", f"{percent:+d}%", f"{model.proposer} reaches {most:+.0f}%", "move less"
        )
    was = model.provenance
    told = f"log-odds of the drafts moved by {by:+.3f} for {percent:+d}% accepted at K = {k}"
    note = "; ".join(filter(None, [was.note, told]))
    return replace(shifted(by), provenance=Provenance(Kind.ASSUMED, was.source, note), facts={})
