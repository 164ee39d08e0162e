"""Sessions of a request log: which request waits for which, and the history that the turns share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kplan.acceptance.columns import Row
from kplan.errors import InputError

ALONE = -1
"""A request that waits for none."""


def follow_session(session: pa.Array) -> NDArray[np.int64]:
    """(n,) index of the request before in the same session, ALONE for a first turn or a null session.

    Args:
        session: (n,) in order of arrival.
    """
    import pandas as pd  # a fifth of a second to import, needed for sessions alone

    codes, _ = pd.factorize(session.to_numpy(zero_copy_only=False))
    order = np.argsort(codes, kind="stable")
    follows = np.full(len(codes), ALONE, np.int64)
    same = (np.diff(codes[order]) == 0) & (codes[order][1:] >= 0)
    follows[order[1:][same]] = order[:-1][same]
    return follows


def follow_parent(
    request: pa.Array, parent: pa.Array, rows: NDArray[np.int64], column: str, file: str
) -> tuple[NDArray[np.int64], int]:
    """(n,) index of each request's parent, and how many parents are not there to wait for.

    Such a parent is in no row, or in one that arrives later: its child starts a session.

    Args:
        request, parent: (n,) ids in order of arrival; a parent that is null or -1 is none.
        rows: (n,) rows of the file they stand in, from 0, for the message.

    Raises:
        InputError: two requests of one id, or one without.
    """
    ids = request.to_numpy(zero_copy_only=False)
    import pandas as pd

    twice = pd.Series(ids).duplicated().to_numpy() | pd.isna(ids)
    if twice.any():
        at = int(np.argmax(twice))
        shown = "nothing" if ids[at] is None else str(ids[at])
        raise InputError(Row(file, int(rows[at]) + 1).at(column), shown, "each request needs its own id")
    asked = pc.and_kleene(parent.is_valid(), pc.not_equal(parent, "-1"))
    found = pc.index_in(parent, value_set=request).fill_null(ALONE).to_numpy(zero_copy_only=False)
    there = asked.fill_null(False).to_numpy(zero_copy_only=False)
    follows = np.where(there & (found < np.arange(len(ids))), found, ALONE).astype(np.int64)
    return follows, int(np.count_nonzero(there & (follows == ALONE)))


def shared_history(
    prompt_len: NDArray[np.int64], output_len: NDArray[np.int64], follows: NDArray[np.int64], unit: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Ids and offsets of the whole units of prompt and output, a turn's history shared with the one before.

    Args:
        prompt_len, output_len, follows: (n,); ``follows`` has lower indices only.
        unit: tokens.
    """
    units = (prompt_len + output_len) // unit
    offsets = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
    ids = np.arange(offsets[-1])
    turns = np.flatnonzero(follows != ALONE)
    before = follows[turns]
    shared = np.minimum(prompt_len[before] + output_len[before], prompt_len[turns]) // unit
    for here, there, count in zip(offsets[turns], offsets[before], shared, strict=True):
        ids[here : here + count] = ids[there : there + count]
    import pandas as pd

    dense, _ = pd.factorize(ids)
    return dense.astype(np.int32), offsets
