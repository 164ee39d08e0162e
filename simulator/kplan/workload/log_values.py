"""Values of a request log's columns: numbers, dates and unit ids, the first bad one named by its row."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kplan.acceptance.columns import Row
from kplan.errors import InputError

_ZONE = re.compile(r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)$")


def numbers(
    table: pa.Table,
    column: str,
    file: str,
    bound: str,
    *,
    low: float = -np.inf,
    high: float = np.inf,
    whole: bool = False,
    missing: float | None = None,
    fix: str = "",
) -> NDArray[np.float64]:
    """(n,) numbers of a column of numbers or text.

    Args:
        bound: what is needed, for the message.
        low, high: both allowed.
        whole: refuse fractions.
        missing: stands for a null or an empty text; None refuses those.

    Raises:
        InputError: the first value that is no such number, with its row (from 1) and column.
    """
    values = _plain(table, column)
    if _is_text(values.type):
        values = pc.utf8_trim_whitespace(values)
        if missing is not None:
            values = pc.if_else(pc.equal(values, ""), None, values)
    elif not (_is_number(values.type) or pa.types.is_null(values.type)):
        raise InputError(f"{file}, column {column}", f"type {values.type}", bound, fix)
    parsed = _cast(values, pa.float64(), column, file, bound, fix)
    if missing is not None:
        parsed = pc.fill_null(parsed, missing)
    array = np.asarray(parsed.to_numpy(zero_copy_only=False), np.float64)
    bad = ~np.isfinite(array) | (array < low) | (array > high)
    if whole:
        bad |= array != np.floor(array)
    if bad.any():
        raise _bad(values, int(np.argmax(bad)), column, file, bound, fix)
    return array


def datetimes(table: pa.Table, column: str, file: str) -> NDArray[np.float64]:
    """(n,) seconds after the earliest of a column of n >= 1 dates with times (ISO 8601, to the nanosecond).

    Raises:
        InputError: the first value that is no such time, or lacks the time zone that the first one has.
    """
    bound = "a date and time are needed, for example 2023-11-16 18:17:03.979"
    values = _plain(table, column)
    if _is_text(values.type):
        values = pc.utf8_trim_whitespace(values)
        zoned = values[0].is_valid and _ZONE.search(values[0].as_py())
        if zoned:
            bound += ", with the zone that row 1 has"
        parsed = _cast(values, pa.timestamp("ns", "UTC" if zoned else None), column, file, bound)
    elif pa.types.is_timestamp(values.type):
        parsed = _cast(values, pa.timestamp("ns", values.type.tz), column, file, bound)
    else:
        raise InputError(
            f"{file}, column {column}", f"type {values.type}", bound, "of numbers say the unit: t_s or t_ms"
        )
    if parsed.null_count:
        raise _bad(values, int(np.argmax(parsed.is_null().to_numpy(False))), column, file, bound)
    since = np.asarray(parsed.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
    return np.asarray((since - since.min()) / 1e9)


def texts(table: pa.Table, column: str, file: str) -> pa.Array:
    """(n,) names or numbers as text; what is null or empty is null.

    Raises:
        InputError: a column of lists or other nested values.
    """
    values = _plain(table, column)
    if pa.types.is_nested(values.type):
        raise InputError(f"{file}, column {column}", f"type {values.type}", "names or numbers are needed")
    names = pc.utf8_trim_whitespace(values.cast(pa.string()))
    return pc.if_else(pc.equal(names, ""), None, names)


def unit_lists(table: pa.Table, column: str, file: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Offsets (n + 1,) and flat ids of a column of lists, or of text such as ``[3, 7]`` or ``3 7``.

    Raises:
        InputError: no lists, or a null among the ids.
    """
    values = _plain(table, column)
    if _is_text(values.type):
        words = pc.utf8_trim_whitespace(pc.replace_substring_regex(values, r"[\[\](),;\s]+", " "))
        values = pc.split_pattern(pc.if_else(pc.equal(words, ""), None, words), " ")
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise InputError(f"{file}, column {column}", f"type {values.type}", "a list of ids is needed")
    counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    flat = values.flatten()
    if flat.null_count or pa.types.is_floating(flat.type) or pa.types.is_nested(flat.type):
        at = int(np.argmax(flat.is_null().to_numpy(False))) if flat.null_count else 0
        row = int(np.searchsorted(offsets, at, side="right"))
        raise InputError(Row(file, row).at(column), str(flat[at]), "ids must be whole numbers or words")
    return offsets, flat


def _plain(table: pa.Table, column: str) -> pa.Array:
    values = table.column(column).combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # of no rows, or of more than one array can hold
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _cast(values: pa.Array, kind: pa.DataType, column: str, file: str, bound: str, fix: str = "") -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        good, bad = 0, len(values)  # the first ``good`` can be cast, the first ``bad`` cannot
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                values.slice(good, middle - good).cast(kind)
                good = middle
            except pa.ArrowInvalid:
                bad = middle
        raise _bad(values, good, column, file, bound, fix) from None


def _bad(values: pa.Array, at: int, column: str, file: str, bound: str, fix: str = "") -> InputError:
    value = values[at].as_py()
    shown = "nothing" if value in (None, "") else str(value)[:60]
    return InputError(Row(file, at + 1).at(column), shown, bound, fix)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
