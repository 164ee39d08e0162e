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
from kplan.acceptance.adapt import depth_groups, sample_lengths, smooth_shifts, solve
from kplan.acceptance.by_length import match_lengths
from kplan.acceptance.columns import select
from kplan.acceptance.fit import LENGTH_BINS, MIN_REQUESTS
from kplan.acceptance.lent import Lender, Lent
from kplan.acceptance.model import TraceModel
from kplan.acceptance.statistics import Steps, recorded_k_at, shape_of, walk_steps
from kplan.acceptance.trace import ProposerTrace, TraceSet
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

Floats = NDArray[np.float64]

MIN_STEPS = 500
MIN_REACHED = 20
"""Drafts reached at a depth for its acceptance to be matched; deeper ones move with the deepest matched."""
_REQUESTS_OF_A_BIN = 40
_ROUNDS = 3
_STRETCH_LOG = 0.7
"""How far the logs of the two stretches usually lie from the lender's, for the ridge."""
_FOLLOWS = 0.1
"""Correlation of K with the acceptance of the step before it, above which K follows acceptance."""
_Z95 = 1.96
_SEED = 20_260_109


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
    """Fit a model of the head ``proposer`` on the steps of its server.

    Of ``lenders`` (name -> model of a head) the one ``like``, or the one that shows the steps best for how
    little it is moved, lends to the model. The facts hold what a fit with each of the others gives, and the
    ends of the sampling error of the tokens per step: what an answer differs by under them is how sure it is.

    Raises:
        InputError: fewer than 20 requests or 500 steps, drafts deeper than 20, a lookup, or a K that follows
            the acceptance of the steps before it.
    """
    rows = known_steps(traces, proposer, keep_loopy)
    trace = _usable(traces.proposers[proposer], rows)
    asked = recorded_k_at(trace)
    steps = walk_steps(trace, asked)
    _need_free_k(steps)
    known_k = int(steps.verified.max())
    fits = {
        name: (Lender(model), *_lent(Lender(model), trace, asked, steps, known_k))
        for name, model in lenders.items()
    }
    chosen = like or min(fits, key=lambda name: fits[name][2])
    lender, lent, _ = fits[chosen]
    error, low, high = _sampling_error(lender, lent, trace, asked, steps, known_k)
    variants = [
        *(
            {"name": f"as in {name}", "like": name, **by.to_json()}
            for name, (_, by, _) in fits.items()
            if name != chosen
        ),
        {"name": f"{-error:+.3f} tokens/step", "like": chosen, **low.to_json()},
        {"name": f"{error:+.3f} tokens/step", "like": chosen, **high.to_json()},
    ]
    borrowed = "persistence, the overlap of neighbouring drafts and the shape of the spread"
    return replace(
        lender.moved(lent, known_k),
        proposer=proposer,
        provenance=Provenance(
            Kind.FITTED,
            traces.provenance.source,
            f"on the steps that a server took; {borrowed} as in {chosen}",
        ),
        facts={
            "requests": len(rows),
            "steps": len(steps.tokens),
            "requests_left_out": len(traces) - len(rows),
            "k": sorted(set(asked[trace.seen > 0].tolist())) if trace.seen is not None else [],
            "tokens_per_step": round(steps.acceptance_length, 4),
            "tokens_per_step_error95": round(error, 4),
            "like": chosen,
            "misses": {name: round(miss, 1) for name, (_, _, miss) in fits.items()},
            "assumed": borrowed,
            "between_factor": round(lent.between, 4),
            "within_factor": round(lent.within, 4),
            "plausible": variants,
        },
    )


def _usable(trace: ProposerTrace, rows: NDArray[np.int64]) -> ProposerTrace:
    if trace.drafted is not None:
        raise InputError(
            "trace", "steps of a lookup", "what it would offer between steps is not recorded",
            "replay it over your requests' token ids (kplan traces replay)",
        )  # fmt: skip
    if len(rows) < MIN_REQUESTS:
        bound = f"at least {MIN_REQUESTS} whose steps are all known (and no loop) are needed"
        raise InputError("requests", len(rows), bound, "record more requests")
    used = select(trace, rows)
    assert used.seen is not None
    taken = int(np.count_nonzero(used.seen))
    if taken < MIN_STEPS:
        raise InputError("steps", taken, f"at least {MIN_STEPS} are needed", "record more requests")
    most = int(used.seen.max()) - 1
    if not 1 <= most <= cells.DEPTHS:
        raise InputError("drafts of a step", most, f"1..{cells.DEPTHS} can be fitted", "record with such a K")
    return used


def _need_free_k(steps: Steps) -> None:
    """Refuse a recording whose K follows acceptance: steps of a larger K are then steps of better drafts.

    A K by batch size, or by the hour, does not depend on whether the first draft of the step before was
    accepted, whatever K was then.
    """
    pairs = (steps.request[1:] == steps.request[:-1]) & (steps.verified[:-1] > 0) & ~steps.last[1:]
    first, k = steps.tokens[:-1][pairs] > 1, steps.asked[1:][pairs]
    if len(k) < 2 or k.std() == 0 or first.std() == 0:
        return
    follows = float(np.corrcoef(first, k)[0, 1])
    if follows > _FOLLOWS:
        bound = f"within {_FOLLOWS:g} of the acceptance of the step before, or K chooses what is recorded"
        raise InputError("correlation of K", round(follows, 2), bound, "record with a fixed K")


def _lent(
    lender: Lender, trace: ProposerTrace, asked: NDArray[np.uint8], steps: Steps, known_k: int
) -> tuple[Lent, float]:
    """Move the lender to the moments, its classes to the lengths, and again to the moments."""
    edges = _length_edges(trace)
    shares = np.tile(lender.model.class_by_length.mean(axis=0), (len(edges) + 1, 1))
    lent = Lent(np.zeros(cells.DEPTHS), 1.0, 1.0, edges, shares)
    lent, _ = _matched(lender, lent, trace, asked, steps, known_k)
    tilted = match_lengths(lender.moved(lent, known_k), trace, asked)
    return _matched(
        lender, replace(lent, class_by_length=tilted.class_by_length), trace, asked, steps, known_k
    )


def _matched(
    lender: Lender, lent: Lent, trace: ProposerTrace, asked: NDArray[np.uint8], steps: Steps, known_k: int
) -> tuple[Lent, float]:
    """Shifts by depth and both stretches at which the lender's walk has the moments of the steps; and what
    is left of misses and ridge."""
    _, reached = steps.by_depth(known_k)
    depths = (np.flatnonzero(reached >= MIN_REACHED) + 1).tolist()
    target, error = _moments(steps, depths)
    known = np.isfinite(target) & (error > 0)
    group, sample = depth_groups(depths), sample_lengths(trace.output_len)

    def moved(x: Floats) -> Lent:
        between, within = np.exp(x[-2:])
        return replace(lent, shift=x[group], between=float(between), within=float(within))

    def reach(x: Floats) -> Floats:
        made = lender.moved(moved(x), known_k).generate(_SEED, sample)
        found, _ = _moments(walk_steps(made, asked), depths)
        return np.nan_to_num(found[known])

    smooth = smooth_shifts(len(depths))
    ridge = np.block(
        [
            [smooth, np.zeros((len(smooth), 2))],
            [np.zeros((2, len(depths))), np.eye(2) / _STRETCH_LOG],
        ]
    )
    x, _, left = solve(reach, target[known], 1.0 / error[known], ridge, _ROUNDS)
    return moved(x), left


def _moments(steps: Steps, depths: list[int]) -> tuple[Floats, Floats]:
    """(D + 2,) acceptance by depth, SD between requests, lag-1 within them; and their standard errors."""
    accepted, reached = (counts[np.array(depths) - 1] for counts in steps.by_depth(max(depths)))
    share = (accepted + 0.5) / (reached + 1.0)
    shape = shape_of(steps, max(depths))
    requests, pairs = steps.requests, max(len(steps.tokens) - 2 * steps.requests, 1)
    values = [*(accepted / np.maximum(reached, 1)), shape.request_sd, shape.lag1_within]
    errors = [
        *np.sqrt(share * (1 - share) / np.maximum(reached, 1)),
        shape.request_sd / np.sqrt(2.0 * requests),
        1.0 / np.sqrt(pairs),
    ]
    return np.array(values), np.array(errors)


def _sampling_error(
    lender: Lender, lent: Lent, trace: ProposerTrace, asked: NDArray[np.uint8], steps: Steps, known_k: int
) -> tuple[float, Lent, Lent]:
    """Half the 95% interval of tokens per step (requests as clusters), and the model at either end of it."""
    tokens = np.bincount(steps.request, steps.tokens, steps.requests)
    taken = np.bincount(steps.request, minlength=steps.requests)
    residual = tokens - steps.acceptance_length * taken
    error = float(_Z95 * np.sqrt(np.sum(residual**2)) / taken.sum())
    sample, step = sample_lengths(trace.output_len), 0.1

    def length(by: float) -> float:
        made = lender.moved(replace(lent, shift=lent.shift + by), known_k).generate(_SEED, sample)
        return walk_steps(made, asked).acceptance_length

    shift = 2 * step * error / max(length(step) - length(-step), 1e-9)
    return error, replace(lent, shift=lent.shift - shift), replace(lent, shift=lent.shift + shift)


def _length_edges(trace: ProposerTrace) -> Floats:
    """Quantiles that part the outputs into bins of enough requests each, LENGTH_BINS at most."""
    bins = int(np.clip(len(trace.output_len) // _REQUESTS_OF_A_BIN, 1, LENGTH_BINS))
    return np.unique(np.quantile(trace.output_len, np.arange(1, bins) / bins)).astype(np.float64)


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
