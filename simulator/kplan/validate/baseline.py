"""A stored record of how well each table was predicted, so that a change that predicts worse is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from kplan.errors import InputError
from kplan.files import read_text
from kplan.formats import BASELINE
from kplan.plainjson import check_version
from kplan.profiles.schema import Entry
from kplan.provenance import versions
from kplan.validate.groups import JudgedGroup
from kplan.validate.table import Judged, JudgedTable

MOST_BYTES = 2**24
"""Longest file that is read; the shipped one has 9 kB."""
WORSE = 0.005
"""A mean error that grows by more than this is a regression."""


class Entered(Entry):
    """What is kept of one table; None where a figure does not apply.

    Attributes:
        rows, rows_counted: of the table, and those that the figures are over.
        mape, worst, bias, sign_ok, best_k_regret, passed: see :class:`kplan.validate.table.Judged`.
    """

    rows: int
    rows_counted: int
    mape: float | None
    worst: float | None
    bias: float | None
    sign_ok: float | None
    best_k_regret: float | None
    passed: bool | None

    @classmethod
    def of(cls, judged: Judged) -> Entered:
        """What is kept of ``judged``."""
        return cls(
            rows=len(judged.rows),
            rows_counted=sum(row.counts for row in judged.rows),
            mape=judged.mape,
            worst=judged.worst,
            bias=judged.bias,
            sign_ok=judged.sign_ok,
            best_k_regret=judged.best_k_regret,
            passed=judged.passed,
        )


class Baseline(Entry):
    """Tables by name, and the versions that they were predicted with."""

    schema_version: int = BASELINE.version
    tables: dict[str, Entered]
    versions: dict[str, str]


def shipped_baseline() -> Baseline:
    """The baseline of this release."""
    return _parse((files("kplan_profiles") / "published" / "baseline.json").read_text("utf-8"), "shipped")


def load_baseline(path: Path) -> Baseline:
    """A baseline that :func:`baseline_json` made. Raises InputError when it cannot be read."""
    return _parse(read_text("baseline", path, MOST_BYTES), str(path))


def baseline_json(judged: Sequence[JudgedTable | JudgedGroup]) -> str:
    """The text of the baseline of ``judged``, and nothing of other tables."""
    baseline = Baseline(tables={_name(one): Entered.of(one) for one in judged}, versions=versions())
    return baseline.model_dump_json(indent=1) + "\n"


def _name(judged: JudgedTable | JudgedGroup) -> str:
    return judged.group.name if isinstance(judged, JudgedGroup) else judged.table.name


def regressions(judged: Sequence[JudgedTable | JudgedGroup], before: Mapping[str, Entered]) -> list[str]:
    """A sentence per table that is predicted worse than before; those that only one side has are left out."""
    found = []
    for one in judged:
        name = _name(one)
        old = before.get(name)
        if old is None:
            continue
        if old.passed and not one.passed:
            found.append(f"{name} reached its target before and does not now")
        if old.mape is not None and one.mape is None:
            found.append(f"{name} had a mean error of {old.mape:.1%} before and no row counts now")
        if old.mape is not None and one.mape is not None and one.mape > old.mape + WORSE:
            found.append(f"{name} has a mean error of {one.mape:.1%}, before {old.mape:.1%}")
    return found


def _parse(text: str, origin: str) -> Baseline:
    check_version(text, BASELINE, origin)
    try:
        return Baseline.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        fix = "write it anew with --write-baseline"
        raise InputError("baseline", origin, f"{where}: {first['msg']}", fix) from error
