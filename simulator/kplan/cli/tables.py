"""Tables: one description, shown with rules on a terminal and as aligned plain text when piped."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kplan.cli.terminal import apart, console, is_styled, together

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
"""Spaces between columns."""
LONGEST_WORD, SHORTEST = 24, 8
"""A longer word of a text is broken anywhere where its column is narrow; no column of texts gets narrower."""
MARK = ">"
WORDS = {
    "NO": "bold red",
    "FAILS": "bold red",
    "off": "bold red",
    "saturated": "yellow",
    "yes": "green",
    "agrees": "green",
}
"""Cells that are verdicts: the word tells it, the color only finds it."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: its head.
        spare: 0: always shown; else a terminal that is too narrow leaves it out, the highest first.
        folds: it holds words that may go over several lines; numbers are never broken.
    """

    name: str
    spare: int = 0
    folds: bool = False


def print_table(
    title: str,
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    *,
    marked: int | None = None,
    plain: str = "",
    err: bool = False,
) -> None:
    """A table on stdout.

    Args:
        title: a line before it; "" for none.
        left: the first ``left`` columns are text: aligned to the left, and folded where it is narrow. The
            others are aligned to the right.
        marked: the row that a terminal marks, by a sign and in bold.
        plain: the format of one row of plain text, in place of columns as wide as they need.
        err: on stderr instead of stdout.
    """
    stream = sys.stderr if err else sys.stdout
    heads = [one if isinstance(one, Column) else Column(one) for one in columns]
    if is_styled(stream):
        _print_styled(console(stream), title, heads, rows, left, marked)
        return
    lines = [[one.name for one in heads], *rows]
    if title:
        print(title, file=stream)
    widths = [max(len(row[i]) for row in lines) for i in range(len(heads))]
    aligned = (" " * GAP).join(f"{{:{'<' if i < left else '>'}{width}}}" for i, width in enumerate(widths))
    for row in lines:
        print(plain.format(*row) if plain else aligned.format(*row).rstrip(), file=stream)


def _print_styled(
    screen: Console,
    title: str,
    heads: Sequence[Column],
    rows: Sequence[Sequence[str]],
    left: int,
    marked: int | None,
) -> None:
    from rich.text import Text

    if marked is not None:
        heads, left = [Column(""), *heads], left + 1
        rows = [[MARK if place == marked else "", *row] for place, row in enumerate(rows)]
    widths = fit(heads, rows, left, screen.width)
    texts = {i for i in widths if i < left}
    if title:
        screen.print(Text(title, style="bold"))
    for line in _lines([one.name for one in heads], widths, texts):
        screen.print(Text((" " * GAP).join(line), style="bold"), soft_wrap=True)
    rule = "─" if screen.encoding.startswith("utf") else "-"
    screen.print(Text(rule * _total(widths, list(widths))), soft_wrap=True)
    for place, row in enumerate(rows):
        shown = Text(style="bold" if place == marked else "")
        for line in _lines(row, widths, texts):
            shown.append("\n" if shown else "")
            for i, cell in zip(widths, line, strict=True):
                shown.append(cell, style=WORDS.get(row[i]) if i >= left else None)
                shown.append(" " * GAP)
            shown.rstrip()
        screen.print(shown, soft_wrap=True)
    if gone := [one.name for i, one in enumerate(heads) if i not in widths]:
        screen.print(Text(f"too narrow for {', '.join(gone)}: widen, pipe or --json", style="dim"))


def _lines(row: Sequence[str], widths: Mapping[int, int], texts: Collection[int]) -> list[list[str]]:
    """A row in lines of padded cells; ``texts`` are the columns aligned to the left."""
    folded = [(fold(row[i], width).split("\n"), i, width) for i, width in widths.items()]
    return [
        [
            f"{cell[at] if at < len(cell) else '':{'<' if i in texts else '>'}{width}}"
            for cell, i, width in folded
        ]
        for at in range(max(len(cell) for cell, _, _ in folded))
    ]


def fit(heads: Sequence[Column], rows: Sequence[Sequence[str]], left: int, width: int) -> dict[int, int]:
    """The columns that ``width`` letters have room for -> their widths.

    Texts are folded down to their longest word before a column is left out, and get back what stays free;
    where nothing more can be left out, their words are broken.
    """
    folds = [i < left or one.folds for i, one in enumerate(heads)]
    cells = [[row[i] for row in rows] for i in range(len(heads))]
    least = [
        max([_longest_word(one.name), *(_longest_word(cell) if folds[i] else len(cell) for cell in cells[i])])
        for i, one in enumerate(heads)
    ]
    wanted = [max(map(len, [one.name, *cells[i]])) for i, one in enumerate(heads)]
    kept = list(range(len(heads)))
    while _total(least, kept) > width and (spare := [i for i in kept if heads[i].spare]):
        kept.remove(max(spare, key=lambda i: heads[i].spare))
    widths = {i: least[i] for i in kept}
    while _total(widths, kept) > width and (wide := [i for i in kept if folds[i] and widths[i] > SHORTEST]):
        widths[max(wide, key=lambda i: widths[i])] -= 1
    free = width - _total(widths, kept)
    while free > 0 and (narrow := [i for i in kept if widths[i] < wanted[i]]):
        for i in narrow[:free]:
            widths[i] += 1
        free -= len(narrow[:free])
    return widths


def fold(text: str, width: int) -> str:
    """``text`` in lines of ``width`` letters, broken after blanks and commas; a longer word anywhere."""
    lines = [""]
    for piece in re.findall(r"[^ ,]*[ ,]+|[^ ,]+", together(text)):
        if lines[-1] and len(lines[-1] + piece.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip(" ")) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return apart("\n".join(line.rstrip(" ") for line in lines))


def _total(widths: Sequence[int] | Mapping[int, int], kept: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + GAP * (len(kept) - 1)


def _longest_word(text: str) -> int:
    words = re.findall(r"[^ ,]*,+|[^ ,]+", together(text))
    return min(max(map(len, words), default=0), LONGEST_WORD)
