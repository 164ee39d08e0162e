"""Which of several policies to recommend."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kplan.registry import PolicySpec
from kplan.search.candidates import TIE
from kplan.search.evaluate import Evaluated, paired_speedup
from kplan.simulate import is_off


def choose(fit: Sequence[Evaluated]) -> Evaluated | None:
    """The lowest mean TPOT; within 1% of it, or when the paired interval holds 1, the simplest policy."""
    fit = [one for one in fit if math.isfinite(one.tpot_s)]
    if not fit:
        return None
    best = min(fit, key=lambda one: one.tpot_s)

    def as_good(one: Evaluated) -> bool:
        if one.tpot_s <= best.tpot_s * (1 + TIE):
            return True
        pair = paired_speedup(one, best)
        return pair is not None and pair[1] is not None and pair[1][0] <= 1.0

    return min((one for one in fit if as_good(one)), key=lambda one: simplicity(one.spec))


def simplicity(spec: PolicySpec) -> tuple[int, int]:
    """Sort key: off, then fixed by K, then tables, then policies that adapt while they run."""
    if is_off(spec):
        return 0, 0
    if spec.name == "fixed":
        return 1, int(spec.text.removeprefix("fixed:"))
    return (2, spec.text.count(",")) if spec.name == "table" else (3, 0)
