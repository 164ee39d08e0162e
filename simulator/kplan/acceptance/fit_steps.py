"""Fit of a trace model on the steps that a server took, of which no position between them is known.

Such a recording shows acceptance along one walk. What else a model holds (how acceptance at neighbouring
positions hangs together, for how long a regime lasts, how classes differ beyond their mean) is lent by the
model of another recording, which is moved until its own walk, with the same drafts asked for, shows what was
recorded: acceptance by depth, the spread between requests, the correlation of neighbouring steps, and what
short outputs accept beside long ones. A moment counts by how well the recording knows it, and moving away
from the lender has a price, so that a short recording leans on it. Positions that no step visited take no
part: they are unknown, not failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.columns import select
from kplan.acceptance.fit import MIN_REQUESTS
from kplan.acceptance.lent import Lender
from kplan.acceptance.match_steps import Shown, lent_to, sampling_error, tokens_per_step
from kplan.acceptance.model import TraceModel
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

MIN_STEPS = 500
"""Steps that verified a draft."""
_FOLLOWS = 0.1
"""Correlation of K with the acceptance of the step before it, above which K follows acceptance."""


def known_steps(traces: TraceSet, proposer: str, keep_loopy: bool = False) -> NDArray[np.int64]:
    """Rows of a recording of steps all of whose steps are known, and that have one."""
    trace = traces.proposers[proposer]
    assert trace.seen is not None
    whole = _complete(trace.acc, trace.seen, trace.offsets, trace.output_len)
    if traces.loopy is not None and not keep_loopy:
        whole &= ~traces.loopy
    return np.flatnonzero(whole)


def fit_steps(
    traces: TraceSet,
    proposer: str,
    lenders: Mapping[str, TraceModel],
    *,
    like: str | None = None,
    keep_loopy: bool = False,
) -> TraceModel:
    """Fit a model of ``proposer`` on the steps of its server.

    Of ``lenders`` (name -> model of a proposer of its kind) the one ``like``, or the one that shows the steps
    best for how little it is moved, lends to the model. The facts hold what is as plausible: the fits with
    those of the others that come to the recorded tokens per step within their sampling error, and the ends of
    that error. What an answer differs by under them is how sure it is.

    Raises:
        InputError: fewer than 20 requests or 500 steps, drafts deeper than 20, or a K that follows the
            acceptance of the steps before it.
    """
    rows = known_steps(traces, proposer, keep_loopy)
    shown = Shown.of(_usable(traces.proposers[proposer], rows))
    _need_free_k(shown)
    each = {name: Lender(model) for name, model in lenders.items()}
    fits = {name: lent_to(shown, lender) for name, lender in each.items()}
    chosen = like or min(fits, key=lambda name: fits[name][1])
    lender, (lent, _) = each[chosen], fits[chosen]
    error, low, high = sampling_error(shown, lender, lent)
    recorded = shown.steps.acceptance_length
    others = [
        (f"as in {name}", name, by)
        for name, (by, _) in fits.items()
        if name != chosen and abs(tokens_per_step(shown, each[name], by) - recorded) <= error
    ]
    ends = [(f"{-error:+.3f} tokens/step", chosen, low), (f"{error:+.3f} tokens/step", chosen, high)]
    borrowed = "persistence, the overlap of neighbouring drafts and the shape of the spread"
    return replace(
        lender.moved(lent, shown.known_k),
        proposer=proposer,
        provenance=Provenance(
            Kind.FITTED,
            traces.provenance.source,
            f"on the steps that a server took; {borrowed} as in {chosen}",
        ),
        facts={
            "requests": len(rows),
            "steps": len(shown.steps.tokens),
            "requests_left_out": len(traces) - len(rows),
            "k": shown.ks,
            "tokens_per_step": round(recorded, 4),
            "tokens_per_step_error95": round(error, 4),
            "like": chosen,
            "misses": {name: round(miss, 1) for name, (_, miss) in fits.items()},
            "assumed": borrowed,
            "between_factor": round(lent.between, 4),
            "within_factor": round(lent.within, 4),
            "plausible": [{"name": name, "like": like, **by.to_json()} for name, like, by in others + ends],
        },
    )


def _usable(trace: ProposerTrace, rows: NDArray[np.int64]) -> ProposerTrace:
    if len(rows) < MIN_REQUESTS:
        bound = f"at least {MIN_REQUESTS} whose steps are all known (and no loop) are needed"
        raise InputError("requests", len(rows), bound, "record more requests")
    used = select(trace, rows)
    assert used.seen is not None
    taken = int(np.count_nonzero(used.seen > 1))
    if taken < MIN_STEPS:
        bound = f"at least {MIN_STEPS} are needed"
        raise InputError("steps that verified a draft", taken, bound, "record more requests")
    most = int(used.seen.max()) - 1
    if not 1 <= most <= cells.DEPTHS:
        raise InputError("drafts of a step", most, f"1..{cells.DEPTHS} can be fitted", "record with such a K")
    return used


def _need_free_k(shown: Shown) -> None:
    """Refuse a recording whose K follows acceptance: steps of a larger K are then steps of better drafts.

    A K by batch size, or by the hour, does not depend on whether the first draft of the step before was
    accepted, whatever K was then. A lookup's offers always do, and its K is taken to be one.
    """
    steps = shown.steps
    pairs = (steps.request[1:] == steps.request[:-1]) & (steps.verified[:-1] > 0)
    first, k = steps.tokens[:-1][pairs] > 1, steps.offered[1:][pairs]
    if shown.trace.drafted is not None or len(k) < 2 or k.std() == 0 or first.std() == 0:
        return
    follows = float(np.corrcoef(first, k)[0, 1])
    if follows > _FOLLOWS:
        bound = f"at most {_FOLLOWS:g} with the acceptance of the step before, or K chose what is recorded"
        raise InputError("correlation of K", round(follows, 2), bound, "record with a fixed K")


@njit(cache=True)
def _complete(
    acc: NDArray[np.uint8], seen: NDArray[np.uint8], offsets: NDArray[np.int64], output_len: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """(n,) whether the known positions are those of a walk from 1 to the end, and there is one."""
    whole = np.zeros(len(output_len), np.bool_)
    for r in range(len(output_len)):
        known = 0
        for i in range(output_len[r]):
            known += 1 if seen[offsets[r] + i] > 0 else 0
        c = 1
        while c < output_len[r] and seen[offsets[r] + c] > 0:
            c += int(acc[offsets[r] + c])
            known -= 1
        whole[r] = c == output_len[r] and known == 0 and output_len[r] > 1
    return whole
