"""Degenerate repetition: outputs of greedy decoding that fall into a loop until the length limit.

A loop repeats itself word for word, or counts while it does (rows of a table whose numbers grow). Either is
found from the output's own tokens.

The column ``loopy`` of the reference recordings (11 of 1,110 rows) is another rule: it marks the 9 outputs
that ran into the limit of 8,192 tokens, and 2 of over 1,000 tokens of which n-gram lookup foretells 20 tokens
at more than half of the positions. So it needs the limit, and counts a copy of the prompt, yet leaves two
outputs unmarked of whose windows a quarter and a half had occurred before. These two are marked here, and so
left out of fits; the other 1,108 rows agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kplan.jit import bare

WINDOW_TOKENS = 32
MIN_REPEATED = 448
MAX_PERIOD = 256
COUNTING_SHARE = 0.75

_ODD = np.uint64(0x9E3779B97F4A7C15)


def is_loopy(generated: NDArray[np.int32]) -> bool:
    """Whether (L,) token ids repeat: at least 448 windows of 32 tokens had occurred before in the output,
    or at least 448 tokens, and three of four, equal the one some period of at most 256 tokens before."""
    if len(generated) < WINDOW_TOKENS + MIN_REPEATED:
        return False
    windows = _window_hashes(generated)
    if len(windows) - len(np.unique(windows)) >= MIN_REPEATED:
        return True
    return bool(_counts_on(np.ascontiguousarray(generated)))


def _window_hashes(generated: NDArray[np.int32]) -> NDArray[np.uint64]:
    """(L - 31,) hashes of the windows of 32 tokens: those of 1, 2, 4, ... tokens joined in pairs."""
    hashes = (generated.astype(np.uint64) + np.uint64(1)) * _ODD
    width, multiplier = 1, _ODD
    while width < WINDOW_TOKENS:
        hashes = hashes[:-width] * multiplier + hashes[width:]
        hashes ^= hashes >> np.uint64(29)
        width, multiplier = 2 * width, multiplier + np.uint64(2 * width)
    return hashes


@bare
def _counts_on(generated: NDArray[np.int32]) -> bool:
    """Whether most tokens are those one period before, at some period."""
    for period in range(1, MAX_PERIOD + 1):
        pairs = len(generated) - period
        needed = max(MIN_REPEATED, COUNTING_SHARE * pairs)
        same = 0
        for i in range(pairs):
            same += generated[i] == generated[i + period]
        if same >= needed:
            return True
    return False
