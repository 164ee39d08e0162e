"""What long work is doing: a bar, counts, the time it took and what is left, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kplan.cli.terminal import console, is_terminal
from kplan.errors import StoppedError
from kplan.telling import Tell, silent

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

INTERRUPTED = 130
"""Exit code of Ctrl-C."""
DELAY_S = 2.0
"""Work that is over by then shows nothing."""
TICK_S = 0.1
COMPILING = "compiling, once (tens of seconds)"
BAR = 20
"""Letters of the bar; it is the first to go where it is narrow."""
ROOM_OF_BAR = 80
MANY = 1_000_000
"""A larger count (bytes, positions) is told as a share."""


@contextmanager
def progress() -> Iterator[Tell]:
    """Show what long work says, on stderr while that is a terminal, and leave nothing behind.

    Meanwhile stdout is lent to stderr: it belongs to the answer, whatever a user's policy prints.

    A thread of its own draws: the work only leaves word, takes no lock, and may be interrupted anywhere.
    """
    with redirect_stdout(sys.stderr), stopping():
        if not is_terminal(sys.stderr):
            yield silent
            return
        stage, over = Stage(time.monotonic()), threading.Event()
        painter = threading.Thread(target=_paint, args=(stage, over), name="kplan-progress")
        painter.start()
        try:
            yield stage.tell
        finally:
            over.set()
            painter.join()


@contextmanager
def stopping() -> Iterator[None]:
    """Turn the exception of Ctrl-C or SIGTERM that carries notes on what is kept into one line of them.

    Raises:
        StoppedError: in the place of an interrupt with notes; typer would lose these.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ended:
        notes = getattr(ended, "__notes__", [])
        if not notes:
            raise
        code = ended.code if isinstance(ended, SystemExit) else INTERRUPTED
        raise StoppedError("; ".join(notes), code if isinstance(code, int) else INTERRUPTED) from None


@dataclass(frozen=True)
class _Word:
    """What was said last.

    Attributes:
        said_s: when.
        from_s, from_done: when this stage was first told of, and how much was done then.
    """

    doing: str
    done: int
    of: int
    said_s: float
    from_s: float
    from_done: int


class Stage:
    """What the work said last; one thread says it, another reads.

    Args:
        start_s: when the work began, on time.monotonic.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._word = _Word("starting", 0, 0, start_s, start_s, 0)

    def tell(self, doing: str, done: int = 0, of: int = 0, /) -> None:
        """As :class:`kplan.telling.Tell`. A stage lasts while ``of`` stays and ``done`` does not fall."""
        now_s, before = time.monotonic(), self._word
        if of == before.of and of and done >= before.done:
            self._word = _Word(doing, done, of, now_s, before.from_s, before.from_done)
        else:
            self._word = _Word(doing, done, of, now_s, now_s, done)

    def shown(self, now_s: float) -> dict[str, Any]:
        """The fields of the line; ``total`` is None where nobody knows it."""
        word = self._word
        counted = word.of > 0
        share = f"{word.done / word.of:.0%}" if word.of > MANY else f"{word.done:,}/{word.of:,}"
        left_s = None
        if counted and word.done > word.from_done:
            each_s = (word.said_s - word.from_s) / (word.done - word.from_done)
            left_s = max(each_s * (word.of - word.done) - (now_s - word.said_s), 0.0)
        return {
            "description": word.doing,
            "completed": word.done,
            "total": word.of if counted else None,
            "count": share if counted else "",
            "took": clock(now_s - self._start_s),
            "left": "" if left_s is None else f"about {clock(left_s)} left",
        }


def clock(seconds: float) -> str:
    """``0:07``, ``12:30``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _paint(stage: Stage, over: threading.Event) -> None:
    """Draw what ``stage`` says until it is over, from DELAY_S on."""
    if over.wait(DELAY_S):
        return
    with ExitStack() as stack:
        shown, task = stack.enter_context(_bar())
        compiles = None
        while not over.wait(TICK_S):
            compiles = compiles or _compiles(stack)
            fields = stage.shown(time.monotonic())
            if compiles is not None and sum(1 if one.is_start else -1 for _, one in compiles.buffer) > 0:
                fields |= {"description": COMPILING, "count": "", "total": None, "left": ""}
            shown.update(task, **fields)
            shown.refresh()


@contextmanager
def _bar() -> Iterator[tuple[Progress, TaskID]]:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column

    screen = console(sys.stderr)
    words = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
    )
    figures = [
        TextColumn(f"{{task.fields[{name}]}}", markup=False, table_column=Column(no_wrap=True))
        for name in ("count", "took", "left")
    ]
    bar: list[ProgressColumn] = [BarColumn(BAR)] if screen.width >= ROOM_OF_BAR else []
    with Progress(
        words, *bar, *figures, console=screen, auto_refresh=False, transient=True, expand=True
    ) as shown:
        yield shown, shown.add_task("", total=None, count="", took="", left="")


def _compiles(stack: ExitStack) -> Any:
    """A record of what numba compiles from now on; None while the work has not imported numba."""
    record = getattr(sys.modules.get("numba.core.event"), "install_recorder", None)
    return None if record is None else stack.enter_context(record("numba:compile"))
