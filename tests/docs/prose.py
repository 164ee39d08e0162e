"""Figures of the sentences around a block of commands: what was given, or printed, there.

A paragraph right above commands, or right below what they print, has no figures but those of the commands
and of the lines shown, rounded as it likes. A comment right above it says why one has others:

    <!-- not printed: why -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

from tests.docs.pages import Block, blocks

_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
_FIGURE = re.compile(r"[+-]?(\d[\d,]*(?:\.\d+)?)[%x]?")
_PRINTED = re.compile(r"\d[\d,]*(?:\.\d+)?|(?<!\.)\.\d+")
_EXCUSED = re.compile(r"<!-- not printed: .+ -->")
_NO_TEXT = ("#", "|", "<")


def strays(text: str) -> list[str]:
    """Each figure of a page beside a block that is not of the block, as ``line: figure``."""
    found = []
    for first, paragraph, near in _paragraphs(text):
        printed = [Decimal(one.replace(",", "")) for block in near for one in _PRINTED.findall(_shown(block))]
        words = [word.strip("(.,;:)*") for word in _CODE.sub(" ", paragraph).split()]
        figures = [match for word in words if (match := _FIGURE.fullmatch(word))]
        found += [f"{first}: {one[0]}" for one in figures if not _is_of(one[1], printed)]
    return found


def _paragraphs(text: str) -> Iterator[tuple[int, str, list[Block]]]:
    """(line number from 1, text, blocks it touches that say what they print) of those that touch any."""
    lines = text.splitlines()
    starts, ends, inside = {}, {}, set()
    for block in blocks(text):
        if block.output is not None:
            starts[block.commands.first - 1], ends[block.output.end] = block, block
            inside |= {*range(block.commands.first - 1, block.commands.end + 1)}
            inside |= {*range(block.output.first - 1, block.output.end + 1)}
    at = 0
    while at < len(lines):
        first = at
        while at < len(lines) and at not in inside and lines[at].strip() and lines[at][0] not in _NO_TEXT:
            at += 1
        if at == first:
            at += 1
            continue
        before = _beside(lines, range(first - 1, -1, -1))
        touched = [
            found for found in (ends.get(before), starts.get(_beside(lines, range(at, len(lines))))) if found
        ]
        if touched and not _EXCUSED.fullmatch(lines[first - 1].strip()):
            yield first + 1, " ".join(lines[first:at]), touched


def _beside(lines: list[str], way: range) -> int | None:
    """The first line on the way that is neither empty nor a comment."""
    return next((at for at in way if lines[at].strip() and not lines[at].lstrip().startswith("<!--")), None)


def _shown(block: Block) -> str:
    output = () if block.output is None else block.output.lines
    return "\n".join([*block.commands.lines, *output])


def _is_of(figure: str, printed: list[Decimal]) -> bool:
    """Whether one of ``printed``, rounded to the digits of ``figure``, is that."""
    told = Decimal(figure.replace(",", ""))
    return any(one.quantize(told, ROUND_HALF_UP) == told for one in printed)
