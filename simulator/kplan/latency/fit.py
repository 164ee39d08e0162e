"""Fit a calibration from any of kernel tables, step logs and tables of end-to-end measurements.

Kernel tables give the GPU (:mod:`fit_gpu`); measured steps give what is left open (:mod:`fit_insitu`); every
other figure is the base's, and assumed when the base was borrowed from another GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from kplan.errors import InputError
from kplan.latency.fit_figures import figures_of
from kplan.latency.fit_gpu import fit_gpu
from kplan.latency.fit_insitu import fit_in_situ
from kplan.latency.fit_report import FitLine, FitReport, Residuals
from kplan.latency.observed import Observation, Served, check_seats
from kplan.latency.published import HostTimings
from kplan.profiles import Calibration, Hardware, load_calibration, load_hardware
from kplan.profiles.borrow import borrow
from kplan.provenance import Kind, Provenance
from kplan.rng import stream

MOST_ROWS = 2000
"""Rows of one file that a fit looks at; more take minutes and tell nothing new."""

UNFIT = 0.5
"""Rows with a larger mean error than this after the fit are of something else than what was told."""


@dataclass(frozen=True)
class Measured:
    """Rows of step logs and end-to-end tables, and what served them."""

    served: Served
    rows: Sequence[Observation]


def fit_calibration(
    hardware: Hardware,
    base: Calibration,
    *,
    tables: Path | None = None,
    timings: HostTimings | None = None,
    measured: Measured | None = None,
    only: Sequence[str] = (),
    partial: bool = False,
) -> FitReport:
    """A calibration of ``hardware`` from what is given.

    Args:
        base: a calibration of ``hardware``, its own or a borrowed one, for what nothing given here tells.
        tables: folder with kernel tables; ``timings`` of this GPU then give its host costs (others are
            left alone).
        measured: rows of a running server.
        only: paths of the figures that those rows may change; () for all that they identify.
        partial: see :func:`kplan.latency.fit_insitu.fit_in_situ`.

    Raises:
        InputError: nothing given, something unreadable, or something not identified; names it.
    """
    if tables is None and measured is None:
        raise InputError("kplan calibrate", "nothing", "needs --url, --tables, --steps or --tpot", "give one")
    calibration = base
    fits: list[FitLine] = []
    residuals: list[Residuals] = []
    notes: list[str] = []
    paths: frozenset[str] = frozenset()
    told = []
    if tables is not None:
        own = timings if timings is not None and timings.hardware == hardware.name else None
        gpu = fit_gpu(tables, hardware, calibration, own)
        calibration, paths = gpu.calibration, gpu.paths
        fits += gpu.fits
        residuals += gpu.residuals
        notes += gpu.notes
        told += ["kernel tables"] + (["published host timings"] if own else [])
    if measured is not None:
        rows, thinned = _thinned(measured.rows)
        notes += thinned
        check_seats(measured.served, rows)
        found = fit_in_situ(measured.served, calibration, rows, paths | _held(base, only), partial=partial)
        calibration = found.calibration
        paths |= found.paths
        by_source = _residuals(rows, found.predicted)
        residuals += by_source
        lines = [one.line() for one in by_source]
        _check_fit(lines)
        fits += lines
        notes += found.notes
        told.append(f"{len(rows)} measured rows of {measured.served.model.name}")
    if base.borrowed_from:
        notes.append(f"what is not fitted is borrowed from {base.borrowed_from}")
    calibration = replace(
        calibration,
        summary=_summary(told, calibration, paths, base),
        borrowed_from="",
        provenance=Provenance(
            Kind.FITTED,
            f"kplan calibrate: {', '.join(told)}",
            "each figure names its source; what was borrowed is assumed",
        ),
    )
    return FitReport(calibration, paths, tuple(fits), tuple(residuals), tuple(notes))


def _held(base: Calibration, only: Sequence[str]) -> frozenset[str]:
    """Every figure but those in ``only``; none when it is empty. Raises InputError for an unknown path."""
    known = figures_of(base)
    for path in only:
        if path not in known:
            near = get_close_matches(path, known, n=3, cutoff=0.5)
            raise InputError(
                "--only",
                path,
                "is no figure of the base calibration",
                f"did you mean {' or '.join(near)}?" if near else "",
            )
    return frozenset(known.keys() - set(only)) if only else frozenset()


def base_calibration(hardware: Hardware, base: str | None = None) -> Calibration:
    """What a fit begins at: the named calibration (or file), else the GPU's own; borrowed for another GPU.

    Raises InputError for an unknown name, or a file of a GPU that has no profile to borrow by.
    """
    if base is None:
        return load_calibration(hardware)
    lent = load_calibration(base)
    return lent if lent.hardware == hardware.name else borrow(lent, load_hardware(lent.hardware), hardware)


def _summary(told: list[str], calibration: Calibration, paths: frozenset[str], base: Calibration) -> str:
    left = sorted(figures_of(calibration).keys() - paths)
    lender = f"borrowed from {base.borrowed_from}" if base.borrowed_from else "not fitted"
    rest = f"; {len(left)} figures {lender}" if left else ""
    return f"fitted on {', '.join(told)}{rest}"


def _thinned(rows: Sequence[Observation]) -> tuple[list[Observation], list[str]]:
    """At most MOST_ROWS of every file, drawn at random (logs repeat themselves); a note for each cut."""
    files: dict[str, list[Observation]] = {}
    for row in rows:
        files.setdefault(row.source, []).append(row)
    kept, notes = [], []
    for source, held in files.items():
        if len(held) > MOST_ROWS:
            drawn = np.sort(stream(0, "rows of a log").permutation(len(held))[:MOST_ROWS])
            notes.append(f"{source.split(',')[0]} has {len(held):,} rows: {MOST_ROWS:,} of them were used")
            held = [held[i] for i in drawn]
        kept += held
    return kept, notes


def _check_fit(lines: Sequence[FitLine]) -> None:
    """Raise InputError for rows that no calibration comes near: another unit, model or GPU than told."""
    for line in lines:
        if line.mape > UNFIT:
            raise InputError(
                f"mean error of {line.name}",
                f"{line.mape:.0%}",
                f"no calibration brings the model within {UNFIT:.0%} of these rows",
                "check the unit of their times, --model, --hardware and --tp",
            )


def _residuals(rows: Sequence[Observation], predicted: np.ndarray) -> list[Residuals]:
    """By source file and proposer, in the order they were read."""
    groups: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        file = row.source.split(",")[0]
        groups.setdefault(f"{file}, {row.proposer or 'no drafts'}", []).append(number)
    return [
        Residuals(
            name,
            np.array([rows[i].seconds for i in numbers]),
            predicted[numbers],
            np.array([rows[i].tokens for i in numbers]),
            np.array([rows[i].context for i in numbers]),
        )
        for name, numbers in groups.items()
    ]
