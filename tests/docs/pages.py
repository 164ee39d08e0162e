"""The commands of a markdown page, and what it says that they print.

A fence of the language ``console`` holds commands, one shell a block. The fence ``text`` that follows it, or
one of another language right below it, holds what they print; a line ``...`` there stands for lines left
out. A comment right above a block of commands changes how it is held:

    <!-- not run: why -->     it is shown alone
    <!-- exit code: 1 -->     it ends with that code instead of 0
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{one.name}" for one in (REPOSITORY / "docs").glob("*.md")),
)

_FENCE = re.compile(r"^( *)```(.*)$")
_COMMENT = re.compile(r"<!-- (not run|exit code): (.+) -->")


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page.

    Attributes:
        first: line number (from 0) of its first line; its end is that of the closing fence.
        indent: spaces before its fences.
        alone: whether text stands between it and the fence before.
        comment: (what, value) of the comment right above it, None without one.
    """

    language: str
    first: int
    lines: tuple[str, ...]
    indent: int
    alone: bool
    comment: tuple[str, str] | None

    @property
    def end(self) -> int:
        """Line number of the closing fence."""
        return self.first + len(self.lines)


@dataclass(frozen=True)
class Block:
    """Commands, and what they print.

    Attributes:
        not_run: why it is not run, "" where it is.
        output: the block of what is printed, None where the page does not say.
    """

    commands: Fence
    not_run: str
    exit_code: int
    output: Fence | None


def blocks(text: str) -> list[Block]:
    """The blocks of commands of a page in order. Raises ValueError for output that no command prints."""
    found: list[Block] = []
    for fence in fences(text):
        if fence.language == "console":
            what, value = fence.comment or ("", "")
            not_run = value if what == "not run" else ""
            found.append(Block(fence, not_run, int(value) if what == "exit code" else 0, None))
        elif fence.language == "text" or (fence.language and found and not fence.alone):
            if not found or found[-1].output is not None:
                raise ValueError(f"line {fence.first}: output without commands above it")
            last = found.pop()
            found.append(Block(last.commands, last.not_run, last.exit_code, fence))
    return found


def fences(text: str) -> Iterator[Fence]:
    """Every fenced block. Raises ValueError for one that does not end."""
    lines, at, alone, comment = text.splitlines(), 0, True, None
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            if lines[at].strip():
                told = _COMMENT.fullmatch(lines[at].strip())
                alone, comment = True, (told[1], told[2]) if told else None
            at += 1
            continue
        indent, first = len(opened[1]), at + 1
        end = next((n for n in range(first, len(lines)) if lines[n].strip() == "```"), None)
        if end is None:
            raise ValueError(f"line {first}: the block does not end")
        inside = tuple(line[indent:] for line in lines[first:end])
        yield Fence(opened[2].strip(), first, inside, indent, alone, comment)
        at, alone, comment = end + 1, False, None
