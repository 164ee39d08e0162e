"""Numbers and names as a reader sees them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

from kplan.config.loads import load_words
from kplan.config.plan import Answer, PolicyResult, Question

DASH = "–"
_LABEL_CHARS = 14


def number(value: float | None, digits: int = 3) -> str:
    """``value`` to ``digits`` significant digits, thousands set apart, a dash for None."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    decimals = max(digits - 1 - floor(log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def load(question: Question) -> str:
    """The load with its unit."""
    return load_words(question, "requests/s", "{} requests at a time")


def answer_k(answer: Answer) -> str:
    """What to set, in a few words."""
    if answer.k is not None:
        return "no speculation" if answer.k == 0 else f"K = {answer.k}"
    return "K by batch size" if answer.table is not None else answer.policy


def labels(results: Sequence[PolicyResult]) -> list[str]:
    """A short, distinct, HTML-escaped name per policy, for the axes of charts."""
    return short_names([result.name for result in results])


def short_names(names: Sequence[str]) -> list[str]:
    """A short, distinct, HTML-escaped form of each policy's name."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        short = _short(name)
        seen[short] = seen.get(short, 0) + 1
        out.append(escape(short if seen[short] == 1 else f"{short} #{seen[short]}"))
    return out


def _short(name: str) -> str:
    head, _, rest = name.partition(":")
    if head == "fixed":
        short = f"K = {rest}"
    elif "." in head or "/" in head:
        short = rest.partition(":")[0] or head
    else:
        short = head
    return short if len(short) <= _LABEL_CHARS else f"{short[: _LABEL_CHARS - 1]}…"
