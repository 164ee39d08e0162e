"""Importer of SpecDecode-Bench's combined JSONL (its simulator repository, data/*/combined_*.jsonl).

One request a line: ``id``, ``prompt_token_ids``, ``generated_token_ids``, ``acc_eagle.acc_len`` and
``acc_ngram.acc_len``, recorded with K = 20, n-gram lookup 3..7. What it is known to hold, and what is done:

- ``acc_eagle`` longer or shorter than the generated tokens: it is of another generation; kept, not aligned.
- arrays that run past the end of the output: clipped to what is left.
- no field says where n-gram found a match: replayed from the token ids, and compared with what was recorded.
- loops: marked, so that fits can leave them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kplan.acceptance.columns import Row, TraceBuilder, acceptance, integers, request_names
from kplan.acceptance.heads import RECORDED_HEAD, with_aliases
from kplan.acceptance.jsonl import Progress, records, silent
from kplan.acceptance.loops import is_loopy
from kplan.acceptance.ngram import replay_ngram
from kplan.acceptance.trace import TraceSet
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance

RECORDED_K = 20
LOOKUP_MIN, LOOKUP_MAX = 3, 7
MAX_TOKEN_ID = 2**31 - 1
_KEYS = ("id", "prompt_token_ids", "generated_token_ids")
KNOWN_KEYS = frozenset({*_KEYS, "acc_eagle", "acc_ngram"})
"""Keys of a request; an object with none of them is something else."""


class _Counts:
    """What was met on the way; becomes the notes."""

    def __init__(self) -> None:
        self.positions = 0
        self.disagree = 0
        self.unknown_keys: dict[str, int] = {}


def load_jsonl(path: Path, progress: Progress = silent) -> TraceSet:
    """Read a combined file line by line (one request in memory at a time, besides the packed arrays).

    Raises:
        InputError: one line with file, row and column: unreadable, empty, truncated or not JSON, a missing
            key, NaN, a negative or fractional number, a value above the recorded K + 1, an array shorter
            than its output.
    """
    eagle = TraceBuilder(RECORDED_K, has_drafted=False)
    ngram = TraceBuilder(RECORDED_K, has_drafted=True)
    counts = _Counts()
    ids: list[str] = []
    prompt_len: list[int] = []
    loopy: list[bool] = []
    eagle_rows = 0
    for where, record in records(path, progress):
        for key in record.keys() - KNOWN_KEYS:
            counts.unknown_keys[key] = counts.unknown_keys.get(key, 0) + 1
        prompt, generated = (
            integers(_get(record, key, where), where, key, 0, MAX_TOKEN_ID).astype(np.int32)
            for key in _KEYS[1:]
        )
        ids.append(str(_get(record, "id", where)))
        prompt_len.append(len(prompt))
        loopy.append(is_loopy(generated))
        _add_ngram(ngram, record, where, prompt, generated, counts)
        if "acc_eagle" in record:
            eagle_rows += 1
            acc = acceptance(_acc_len(record, "acc_eagle", where), where, "acc_eagle.acc_len", RECORDED_K)
            eagle.add(acc, aligned=len(acc) == len(generated))
        if eagle_rows not in (0, len(ids)):
            raise InputError(
                where.at("acc_eagle"), "a row with another set of arrays", "all rows or none need it"
            )
    proposers = {"ngram": ngram.build()}
    if eagle_rows:
        proposers[RECORDED_HEAD] = eagle.build()
    proposers, alias_notes = with_aliases(proposers)
    return TraceSet(
        request_id=request_names(ids, path.name),
        prompt_len=np.array(prompt_len, np.int32),
        proposers=proposers,
        provenance=Provenance(
            Kind.MEASURED, f"SpecDecode-Bench {path.name}", f"recorded with K={RECORDED_K}, greedy"
        ),
        notes=(*alias_notes, *_notes(eagle, ngram, counts, sum(loopy))),
        loopy=np.array(loopy, np.bool_),
    )


def _add_ngram(
    builder: TraceBuilder, record: dict[str, Any], where: Row, prompt: Any, generated: Any, counts: _Counts
) -> None:
    replayed, drafted = replay_ngram(
        prompt, generated, lookup_min=LOOKUP_MIN, lookup_max=LOOKUP_MAX, k=RECORDED_K
    )
    if "acc_ngram" not in record:
        builder.add(replayed.astype(np.int64), drafted, aligned=True)
        return
    acc = acceptance(_acc_len(record, "acc_ngram", where), where, "acc_ngram.acc_len", RECORDED_K)
    if len(acc) < len(generated):
        bound = f"its output has {len(generated)} tokens"
        raise InputError(
            where.at("acc_ngram.acc_len"), f"{len(acc)} values", bound, "record the row again or drop it"
        )
    acc = acc[: len(generated)]
    counts.positions += len(acc)
    counts.disagree += int(np.count_nonzero(np.minimum(acc, np.arange(len(acc), 0, -1)) != replayed))
    builder.add(acc, drafted, aligned=True)


def _notes(eagle: TraceBuilder, ngram: TraceBuilder, counts: _Counts, loopy: int) -> Iterator[str]:
    if eagle.unaligned_rows:
        yield (
            f"{RECORDED_HEAD}: {eagle.unaligned_rows} rows belong to another generation than the token ids "
            "(lengths differ): not for joint use"
        )
    for name, builder in ((RECORDED_HEAD, eagle), ("ngram", ngram)):
        if builder.clipped_positions:
            yield f"{name}: {builder.clipped_positions} positions ran past the output's end and were clipped"
    if counts.positions:
        yield (
            f"ngram: drafted replayed with lookup {LOOKUP_MIN}..{LOOKUP_MAX}; the replay agrees with the "
            f"recording on {counts.positions - counts.disagree} of {counts.positions} positions"
        )
    else:
        yield f"ngram: replayed from token ids, lookup {LOOKUP_MIN}..{LOOKUP_MAX} (the file has no acc_ngram)"
    if loopy:
        yield f"{loopy} rows degenerate into repetition (loopy)"
    for key, rows in sorted(counts.unknown_keys.items()):
        yield f"key {key!r} of {rows} rows is not known and was left out"


def _get(record: dict[str, Any], key: str, where: Row) -> Any:
    if key not in record:
        raise InputError(where.at(key), "no such key", f"{', '.join(_KEYS)} are needed")
    return record[key]


def _acc_len(record: dict[str, Any], key: str, where: Row) -> Any:
    value = record[key]
    if not isinstance(value, dict) or "acc_len" not in value:
        raise InputError(where.at(key), str(value)[:60], 'an object with the key "acc_len" is needed')
    return value["acc_len"]
