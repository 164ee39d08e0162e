"""Terminal output: tables and progress on stderr or the terminal, JSON alone on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from kplan.config.plan import PolicyResult


def print_json(record: BaseModel | dict[str, Any]) -> None:
    """One JSON object on stdout and nothing else."""
    values = record.model_dump(mode="json") if isinstance(record, BaseModel) else record
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr that says what is being done; silent when piped or ``quiet``.

    Meanwhile stdout is lent to stderr: it belongs to the answer, whatever a user's policy prints.
    """
    with redirect_stdout(sys.stderr):
        if quiet or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console

        console = Console(stderr=True)
        with console.status("starting") as status:
            yield status.update


@contextmanager
def bar(quiet: bool, what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with the time left, on stderr; silent when piped or ``quiet``.

    Args:
        what: what is counted, "bytes" or "positions".
    """
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    count = DownloadColumn() if what == "bytes" else MofNCompleteColumn()
    with Progress(TextColumn(what), BarColumn(), count, Left(), console=Console(stderr=True)) as shown:
        task = shown.add_task(what)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on stdout: rich on a terminal, aligned plain text when piped.

    Args:
        left: the first ``left`` columns are text and aligned to the left, the others are numbers.
    """
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i < left else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    print(title)
    for row in [columns, *rows]:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


POLICY_COLUMNS = (
    "policy", "TPOT ms", "95%", "TTFT ms", "P99", "tok/s", "goodput/s", "vs off", "batch", "K", "tok/step",
)  # fmt: skip


def policy_row(result: PolicyResult, exportable_mark: bool = True) -> list[str]:
    """One policy as a row of POLICY_COLUMNS."""
    name = result.name + ("" if result.exportable or not exportable_mark else " *")
    if result.saturated:
        timing = ["saturated", "", "", ""]
    else:
        tpot, ttft = result.tpot_ms, result.ttft_ms
        timing = [
            f"{tpot.mean:.2f}" if tpot else "-",
            f"{tpot.ci95[0]:.2f}..{tpot.ci95[1]:.2f}" if tpot and tpot.ci95 else "-",
            f"{ttft.mean:.1f}" if ttft else "-",
            f"{ttft.p99:.1f}" if ttft else "-",
        ]
    return [
        name,
        *timing,
        f"{result.output_tok_s:,.0f}",
        f"{result.goodput_qps:.1f}",
        f"{result.speedup_vs_off:.2f}x" if result.speedup_vs_off is not None else "-",
        f"{result.mean_batch:.1f}",
        f"{result.mean_k:.2f}",
        f"{result.acceptance_length:.2f}",
    ]
