"""The ``kplan`` command: wiring of the subcommands and the exit codes."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType

import typer

from kplan.cli import (
    bench,
    calibrate,
    dashboard,
    export,
    import_config,
    leaderboard,
    listing,
    policies,
    recommend,
    record,
    report,
    search,
    simulate,
    steplog,
    traces,
    validate,
    verify,
)
from kplan.cli.complete import refuse_unknown_shell
from kplan.cli.output import print_json, prose
from kplan.cli.progress import INTERRUPTED
from kplan.errors import InfeasibleError, InputError, KplanError, StoppedError
from kplan.interrupts import POLITE

_NO_ROOM = frozenset(
    (
        errno.ENOSPC,
        errno.EIO,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.ESTALE,
        errno.EMFILE,
        errno.ENFILE,
    )
)
"""What a disk, or the system, says that takes no more."""
_BAD_PATH = frozenset(
    (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
)
"""What is wrong with a path that nothing closer to its reading has told."""

TERMINATED = 143
"""Exit code of SIGTERM."""
PATIENCE_S = 3.0
"""Time that a command has to end in; then another signal is heard."""
CLOSED_PIPE = 141
"""Exit code when nobody reads what is printed: that of a program that SIGPIPE ends."""

app = typer.Typer(
    name="kplan",
    help="What K at this load? Simulates speculative decoding and finds the draft length to run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("recommend")(recommend.recommend)
app.command("simulate")(simulate.simulate)
app.command("search")(search.search)
app.command("leaderboard")(leaderboard.leaderboard)
app.command("export")(export.export)
app.command("import-config")(import_config.import_config)
app.command("report")(report.report)
app.command("profiles")(listing.profiles)
app.command("record")(record.record)
app.command("calibrate")(calibrate.calibrate)
app.command("validate")(validate.validate)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("dashboard")(dashboard.dashboard)
app.add_typer(policies.app, name="policies")
app.add_typer(steplog.app, name="steplog")
app.add_typer(traces.app, name="traces")


def main() -> None:
    """Entry point of the ``kplan`` script; a polite end (SIGTERM) closes workers and files as Ctrl-C does."""
    _open_closed()
    signal.signal(signal.SIGTERM, _Ending())
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not behind a shell's &
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
    code = run(sys.argv[1:])
    for number in POLITE:  # what is left takes milliseconds, and would end in a traceback
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


class _Ending:
    """Handler of Ctrl-C and SIGTERM: an exception, and none for those that follow within PATIENCE_S.

    A second Ctrl-C that falls into the answer to the first would lose what that was to say.
    """

    def __init__(self) -> None:
        self._last_s = -math.inf

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        last_s, self._last_s = self._last_s, time.monotonic()
        if self._last_s - last_s < PATIENCE_S:
            self._last_s = last_s
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(TERMINATED)


def run(argv: list[str]) -> int:
    """Run one command and return its exit code; bad input becomes one line on stderr."""
    try:
        _refuse_nothing(argv)
        refuse_unknown_shell(argv)
        code = app(args=argv, prog_name="kplan", standalone_mode=False)
        sys.stdout.flush()
    except InputError as err:
        return _fail(f"error: {err}", 2)
    except InfeasibleError as err:
        if "--json" in argv:
            print_json({"feasible": False, "words": str(err)})
        return _fail(f"no: {err}", 1)
    except StoppedError as err:
        return _fail(f"interrupted: {err}", err.code)
    except KplanError as err:
        return _fail(f"error: {err}", 2)
    except typer.Exit as err:
        return err.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except typer.TyperException as err:
        return _fail(_usage(err, argv), 2)
    except BrokenPipeError:
        return _unheard()
    except SystemExit as err:
        if not isinstance(err.__context__, BrokenPipeError):
            raise
        return _unheard()  # typer met it first, and would end with 1
    except OSError as err:
        if err.errno in _BAD_PATH and err.filename is not None:
            fault = InputError("path", str(err.filename)[:200], str(err.strerror), "name another")
            return _fail(f"error: {fault}", 2)
        if err.errno not in _NO_ROOM:
            raise
        return _fail(f"error: the output cannot be written ({err.strerror})", 2)
    if code == INTERRUPTED:  # typer turns the interrupt of a command into its exit code, and says nothing
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _open_closed() -> None:
    """Open what the caller closed (kplan ... >&-) to nowhere: else the next file would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _usage(err: typer.TyperException, argv: list[str]) -> str:
    """A fault of the command line itself as one line; the help, where that is what it carries."""
    text = err.format_message() if hasattr(err, "format_message") else str(err)
    if type(err).__name__ == "NoArgsIsHelpError":
        return text
    options = getattr(getattr(err, "param", None), "opts", [])
    given = [f"{one} {two}" for one, two in pairwise(argv) if one in options]
    what = f"got {given[0]!r}: " if given else ""
    return f"error: {what}{' '.join(text.split())} (see kplan --help)"


def _refuse_nothing(argv: list[str]) -> None:
    """An empty text, as of a shell variable that is not set: it would name the working folder, or nothing."""
    for before, one in pairwise(["", *argv]):
        option, _, given = one.partition("=")
        if not one or (option.startswith("--") and "=" in one and not given):
            name = option or (before if before.startswith("--") and "=" not in before else "argument")
            raise InputError(name, "an empty text", "a value is needed", "give one, or leave it out")


def _unheard() -> int:
    """The reader went away (kplan ... | head): no error of ours, and nothing more can be said."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return CLOSED_PIPE


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # stderr on a full disk, or one that nobody reads: the code still tells
        prose(message, err=True)
        sys.stderr.flush()
    return code
