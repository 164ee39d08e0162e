"""Bring what short outputs accept beside long ones to what was recorded, by tilting the classes of each bin.

Likelihood is dominated by the long outputs, which hold most positions; a mean over requests (TPOT) is not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.model import TraceModel
from kplan.acceptance.statistics import walk_steps
from kplan.acceptance.trace import ProposerTrace

Floats = NDArray[np.float64]

ROUNDS = 3
POSITIONS = 1_500_000
_MAX_TILT = 8.0
_SEED = 20_260_107


def match_lengths(model: TraceModel, trace: ProposerTrace, k: int | NDArray[np.uint8]) -> TraceModel:
    """Tilt the chances of the classes, bin by bin, until requests of a bin need the recorded steps per token.

    A class c of a bin gets its chance times exp(tilt x s_c), where s_c is the class's own steps per token.

    Args:
        trace: what the model was fitted on.
        k: of the walk: one K, or that asked for at each position of ``trace``.
    """
    bins = len(model.class_by_length)
    classes = model.class_by_length.shape[1]
    wanted = _by_bin(model, trace, k)
    sample = np.resize(trace.output_len, max(1, round(POSITIONS / float(trace.output_len.mean()))))
    each = sample[: max(1, len(sample) // classes)]
    alone = [
        replace(model, class_by_length=np.tile(one, (bins, 1))).generate(_SEED, each)
        for one in np.eye(classes)
    ]
    own = np.nan_to_num(np.stack([_by_bin(model, one, k) for one in alone], axis=1))  # a bin may be empty
    tilt = np.zeros(bins)
    shares = model.class_by_length
    for _ in range(ROUNDS):
        reached = _by_bin(model, replace(model, class_by_length=shares).generate(_SEED, sample), k)
        centred = own - (shares * own).sum(axis=1, keepdims=True)
        variance = (shares * centred**2).sum(axis=1)
        tilt += np.nan_to_num(np.where(variance > 0, (wanted - reached) / np.maximum(variance, 1e-12), 0.0))
        tilted = model.class_by_length * np.exp(np.clip(tilt[:, None] * centred, -_MAX_TILT, _MAX_TILT))
        shares = tilted / tilted.sum(axis=1, keepdims=True)
    return replace(model, class_by_length=shares)


def _by_bin(model: TraceModel, trace: ProposerTrace, k: int | NDArray[np.uint8]) -> Floats:
    """(B,) steps per token of the walk, the mean over the requests of each length bin; NaN without any."""
    decoding = trace.output_len > 1
    steps = np.bincount(walk_steps(trace, k).request, minlength=len(trace.output_len))
    ratio = steps[decoding] / (trace.output_len[decoding] - 1)
    bins = np.searchsorted(model.length_edges, trace.output_len[decoding], side="right")
    count = np.bincount(bins, minlength=len(model.class_by_length))
    total = np.bincount(bins, ratio, len(model.class_by_length))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
