"""The report's map of the best K, on few cells that have room for a number each."""

from __future__ import annotations

import numpy as np

from kplan.config.evidence import KMap
from kplan.search.candidates import WalkCurve
from kplan.search.pictures import LEAST_CONTEXT, map_of
from kplan.search.steady import steady
from kplan.simulate import Drawn, Setup

LONGEST = 131_072
"""Last context of the map, tokens; each is twice the one before."""


def k_map(setup: Setup, curve: WalkCurve, sample: Drawn) -> KMap:
    """The best fixed K of a steady decode step, by batches and contexts that double.

    Args:
        curve: tokens and verified drafts per request and step at each K.
        sample: requests of the load.
    """
    powers = 2 ** np.arange(int(np.log2(setup.max_num_seqs)) + 1)
    batches = np.unique(np.append(powers, setup.max_num_seqs))
    most = min(LONGEST, setup.source.max_len or LONGEST)
    contexts = LEAST_CONTEXT * 2 ** np.arange(0, max(1, int(np.log2(most / LEAST_CONTEXT)) + 1))
    return map_of(steady(setup, curve, float(sample.prompt_len.mean())), batches, contexts)
