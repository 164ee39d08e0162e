"""Named random streams: the same seed and names give the same draws, whatever else is drawn.

A stream is keyed by what it is for (``stream(seed, "arrivals")``), so a change in one part of a
simulation never shifts the draws of another: policies are compared under common random numbers.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return an independent generator for ``names`` under ``seed``.

    Args:
        seed: any integer >= 0.
        names: what the draws are for, for example ``("arrivals", replica)``.
    """
    digest = hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=16).digest()
    words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *words])))
