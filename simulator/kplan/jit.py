"""How the inner loops are compiled.

Arrays that come in as arguments belong to the caller for as long as the call lasts, so nothing in these
functions counts references: with counting, a step of a small batch spends most of its time on that
(measured: 5 times slower at batch 1, a third at batch 64). In return they must not allocate; numba refuses
those that do. They hold no lock of Python either: runs that share nothing go on side by side in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

_njit: Any = numba.njit  # its type does not know the options below
_config: Any = numba.config  # nor this one its names

F = TypeVar("F", bound=Callable[..., Any])


def bare(function: F) -> F:
    """Compile on the first call, keep on disk."""
    return cast("F", _njit(cache=True, nogil=True, _nrt=False)(function))


def inline(function: F) -> F:
    """The same, dissolved into its callers: handing the arrays over costs as much as a small function."""
    return cast("F", _njit(cache=True, nogil=True, _nrt=False, forceinline=True)(function))


def compiles() -> bool:
    """Whether numba compiles at all: not under ``NUMBA_DISABLE_JIT``, its switch for debuggers."""
    return not _config.DISABLE_JIT


def records(count: int, fields: np.dtype[Any]) -> Any:
    """(count,) records of ``fields``, all 0, whose fields the loops read as attributes.

    numba takes the plain array fast; where nothing is compiled numpy itself must know fields as attributes.
    """
    made = np.zeros(count, fields)
    return made if compiles() else made.view(np.recarray)
