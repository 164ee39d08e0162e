"""How the inner loops are compiled.

Arrays that come in as arguments belong to the caller for as long as the call lasts, so nothing in these
functions counts references: with counting, a step of a small batch spends most of its time on that
(measured: 5 times slower at batch 1, a third at batch 64). In return they must not allocate; numba refuses
those that do. They hold no lock of Python either: runs that share nothing go on side by side in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

_njit: Any = njit  # its type does not know the options below

F = TypeVar("F", bound=Callable[..., Any])


def bare(function: F) -> F:
    """Compile on the first call, keep on disk."""
    return cast("F", _njit(cache=True, nogil=True, _nrt=False)(function))


def inline(function: F) -> F:
    """The same, dissolved into its callers: handing the arrays over costs as much as a small function."""
    return cast("F", _njit(cache=True, nogil=True, _nrt=False, forceinline=True)(function))
