"""What a stream can show: styles and bars on a terminal, else plain text."""

from __future__ import annotations

import os
import re
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_TIE = "\N{NO-BREAK SPACE}"
_SIZE = re.compile("[1-9][0-9]{0,3}", re.ASCII)


def is_terminal(stream: IO[str]) -> bool:
    """Whether a person watches ``stream`` on a terminal that can move its cursor."""
    return stream.isatty() and not _is_dumb()


def is_styled(stream: IO[str]) -> bool:
    """Whether ``stream`` gets tables with rules, and words that stand out.

    On a terminal, and wherever FORCE_COLOR is set (https://force-color.org); never with TERM=dumb. NO_COLOR
    (https://no-color.org) takes the colors alone: bold and rules stay.
    """
    return not _is_dumb() and (stream.isatty() or bool(os.environ.get("FORCE_COLOR")))


def _is_dumb() -> bool:
    return os.environ.get("TERM", "") in ("dumb", "unknown")


def console(stream: IO[str]) -> Console:
    """A rich console on ``stream`` that changes nothing of the text that it is given.

    COLUMNS and LINES go before what the terminal says of itself, unless they are no size, as 0.
    """
    from rich.console import Console

    usable = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES") or _SIZE.fullmatch(v)}
    return Console(file=stream, highlight=False, markup=False, emoji=False, _environ=usable)


def together(text: str) -> str:
    """``text`` whose K = 2 and mape <= 8% no line end parts; :func:`apart` gives it back."""
    return re.sub(" ([<>]?=) ", rf"{_TIE}\1{_TIE}", text)


def apart(text: str) -> str:
    """What :func:`together` was given."""
    return text.replace(_TIE, " ")
