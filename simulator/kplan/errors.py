"""Exceptions of kplan: each names the value, the bound and the fix.

The command line turns :class:`InputError` into exit code 2 and :class:`InfeasibleError` into exit code 1,
:class:`StoppedError` into that of the signal, one line each; everything else is a bug and shows its
traceback.
"""

from __future__ import annotations

_MOST_CHARACTERS = 400
"""Of each part of a message: a server or a file may hold a line without end."""


class KplanError(Exception):
    """Base of every error that kplan raises on purpose."""


class InputError(KplanError):
    """A value the user gave cannot be used.

    The message is one line: what was given, what would be accepted, and how to mend it.
    """

    def __init__(self, what: str, value: object, bound: str, fix: str = "") -> None:
        # all four are its args, so that a copy made from them (by a process pool, by SimPy) says the same
        super().__init__(what, value, bound, fix)
        self.what, self.value, self.bound, self.fix = what, value, bound, fix

    def __str__(self) -> str:
        text = f"{_cut(self.what)}: got {_cut(_shown(self.value))}, {_cut(self.bound)}"
        return _one_line(f"{text}; {_cut(self.fix)}" if self.fix else text)


class InfeasibleError(KplanError):
    """The question is well formed and its answer is no (nothing fits, nothing meets the SLO)."""


class StoppedError(KplanError):
    """The command was asked to end; the message says what is kept and how to go on.

    Attributes:
        code: exit code, that of the signal.
    """

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words, code)
        self.words, self.code = words, code

    def __str__(self) -> str:
        return _one_line(self.words)


def _shown(value: object) -> str:
    try:
        return repr(value) if isinstance(value, str) else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists without end
        return f"a value ({type(value).__name__}) that is too long to show"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def _one_line(text: str) -> str:
    """One line that any terminal shows as it stands: what a file says may hold commands to it."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
