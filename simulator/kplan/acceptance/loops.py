"""Degenerate repetition: outputs of greedy decoding that fall into a loop until the length limit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW_TOKENS = 32
MIN_REPEATED = 448


def is_loopy(generated: NDArray[np.int32]) -> bool:
    """True when at least 448 windows of 32 tokens had occurred before in the same output ((L,) token ids)."""
    if len(generated) < WINDOW_TOKENS + MIN_REPEATED:
        return False
    windows = np.lib.stride_tricks.sliding_window_view(generated, WINDOW_TOKENS)
    packed = np.ascontiguousarray(windows).view(np.dtype((np.void, WINDOW_TOKENS * generated.dtype.itemsize)))
    return len(windows) - len(np.unique(packed)) >= MIN_REPEATED
