"""Predict and judge tables, several at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kplan.errors import InfeasibleError, InputError
from kplan.search.executor import open_workers
from kplan.telling import Tell, silent
from kplan.validate.judge import judge, merits
from kplan.validate.predict import load_predictor
from kplan.validate.table import JudgedTable, PublishedTable


def validate(
    tables: Sequence[PublishedTable], progress: Tell = silent, workers: int = 1
) -> tuple[JudgedTable, ...]:
    """Predictions beside the figures of every table, in the order given.

    Args:
        progress: told how many tables are done, of how many.
        workers: processes; tables are independent, so their number changes no result.

    Raises:
        InputError: a table that its predictor cannot price; the table is named.
    """
    done: dict[str, JudgedTable] = {}

    def tell(judged: JudgedTable) -> Sequence[PublishedTable]:
        done[judged.table.name] = judged
        progress(f"predicting tables, last {judged.table.name}", len(done), len(tables))
        return ()

    progress("predicting tables", 0, len(tables))
    if workers == 1 or len(tables) == 1:
        for table in tables:
            tell(validate_table(table))
    else:
        # the longest first, so that none is begun when the others have ended
        longest = sorted(tables, key=lambda table: -len(table.rows))
        with open_workers(_Tables(), workers) as pool:
            pool.grow(longest, lambda _place, judged: tell(judged))
    return tuple(done[table.name] for table in tables)


class _Tables:
    """The job of workers: tables have nothing in common."""

    def run(self, table: PublishedTable) -> JudgedTable:
        """One table."""
        return validate_table(table)


def validate_table(table: PublishedTable) -> JudgedTable:
    """One table, predicted and judged. Raises InputError naming it when its predictor cannot price it."""
    try:
        return judge(table, load_predictor(table.predictor)(table))
    except InputError as error:
        what = f"table {table.name}: {error.what}"
        raise InputError(what, error.value, error.bound, error.fix) from error
    except InfeasibleError as error:
        raise InputError("table", table.name, f"cannot be predicted: {error}") from error
    except KeyError as error:
        missing = error.args[0]
        if missing in table.rows[0].at:
            raise
        bound = f"predictor {table.predictor} needs {missing} in every row"
        given = ", ".join(sorted(table.rows[0].at))
        raise InputError(f"table {table.name}: at", given, bound, f"add {missing}") from error


def record(judged: JudgedTable, *, rows: bool = False) -> dict[str, Any]:
    """One table as JSON; ``rows`` adds every row as ``row_list``."""
    table = judged.table
    entry: dict[str, Any] = {
        "name": table.name,
        "title": table.title,
        "source": table.source,
        "trust": table.trust.value,
        "metric": table.metric.value,
        **merits(judged, table.target),
        "note": table.note,
    }
    if rows:
        entry["row_list"] = [
            {
                "at": each.row.at,
                "measured": each.row.measured,
                "predicted": each.prediction.value,
                "low": each.prediction.low,
                "high": each.prediction.high,
                "error": each.error,
                "used_in_fit": each.used_in_fit,
                "counts": each.counts,
                "note": each.row.why_not or each.prediction.note,
            }
            for each in judged.rows
        ]
    return entry
