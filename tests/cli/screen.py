"""Commands on a pseudo-terminal, as a person runs them, and what stands on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KPLAN = ("-c", "from kplan.cli.app import main; main()")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Shown:
    """What a command wrote to a terminal.

    Attributes:
        raw: with the codes that color and move.
        out: what went to stdout, where that was a pipe; else "".
    """

    code: int
    raw: str
    out: str = ""

    @property
    def text(self) -> str:
        """Without the codes."""
        return _ESCAPE.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """What stays on the screen, without blank lines and blanks at the ends; no line may wrap."""
        screen, row, column = [""], 0, 0
        for part in re.split(rf"({_ESCAPE.pattern}|[\r\n])", self.raw):
            if part == "\n":
                row += 1
                screen += [""] * (row + 1 - len(screen))
            elif part == "\r":
                column = 0
            elif part == "\x1b[2K":
                screen[row] = ""
            elif part == "\x1b[1A":
                row -= 1
            elif not _ESCAPE.fullmatch(part):
                before = screen[row].ljust(column)
                screen[row] = before[:column] + part + before[column + len(part) :]
                column += len(part)
        return [line.rstrip() for line in screen if line.strip()]


def on_terminal(
    *argv: str,
    columns: int = 80,
    env: Mapping[str, str] | None = None,
    piped: bool = False,
    interrupt: str = "",
    command: Sequence[str] = KPLAN,
) -> Shown:
    """Run on a terminal of ``columns`` letters.

    Args:
        env: changes to a usual environment (TERM=xterm-256color, no word on colors).
        piped: stdout is a pipe, and the terminal has stderr alone.
        interrupt: a Ctrl-C follows when this was shown.
        command: run by this Python.
    """
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *command, *argv],
        stdin=theirs,
        stdout=subprocess.PIPE if piped else theirs,
        stderr=theirs,
        env=plain | {"TERM": "xterm-256color"} | dict(env or {}),
        start_new_session=True,
    )
    os.close(theirs)
    raw, out, end_s = b"", b"", time.monotonic() + 300
    open_ends = {ours, *([process.stdout.fileno()] if process.stdout else [])}
    while open_ends and time.monotonic() < end_s:
        for end in select.select(open_ends, [], [], 0.2)[0]:
            try:
                came = os.read(end, 1 << 16)
            except OSError:  # Linux: the other end is closed
                came = b""
            if not came:
                open_ends.discard(end)
            elif end == ours:
                raw += came
            else:
                out += came
        if interrupt and interrupt.encode() in raw:
            process.send_signal(signal.SIGINT)
            interrupt = ""
    os.close(ours)
    if process.stdout:
        process.stdout.close()
    return Shown(process.wait(30), raw.decode(), out.decode())
