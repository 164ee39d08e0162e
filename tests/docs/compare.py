"""What a command printed, beside what a page says that it prints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from difflib import SequenceMatcher

WIDTH = 118
"""Columns at which a page breaks a sentence; rows of tables are not broken."""
LEFT_OUT = "..."
"""A line of a page that stands for any number of lines, none included."""

_CLOCK = (
    (re.compile(r"\bin [\d.,]+ s\b"), "in # s"),
    (re.compile(r"[\d,]+ engine steps/s here"), "# engine steps/s here"),
)
"""Figures of this machine's clock: the only ones that may differ."""


def wrapped(output: str) -> list[str]:
    """The lines of an output as a page shows them."""
    return [part for line in output.rstrip("\n").split("\n") for part in _broken(line.rstrip())]


def _broken(line: str) -> list[str]:
    if len(line) <= WIDTH or "  " in line.strip():
        return [line]
    indent = len(line) - len(line.lstrip()) + (2 if line.lstrip() != line or line.startswith("- ") else 0)
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def differs(told: Sequence[str], printed: Sequence[str]) -> str:
    """Where ``printed`` is not what ``told`` says, "" where it is.

    Args:
        told: lines of a page, ``...`` for those left out.
        printed: lines of the output, ``wrapped``.
    """
    rest = [_timeless(line) for line in printed]
    head, *others = _parts([_timeless(line) for line in told])
    if rest[: len(head)] != head or (not others and len(rest) != len(head)):
        return _shown(head, rest)
    rest = rest[len(head) :]
    for part in others[:-1]:
        ends = (n + len(part) for n in range(len(rest)) if rest[n : n + len(part)] == part)
        end = next(ends, None) if part else 0
        if end is None:
            return _shown(part, rest)
        rest = rest[end:]
    tail = others[-1] if others else []
    return "" if not tail or rest[-len(tail) :] == tail else _shown(tail, rest)


def _timeless(line: str) -> str:
    for pattern, instead in _CLOCK:
        line = pattern.sub(instead, line)
    return line


def _parts(lines: Sequence[str]) -> list[list[str]]:
    """The lines between those left out; the first and the last one are the ends and may be empty."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == LEFT_OUT:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _shown(part: Sequence[str], rest: Sequence[str]) -> str:
    return "\n".join(["the page says:", *part, "printed:", *rest])


def renewed(told: Sequence[str], printed: Sequence[str]) -> list[str]:
    """``told`` with what was printed now: the same lines left out, as far as the others can be found again.

    A part begins and ends at the lines most like its own first and last one.
    """
    if not differs(told, printed):
        return list(told)
    parts, lines, start = _parts(told), [], 0
    for number, part in enumerate(parts):
        first, last = number == 0, number == len(parts) - 1
        if number:
            lines.append(LEFT_OUT)
        if not part:
            continue
        at = start if first else _most_like(part[0], printed, start)
        end = len(printed) if last else _most_like(part[-1], printed, max(at, at + len(part) // 2)) + 1
        lines += printed[at:end]
        start = end
    return lines


def _most_like(line: str, printed: Sequence[str], start: int) -> int:
    """Index of the first line from ``start`` on that is most like ``line``."""
    scores = [SequenceMatcher(None, line, one, autojunk=False).ratio() for one in printed[start:]]
    return start + (scores.index(max(scores)) if scores else 0)
