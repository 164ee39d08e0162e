"""Bring a trace model's walk to known acceptance lengths by shifting hazards depth by depth.

Used after a fit, to take out the small bias of the walk that likelihood leaves, and alone, to make a model
for a workload of which only acceptance lengths are published: everything else is then borrowed, and the
caller has to say so in the provenance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.model import TraceModel
from kplan.acceptance.trace import ProposerTrace
from kplan.acceptance.walk import walk
from kplan.errors import InputError

Floats = NDArray[np.float64]

ROUNDS = 3
POSITIONS = 1_500_000
"""Positions generated to measure a walk. Requests differ more than steps do: 400,000 left errors of 3%."""
_SEED = 20_260_101
_STEP = 0.1
_MAX_SHIFT = 3.0
_RELATIVE_ERROR = 0.001
"""Weight of an acceptance length: half the last digit of a published one."""
_SMOOTH_LOGIT = 0.5
"""Weight of alike shifts: how far those of neighbouring groups usually lie apart."""
_HALVED = (1.0, 0.5, 0.25, 0.125)
_BISECTIONS = 14


def shift_depths(model: TraceModel, shift: Floats) -> TraceModel:
    """Add ``shift[d - 1]`` to the log-odds of every unconfirmed draft at depth d (``shift`` is (20,)).

    Drafts that the step before had confirmed, and the tail, stay: neighbouring drafts overlap as before.
    """
    moved = np.zeros(cells.CELLS)
    for low in (cells.FAILED, cells.UNSEEN, cells.NEW):
        moved[low : low + cells.DEPTHS] = shift
    moved[cells.FIRST : cells.CONFIRMED] = shift[0]
    return replace(model, hazard=expit(logit(model.hazard) + moved))


def shift_all(model: TraceModel, shift: float) -> TraceModel:
    """Add ``shift`` to the log-odds of every draft, so that any acceptance from none to all is in reach."""
    return replace(model, hazard=expit(logit(model.hazard) + shift))


def stretch_states(model: TraceModel, pooled: Floats, factor: float) -> TraceModel:
    """Scale how far each state's log-odds lie from the pooled ones: the spread between requests."""
    centre = logit(pooled)
    return replace(model, hazard=expit(centre + factor * (logit(model.hazard) - centre)))


def match_walk(
    model: TraceModel,
    lengths: Mapping[int, float],
    output_len: NDArray[np.int32],
    positions: int = POSITIONS,
) -> tuple[TraceModel, dict[int, float]]:
    """Shift hazards until the walk at each K has the acceptance length given.

    Depths between two given K share one shift, and so do all depths up to the first: with K = 2 as the
    smallest, depths 1 and 2 move together (an assumption, since the table does not part them). Depths beyond
    the largest K take its shift. Neighbouring shifts are kept alike (ridge), since published lengths are
    rounded and the walk at one K depends on all depths.

    Args:
        model: what to start from.
        lengths: K -> tokens per decode step, bonus included; increasing with K and at most K + 1.
        output_len: (n,) lengths of the outputs to walk over, cycled.
        positions: generated for it; what they are off by chance goes into the model.

    Returns:
        The model, and K -> the acceptance length it reaches.

    Raises:
        InputError: a K out of range, or lengths that no chain of drafts can have.
    """
    ks = _checked(lengths, model.recorded_k)

    def measure(trace: ProposerTrace) -> Floats:
        return np.array([walk(trace, k).acceptance_length for k in ks])

    target = np.array([lengths[k] for k in ks])
    matched, reached = _match(model, measure, target, ks, output_len, positions)
    return matched, {k: float(v) for k, v in zip(ks, reached, strict=True)}


def match_depths(
    model: TraceModel, marginal: Floats, output_len: NDArray[np.int32]
) -> tuple[TraceModel, Floats]:
    """Shift hazards until the walk at K = len(marginal) accepts at each depth what is given.

    Args:
        model: what to start from; of a proposer that always drafts.
        marginal: (K,) share of steps whose drafts 1..d were all accepted, within (0, 1), not rising.
        output_len: (n,) lengths of the outputs to walk over, cycled.

    Returns:
        The model, and the (K,) shares it reaches.

    Raises:
        InputError: more depths than the model has, or shares that no chain of drafts can have.
    """
    k = len(marginal)
    if not 1 <= k <= model.recorded_k:
        raise InputError("acceptance by position", f"{k} values", f"1..{model.recorded_k} are accepted")
    if not ((marginal > 0) & (marginal < 1)).all():
        bound = "each must lie within 0 and 1, both excluded"
        raise InputError("marginal acceptance by position", _listed(marginal), bound)
    if (np.diff(marginal) > 0).any():
        bound = "none may lie above the one before"
        raise InputError("marginal acceptance by position", _listed(marginal), bound, "or is it conditional?")

    def measure(trace: ProposerTrace) -> Floats:
        stats = walk(trace, k)
        return stats.accepted_by_depth / stats.steps

    return _match(model, measure, marginal, range(1, k + 1), output_len)


def _match(
    model: TraceModel,
    measure: Callable[[ProposerTrace], Floats],
    target: Floats,
    depths: Sequence[int],
    output_len: NDArray[np.int32],
    positions: int = POSITIONS,
) -> tuple[TraceModel, Floats]:
    """Shift hazards until ``measure`` of the generated trace is ``target``.

    Args:
        depths: deepest draft that each shift moves; beyond the last the last shift holds.
    """
    group = depth_groups(depths)
    sample = sample_lengths(output_len, positions)

    def reach(shift: Floats) -> Floats:
        return measure(shift_depths(model, shift[group]).generate(_SEED, sample))

    weight = 1.0 / (_RELATIVE_ERROR * target)
    shift, reached, _ = solve(reach, target, weight, smooth_shifts(len(depths)), ROUNDS)
    return shift_depths(model, shift[group]), reached


def depth_groups(depths: Sequence[int]) -> NDArray[np.int64]:
    """(20,) which of the shifts moves each depth; ``depths``: the deepest draft that each moves."""
    each = np.searchsorted(depths, np.arange(1, cells.DEPTHS + 1))
    return np.minimum(each, len(depths) - 1)


def smooth_shifts(n: int) -> Floats:
    """(n - 1, n) rows of a ridge that keeps neighbouring shifts alike."""
    return np.asarray(np.diff(np.eye(n), axis=0) / _SMOOTH_LOGIT)


def solve(
    reach: Callable[[Floats], Floats],
    target: Floats,
    weight: Floats,
    ridge: Floats,
    rounds: int,
    start: Floats | None = None,
) -> tuple[Floats, Floats, float]:
    """(n,) ``x`` at which ``reach(x)`` is (m,) ``target``, what it reaches, and the sum of squares that is
    left (of misses and ridge): Gauss-Newton from ``start``, 0 unless given.

    Slopes are finite differences. A step that makes things worse is halved, and given up after three times.

    Args:
        weight: (m,) one over the error that each target may have.
        ridge: (r, n) rows whose product with ``x`` is kept near 0.
    """
    n = ridge.shape[1]

    def missed(x: Floats, reached: Floats) -> Floats:
        return np.concatenate([(target - reached) * weight, -ridge @ x])

    x = np.zeros(n) if start is None else start
    here = reach(x)
    for _ in range(rounds):
        slopes = np.column_stack([(reach(x + step) - here) / _STEP for step in _STEP * np.eye(n)])
        rest = missed(x, here)
        step = np.linalg.lstsq(np.vstack([slopes * weight[:, None], ridge]), rest)[0]
        for share in _HALVED:
            tried = np.clip(x + share * step, -_MAX_SHIFT, _MAX_SHIFT)
            there = reach(tried)
            better = np.sum(missed(tried, there) ** 2) < np.sum(rest**2)
            if better:
                x, here = tried, there
                break
        if not better:
            break
    return x, here, float(np.sum(missed(x, here) ** 2))


def match_position_median(
    model: TraceModel, median: float, output_len: NDArray[np.int32]
) -> tuple[TraceModel, Floats]:
    """Shift all hazards alike until the median request has a given mean over its positions.

    The mean over positions (acceptance of a step at every output position, not along the walk) is what
    request-level box plots of recordings show.

    Returns:
        The model, and its (3,) quartiles over requests, to be held against the published ones.

    Raises:
        InputError: the median is not within 1..recorded_k + 1, or out of reach.
    """
    if not 1.0 < median < model.recorded_k + 1:
        raise InputError("median over positions", median, f"between 1 and {model.recorded_k + 1} is possible")
    sample = sample_lengths(output_len)
    low, high = -_MAX_SHIFT, _MAX_SHIFT
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        reached = _position_quartiles(shift_depths(model, np.full(cells.DEPTHS, middle)), sample)[1]
        low, high = (middle, high) if reached < median else (low, middle)
    matched = shift_depths(model, np.full(cells.DEPTHS, (low + high) / 2))
    quartiles = _position_quartiles(matched, sample)
    if abs(quartiles[1] / median - 1) > 0.02:
        raise InputError("median over positions", median, f"this model reaches {quartiles[1]:.3g} at most")
    return matched, quartiles


def _position_quartiles(model: TraceModel, sample: NDArray[np.int32]) -> Floats:
    trace = model.generate(_SEED, sample)
    total = np.add.reduceat(trace.acc.astype(np.int64), trace.offsets[:-1]) - 1  # without the prefill
    decoding = trace.output_len > 1
    return np.asarray(np.quantile(total[decoding] / (trace.output_len[decoding] - 1), (0.25, 0.5, 0.75)))


def sample_lengths(output_len: NDArray[np.int32], positions: int = POSITIONS) -> NDArray[np.int32]:
    """The lengths, cycled until they hold so many positions in all."""
    return np.resize(output_len, max(1, round(positions / float(np.mean(output_len)))))


def walk_lengths(trace: ProposerTrace, min_gain: float = 0.02) -> dict[int, float]:
    """Acceptance length of the walk at K = 1, 2, ... until another draft gains less than ``min_gain``."""
    lengths: dict[int, float] = {}
    before = 1.0
    for k in range(1, min(trace.recorded_k, cells.DEPTHS) + 1):
        here = walk(trace, k).acceptance_length
        if here - before < min_gain and lengths:
            break
        lengths[k] = before = here
    return lengths


def _checked(lengths: Mapping[int, float], recorded_k: int) -> list[int]:
    if not lengths:
        raise InputError("acceptance lengths", "none", "at least one K is needed", "give K=LENGTH")
    ks = sorted(lengths)
    before = 1.0
    for k in ks:
        if not 1 <= k <= recorded_k:
            raise InputError("K", k, f"1..{recorded_k} is accepted")
        if not before <= lengths[k] <= k + 1:
            bound = f"{before:g}..{k + 1} is possible"
            raise InputError(f"acceptance length at K={k}", lengths[k], bound, "the bonus token counts")
        before = lengths[k]
    return ks


def _listed(values: Floats) -> str:
    return ",".join(f"{value:g}" for value in values)


def logit(p: Floats) -> Floats:
    """Log-odds; chances closer than 1e-6 to 0 and 1 are taken to be that far."""
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(clipped) - np.log1p(-clipped), np.float64)


def expit(x: Floats) -> Floats:
    """The chance of log-odds ``x``."""
    return np.asarray(1.0 / (1.0 + np.exp(-x)), np.float64)
