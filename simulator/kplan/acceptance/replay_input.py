"""Requests to replay, out of a table of token ids or of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kplan.acceptance.columns import Row
from kplan.acceptance.replay import Requests
from kplan.errors import InputError

Encode = Callable[[Sequence[str]], list[NDArray[np.int32]]]

NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt_token_ids": ("prompt_token_ids", "input_token_ids", "input_ids"),
    "generated_token_ids": ("generated_token_ids", "output_token_ids", "completion_token_ids", "output_ids"),
    "prompt": ("prompt", "input"),
    "output": ("output", "completion", "generated_text", "response"),
    "request_id": ("request_id", "id"),
    "dataset": ("dataset",),
}
"""Role -> the columns that have it, unless one is named for it."""

_MAX_ID = 2**31 - 1


def find_roles(columns: Sequence[str], given: Mapping[str, str], *, file: str, text: bool) -> dict[str, str]:
    """Role -> column, of what a replay needs and of ``request_id`` and ``dataset`` where they are.

    Args:
        given: role -> column, before any known name.
        text: prompts and outputs are text, else token ids.

    Raises:
        InputError: an unknown role, a column that is not there, or no column for a role that is needed.
    """
    has = f"it has {', '.join(columns)}"[:300]
    for role, column in given.items():
        if role not in NAMES:
            raise InputError(
                "--columns", f"{role}={column}", f"known are {', '.join(NAMES)}", "mend the name before ="
            )
        if column not in columns:
            raise InputError(f"{file}, column {column}", "no such column", has, "mend --columns")
    known = {role: next((name for name in names if name in columns), None) for role, names in NAMES.items()}
    roles = {role: name for role, name in (known | dict(given)).items() if name is not None}
    ids, words = ("prompt_token_ids", "generated_token_ids"), ("prompt", "output")
    for role in words if text else ids:
        if role not in roles:
            fix = f"--columns {role}=NAME"
            if not text and set(words) <= set(roles):
                fix = "it has text: give its --tokenizer tokenizer.json"
            raise InputError(f"{file}, {role}", "no such column", has, fix)
    return {
        role: roles[role] for role in (*(words if text else ids), "request_id", "dataset") if role in roles
    }


def read_requests(
    table: pa.Table,
    roles: Mapping[str, str],
    *,
    file: str,
    dataset: str | None = None,
    encode: Encode | None = None,
    tokenizer: str = "",
) -> Requests:
    """The requests of ``table`` in its order; rows without output (aborted requests) are left out, counted.

    Args:
        roles: as :func:`find_roles` gives them.
        file: name for messages.
        dataset: only the rows with this value in the ``dataset`` column; None: all.
        encode: text to token ids, where the columns hold text.
        tokenizer: its name.

    Raises:
        InputError: one line with row and column: a missing value, or no token ids (lists, or text such as
            ``1 2 3`` or ``[1, 2, 3]``), an empty prompt; a data set that is not there; no request left.
    """
    rows = np.arange(table.num_rows)
    labels = None
    if "dataset" in roles:
        labels = [str(value) for value in table.column(roles["dataset"]).to_pylist()]
    if dataset is not None:
        if labels is None or dataset not in labels:
            has = ", ".join(sorted(set(labels))) if labels else "no column dataset"
            raise InputError("dataset", dataset, f"{file} has {has}"[:300])
        rows = np.flatnonzero(np.array(labels) == dataset)
    prompt, output = [role for role in roles if role not in ("request_id", "dataset")]
    prompts = _values(table, roles[prompt], rows, file, encode)
    outputs = _values(table, roles[output], rows, file, encode)
    kept = [i for i, ids in enumerate(outputs) if len(ids)]
    for i in kept:
        if not len(prompts[i]):
            raise InputError(
                Row(file, int(rows[i]) + 1).at(roles[prompt]),
                "an empty prompt",
                "at least one token is needed",
            )
    if not kept:
        raise InputError(file, f"{len(rows)} requests", "at least one with an output is needed")
    names = (
        table.column(roles["request_id"]).to_pylist()
        if "request_id" in roles
        else range(1, table.num_rows + 1)
    )
    prefix = labels if dataset is None else None
    dropped = len(rows) - len(kept)
    notes = [f"{dropped} rows without output were left out"] if dropped else []
    if encode is not None:
        notes.append("text was tokenized as it stands: a chat template counts only where the prompts hold it")
    return Requests(
        request_id=tuple(_name(names, prefix, int(rows[i])) for i in kept),
        prompts=tuple(prompts[i] for i in kept),
        outputs=tuple(outputs[i] for i in kept),
        source=file if dataset is None else f"{file}, {dataset}",
        tokenizer=tokenizer,
        notes=tuple(notes),
    )


def load_tokenizer(path: Path) -> Encode:
    """What turns text into ids, from a Hugging Face ``tokenizer.json``; no special tokens are added.

    Raises:
        InputError: the package ``tokenizers`` is not installed, or the file is none of its files.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InputError(
            "--tokenizer", str(path), "it needs the package tokenizers", "pip install 'kplan[text]'"
        ) from error
    if not path.is_file():
        raise InputError("--tokenizer", str(path), "no such file", "give the model's tokenizer.json")
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower class
        raise InputError("--tokenizer", str(path), f"not a tokenizer.json ({error})"[:200]) from error

    def encode(texts: Sequence[str]) -> list[NDArray[np.int32]]:
        found = loaded.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in found]

    return encode


def _name(names: Sequence[Any], prefix: Sequence[str] | None, row: int) -> str:
    return str(names[row]) if prefix is None else f"{prefix[row]}/{names[row]}"


def _values(
    table: pa.Table, column: str, rows: NDArray[np.int64], file: str, encode: Encode | None
) -> list[NDArray[np.int32]]:
    values = table.column(column).combine_chunks()
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(Row(file, row + 1).at(column), "null", "a value is needed")
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if encode is not None:
        if not is_text:
            raise InputError(f"{file}, column {column}", str(values.type), "text is needed")
        return encode(values.take(pa.array(rows)).to_pylist())
    if is_text:
        return [_parsed(values[int(row)].as_py(), Row(file, int(row) + 1), column) for row in rows]
    return _lists(values, column, rows, file)


def _lists(values: pa.Array, column: str, rows: NDArray[np.int64], file: str) -> list[NDArray[np.int32]]:
    is_list = pa.types.is_list(values.type) or pa.types.is_large_list(values.type)
    if is_list and pa.types.is_null(values.type.value_type):  # every list is empty
        return [np.zeros(0, np.int32) for _ in rows]
    if not (is_list and pa.types.is_integer(values.type.value_type)):
        raise InputError(f"{file}, column {column}", str(values.type), "lists of integers are needed")
    offsets = np.asarray(values.offsets, np.int64)
    flat = values.values
    missing = flat.is_null().to_numpy(zero_copy_only=False)
    ids = flat.fill_null(0).to_numpy(zero_copy_only=False)
    bad = missing | (ids < 0) | (ids > _MAX_ID)
    bad[: offsets[0]] = bad[offsets[-1] :] = False
    if bad.any():
        at = int(np.argmax(bad))
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        shown = "null" if missing[at] else int(ids[at])
        raise InputError(Row(file, row + 1).at(column, at - int(offsets[row])), shown, _BOUND)
    narrow = ids.astype(np.int32)
    return [narrow[offsets[row] : offsets[row + 1]] for row in rows]


_BOUND = f"a token id in 0..{_MAX_ID} is needed"


def _parsed(text: str, where: Row, column: str) -> NDArray[np.int32]:
    """Ids that a CSV holds as text."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    for index, word in enumerate(words):
        if not (word.isdecimal() and int(word) <= _MAX_ID):
            raise InputError(where.at(column, index), word[:60], _BOUND)
    return np.array([int(word) for word in words], np.int32)
