"""Speedups of independently accepted drafts, from a walk over a drawn trace and a ratio of costs.

Leviathan et al. 2023 (arXiv:2211.17192, Theorem 3.8): (1 - alpha^(gamma + 1)) / (1 - alpha) tokens a step, at
the price of one target pass and gamma draft passes of c target passes each. What is tested here is the walk
that every prediction of kplan rests on, so the formula is not used.
"""

from __future__ import annotations

import numpy as np

from kplan.acceptance import ProposerTrace, walk
from kplan.rng import stream
from kplan.validate.table import Prediction, PublishedTable

TOKENS = 2_000_000
"""Length of the drawn output: a walk of it knows the tokens per step to 0.2%."""
MOST_DRAFTS = 20


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedup of one request: rows at ``alpha``, ``gamma`` (drafts a step), ``c`` (draft / target pass)."""
    done = []
    for row in table.rows:
        alpha, gamma, c = float(row.at["alpha"]), int(row.at["gamma"]), float(row.at["c"])
        speedup = walk(iid_trace(alpha), gamma).acceptance_length / (1 + gamma * c)
        done.append(Prediction(speedup, speedup, speedup))
    return done


def iid_trace(alpha: float) -> ProposerTrace:
    """One request of TOKENS tokens; each draft is accepted with chance ``alpha``, at most MOST_DRAFTS."""
    tokens = stream(0, "iid").geometric(1 - alpha, TOKENS)
    acc = np.minimum(tokens, MOST_DRAFTS + 1).astype(np.uint8)
    acc[0] = 1
    return ProposerTrace(
        output_len=np.array([TOKENS], np.int32),
        offsets=np.array([0, TOKENS]),
        acc=acc,
        drafted=None,
        aligned=np.ones(1, np.bool_),
        recorded_k=MOST_DRAFTS,
    )
