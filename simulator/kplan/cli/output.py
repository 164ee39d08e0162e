"""Terminal output: answers on stdout, faults on stderr, JSON alone on stdout."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from kplan.cli.terminal import apart, console, is_styled, together

if TYPE_CHECKING:
    from pydantic import BaseModel

LABELS = {
    "error": "bold red",
    "no": "bold yellow",
    "warning": "bold yellow",
    "note": "bold",
    "next": "bold",
    "better": "bold",
    "not as planned": "bold yellow",
    "worse than the baseline": "bold red",
    "FAIL": "bold red",
    "ok": "green",
    "wrote": "green",
}
"""Words that a line begins with -> their style: the word tells it, the color only finds it."""


SAME = "the same question gives the same figures here but for rounding, 1e-8 of them"
DIFFERENT = "the same question may give other figures here; the changelog tells what moved"
"""What to expect of a result of other versions."""


def print_json(record: BaseModel | dict[str, Any], *, listing: bool = False) -> None:
    """One JSON object on stdout and nothing else; it tells the versions that made it.

    Args:
        listing: whose keys are what is listed, so that one for the versions would be taken for another.
    """
    from kplan.provenance import versions

    values = record if isinstance(record, dict) else record.model_dump(mode="json")
    if not listing and "versions" not in values:
        values = values | {"versions": versions()}
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


def tell_other_versions(what: str, made_with: Mapping[str, str]) -> None:
    """A line on stderr where a file was made with other versions than those here."""
    from kplan.provenance import other_versions, versions

    if other := other_versions(made_with):
        here = versions()
        told = ", ".join(f"{name} {was} (here {here[name]})" for name, was in other.items())
        prose(f"note: {what} was made with {told}: {DIFFERENT if 'kplan' in other else SAME}", err=True)


def say(line: str = "", *, err: bool = False, style: str = "") -> None:
    """One line as it is, for what may be copied: a path, a command. On a terminal its label stands out.

    Args:
        err: on stderr instead of stdout.
        style: of the whole line, on a terminal.
    """
    stream = sys.stderr if err else sys.stdout
    if is_styled(stream):
        _styled(line, stream, style)
    else:
        print(line, file=stream)


def prose(text: str, *, err: bool = False, style: str = "") -> None:
    """Sentences, broken between words where a terminal ends; those of a list keep its indent."""
    stream = sys.stderr if err else sys.stdout
    if not is_styled(stream):
        print(text, file=stream)
        return
    indent = "  " if text.startswith("- ") else ""
    width = console(stream).width
    for line in text.split("\n"):
        broken = textwrap.fill(
            together(line), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        _styled(apart(broken), stream, style)


def _styled(text: str, stream: IO[str], style: str) -> None:
    from rich.text import Text

    shown = Text(text, style=style)
    for label, look in LABELS.items():
        if text.startswith((f"{label}: ", f"{label} ")) or text == label:
            shown.stylize(look, 0, len(label))
            break
    console(stream).print(shown, soft_wrap=True)
