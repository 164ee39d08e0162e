"""Predictors by the name that a table gives: each turns the rows of a table into predictions, in their order.

A predictor reads nothing of a row but where it was measured (``at``). What it infers from a measured figure
it says row by row (``Prediction.used_in_fit``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType

from kplan.errors import InputError
from kplan.validate.table import Prediction, PublishedTable

Predictor = Callable[[PublishedTable], Sequence[Prediction]]

PREDICTORS: Mapping[str, str] = MappingProxyType(
    {
        "closed-loop": "kplan.validate.predict.closed_loop:predict",
        "decode-speedup": "kplan.validate.predict.context:predict",
        "iid-speedup": "kplan.validate.predict.closed_forms:predict",
        "inferred-speedup": "kplan.validate.predict.serving:predict",
        "laptop": "kplan.validate.predict.laptop:predict",
        "open-load": "kplan.validate.predict.open_load:predict",
        "shares": "kplan.validate.predict.breakdown:shares",
        "specdecode-bench": "kplan.validate.predict.specdecode_bench:predict",
        "speedup": "kplan.validate.predict.speedup:predict",
        "step-times": "kplan.validate.predict.breakdown:step_ms",
        "trees": "kplan.validate.predict.trees:predict",
    }
)
"""Name -> ``module:function``, imported when a table asks for it."""


def load_predictor(name: str) -> Predictor:
    """The predictor of that name. Raises InputError naming close matches."""
    if name not in PREDICTORS:
        close = get_close_matches(name, PREDICTORS, n=2, cutoff=0.5)
        fix = f"did you mean {' or '.join(close)}?" if close else ""
        raise InputError("predictor", name, f"known: {', '.join(sorted(PREDICTORS))}", fix)
    module, _, function = PREDICTORS[name].partition(":")
    found: Predictor = getattr(import_module(module), function)
    return found
