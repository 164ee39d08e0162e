"""Price a whole broadcast grid of steps: each cell as the engine's loop would, what cells share but once.

The functions of :mod:`kplan.latency.compiled` fill arrays here. A part that does not depend on all counts is
priced on the axes that it depends on, and broadcast.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kplan.latency.compiled import (
    StepCost,
    first_pass_s,
    first_rest_s,
    later_pass_s,
    parts_of,
    target_rest_s,
    verify_s,
)
from kplan.latency.shape import StepShape

Counts = NDArray[np.int64]
Seconds = NDArray[np.float64]

LARGE = 400_000
"""Numbers above which a grid is priced by several threads."""
PAIRS = "prefill_qk_tokens"
"""The one count of a shape that may be fractional."""


def columns(shape: StepShape) -> tuple[tuple[Counts, ...], Seconds]:
    """The ten whole counts of ``shape`` in its order, truncated to integers, and its prefill pairs."""
    names = [field.name for field in fields(shape) if field.name != PAIRS]
    whole = tuple(np.asarray(getattr(shape, name)).astype(np.int64, copy=False) for name in names)
    return whole, np.asarray(shape.prefill_qk_tokens, dtype=np.float64)


def price_grid(cost: StepCost, whole: tuple[Counts, ...], pairs: Seconds) -> Seconds:
    """Seconds of every cell: (4, *grid), the parts in the order of :func:`kplan.latency.step_parts`.

    Args:
        whole, pairs: as :func:`columns` gives them; they stay broadcast views.
    """
    _, tokens, kv, _, prompts, prompt_tokens, prompt_kv, rows, drafting, k = whole
    grid = np.broadcast_shapes(pairs.shape, *(column.shape for column in whole))
    deep = (1,) * (2 - len(grid)) + grid  # rows of cells: at least two axes
    rest = _shared(_target_rests_s, cost, tokens + prompt_tokens, rows)
    first_rest = later = np.zeros(())
    if cost.draft_catches_up:
        first_rest = _shared(
            _first_rests_s, cost, tokens, prompts, prompt_tokens, prompt_kv, pairs, drafting, k
        )
    if np.max(k, initial=0) > 0:
        later = _shared(_later_passes_s, cost, drafting, kv + prompt_kv)
    out = np.empty((4, *deep))
    counts = [np.broadcast_to(column, deep) for column in whole]
    parts = [np.broadcast_to(column, deep) for column in (pairs, rest, first_rest, later)]

    def fill(piece: slice) -> None:
        own = out[:, piece]
        cells = np.empty((4, own[0].size // deep[-1], deep[-1]))
        _price(cost, tuple(each[piece] for each in counts), tuple(each[piece] for each in parts), cells)
        own[...] = cells.reshape(own.shape)

    pieces = _pieces(deep[0], out.size)
    if len(pieces) == 1:
        fill(pieces[0])
    else:
        with ThreadPoolExecutor(len(pieces)) as pool:
            list(pool.map(fill, pieces))
    return out.reshape(4, *grid)


def _pieces(rows: int, size: int) -> list[slice]:
    """Slices of the first axis, one per core for a large grid: compiled code needs no interpreter lock."""
    workers = min(os.cpu_count() or 1, rows) if size >= LARGE else 1
    bounds = [rows * i // workers for i in range(workers + 1)]
    return [slice(first, last) for first, last in pairwise(bounds)]


def _shared(price: Callable[..., Seconds], cost: StepCost, *counts: Counts | Seconds) -> Seconds:
    """What ``price`` makes of ``counts`` on their own broadcast shape."""
    shape = np.broadcast_shapes(*(count.shape for count in counts))
    # copies, so that numba always meets one type: views may or may not be read-only, or warn when asked
    wide = (np.broadcast_to(count, shape).flatten() for count in counts)
    return price(cost, *wide).reshape(shape)


@njit(cache=True)
def _target_rests_s(cost: StepCost, tokens: Counts, rows: Counts) -> Seconds:
    seconds = np.empty(len(tokens))
    for i in range(len(tokens)):
        seconds[i] = target_rest_s(cost, tokens[i], rows[i])
    return seconds


@njit(cache=True)
def _first_rests_s(
    cost: StepCost,
    tokens: Counts,
    prompts: Counts,
    prompt_tokens: Counts,
    prompt_kv: Counts,
    pairs: Seconds,
    drafting: Counts,
    k: Counts,
) -> Seconds:
    seconds = np.empty(len(k))
    for i in range(len(k)):
        seconds[i] = first_rest_s(
            cost, tokens[i], prompts[i], prompt_tokens[i], prompt_kv[i], pairs[i], drafting[i], k[i]
        )
    return seconds


@njit(cache=True)
def _later_passes_s(cost: StepCost, drafting: Counts, kv: Counts) -> Seconds:
    seconds = np.empty(len(kv))
    for i in range(len(kv)):
        seconds[i] = later_pass_s(cost, drafting[i], kv[i])
    return seconds


@njit(cache=True, nogil=True)
def _price(cost: StepCost, whole: tuple[Counts, ...], parts: tuple[Seconds, ...], out: Seconds) -> None:
    """Fill ``out`` (4, rows, cells) from columns of one shape, row by row.

    Each part has a loop of its own: the powers of one cell then overlap with those of the next.
    """
    cells = out.shape[2]
    verify, first = np.empty(cells), np.zeros(cells)
    for row, at in enumerate(np.ndindex(parts[0].shape[:-1])):
        requests, tokens, kv, qk = whole[0][at], whole[1][at], whole[2][at], whole[3][at]
        prompts, prompt_tokens, prompt_kv = whole[4][at], whole[5][at], whole[6][at]
        sampled, drafting, k = whole[7][at], whole[8][at], whole[9][at]
        pairs, rest, first_rest, later = parts[0][at], parts[1][at], parts[2][at], parts[3][at]
        for i in range(cells):
            verify[i] = verify_s(
                cost, rest[i], requests[i], tokens[i], kv[i], qk[i],
                prompts[i], prompt_tokens[i], prompt_kv[i], pairs[i],
            )  # fmt: skip
        if cost.draft_catches_up:
            for i in range(cells):
                first[i] = first_pass_s(
                    cost, first_rest[i], requests[i], tokens[i], kv[i], qk[i], prompt_kv[i], drafting[i], k[i]
                )
        for i in range(cells):
            out[0, row, i], out[1, row, i], out[2, row, i], out[3, row, i] = parts_of(
                cost, verify[i], first[i], later[i], requests[i], tokens[i], kv[i] + prompt_kv[i],
                prompts[i], sampled[i], drafting[i], k[i],
            )  # fmt: skip
            if tokens[i] + prompt_tokens[i] <= 0:
                out[:, row, i] = 0.0
