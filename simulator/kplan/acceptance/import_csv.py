"""Importer of CSV: one step a row, ``request_id, prompt_len, output_len, position, accepted, drafted``.

``position`` counts the output tokens that exist when the step starts (the first decode step: 1); steps that
are not listed stay unknown. Rows of a request stand together. Other columns are left out, with a note.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import groupby
from pathlib import Path

import numpy as np

from kplan.acceptance.collect import ImportOptions, StepCollector
from kplan.acceptance.columns import Row
from kplan.acceptance.figures import AcceptanceFigures
from kplan.acceptance.jsonl import Progress, silent
from kplan.acceptance.placing import Steps
from kplan.acceptance.trace import MAX_K, MAX_TOKENS, TraceSet
from kplan.errors import InputError

COLUMNS = ("request_id", "prompt_len", "output_len", "position", "accepted", "drafted")
_BOUNDS = {
    "prompt_len": (1, MAX_TOKENS), "output_len": (1, MAX_TOKENS), "position": (1, MAX_TOKENS),
    "accepted": (0, MAX_K), "drafted": (0, MAX_K),
}  # fmt: skip
_DIGITS = 10
_TELL_ROWS = 2**14

Numbers = tuple[int, int, int, int, int]


def load_csv(path: Path, options: ImportOptions, progress: Progress = silent) -> TraceSet | AcceptanceFigures:
    """Read the steps of a CSV file, a request in memory at a time.

    Raises:
        InputError: one line with file, row (the header is row 1) and column: a missing column, a value that
            is no such integer, steps that overlap or run backwards, lengths that change within a request, or
            a request whose rows do not stand together.
    """
    collector = StepCollector(options.needed_proposer("a CSV of steps"), options, path.stat().st_size)
    done: set[str] = set()
    for name, group in groupby(_rows(path, progress), key=lambda row: row[1]):
        rows = list(group)
        first = rows[0]
        if name in done:
            fix = "sort by request_id, then position"
            raise InputError(first[0].at("request_id"), name, "its rows do not stand together", fix)
        done.add(name)
        prompt_len, output_len = first[2][:2]
        before = 1
        for where, _, (prompt, output, position, accepted, drafted) in rows:
            for column, got, told in (("prompt_len", prompt, prompt_len), ("output_len", output, output_len)):
                if got != told:
                    raise InputError(where.at(column), got, f"the request began with {told}")
            if not before <= position < output_len:
                bound = f"{before}..{output_len - 1} is possible"
                raise InputError(where.at("position"), position, bound, "steps follow one another")
            if accepted > drafted:
                raise InputError(where.at("accepted"), accepted, f"{drafted} were drafted")
            before = position + accepted + 1
        table = np.array([row[2][2:] for row in rows], np.int64)
        drafting = table[:, 2] > 0
        collector.count_steps(table[drafting, 1], table[drafting, 2])
        collector.add_row(name, prompt_len, output_len, Steps(table[:, 0], table[:, 1], table[:, 2]))
    if not done:
        raise InputError("trace file", str(path), "it holds no request", "give a row for every step")
    return collector.result(f"CSV of steps, {path.name}")


def _rows(path: Path, progress: Progress) -> Iterator[tuple[Row, str, Numbers]]:
    try:
        with path.open("rb") as raw, TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            header = [cell.strip() for cell in next(reader, [])]
            for column in COLUMNS:
                if header.count(column) != 1:
                    bound = f"{', '.join(COLUMNS)} are needed, once each"
                    raise InputError(f"{path.name}, column {column}", f"{header.count(column)} of it", bound)
            at = [header.index(column) for column in COLUMNS]
            total = path.stat().st_size
            for number, cells in enumerate(reader):
                if number % _TELL_ROWS == 0:
                    progress(raw.tell(), total)
                where = Row(path.name, reader.line_num)
                if not cells:
                    continue
                if len(cells) != len(header):
                    bound = f"the header has {len(header)}"
                    raise InputError(where.at("1"), f"{len(cells)} cells", bound, "is the line truncated?")
                name, *numbers = (cells[i].strip() for i in at)
                if not name:
                    raise InputError(where.at("request_id"), "nothing", "a name is needed")
                a, b, c, d, e = map(_integer, numbers, COLUMNS[1:], [where] * len(numbers))
                yield where, name, (a, b, c, d, e)
            progress(total, total)
    except OSError as error:
        raise InputError("trace file", str(path), error.strerror or "cannot be read") from error
    except UnicodeDecodeError as error:
        raise InputError(path.name, "not UTF-8", "text is needed", "save it as UTF-8") from error
    except csv.Error as error:
        raise InputError(path.name, str(error)[:60], "CSV is needed", "is a quote left open?") from error


def _integer(text: str, column: str, where: Row) -> int:
    low, high = _BOUNDS[column]
    digits = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not digits or not low <= int(text) <= high:
        raise InputError(where.at(column), text[:60], f"an integer in {low}..{high} is needed")
    return int(text)
