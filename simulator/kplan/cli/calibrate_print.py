"""What ``kplan calibrate`` says of a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kplan.cli.output import prose
from kplan.cli.tables import Column, print_table

if TYPE_CHECKING:
    from kplan.latency.fit_report import FitReport
    from kplan.live.calibrate import RowError


def print_fit(fit: FitReport, tested: list[RowError]) -> None:
    """The fit and its errors, on stderr: stdout has no answer but with --json."""
    from kplan.live.calibrate import mean_error

    print_table(
        "",
        ("fit", "rows", "mean error"),
        [(line.name, f"{line.rows}", f"{line.mape:.1%} ") for line in fit.fits],
        plain="{:<60}{:>7}{:>12}",
        err=True,
    )
    if tested:
        print_table(
            "",
            ("step of", "K", Column("context", spare=1), "measured ms", "predicted", "error"),
            [_tested(one) for one in tested],
            plain="{:<44}{:>3}{:>9}{:>13}{:>11}{:>8}",
            err=True,
        )
    if (held := mean_error(one for one in tested if one.held)) is not None:
        prose(f"mean error of the settings held out: {held:.1%}", err=True)
    for note in fit.notes:
        prose(f"note: {note}", err=True)


def _tested(one: RowError) -> list[str]:
    """One row of what was predicted and measured."""
    row = one.row
    prompts = f", {row.mean('prefill_tokens'):.0f} prompt tokens" if row.mean("prefill_requests") else ""
    return [
        f"{row.mean('decode_requests'):.0f} requests{prompts}{' (held out)' if one.held else ''}",
        f"{row.k}",
        f"{row.context:.0f}",
        f"{row.seconds * 1e3:.2f}",
        f"{one.predicted_s * 1e3:.2f}",
        f"{one.relative:.1%}",
    ]
