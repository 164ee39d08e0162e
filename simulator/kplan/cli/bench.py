"""``kplan bench``: how fast kplan is on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from kplan.cli.options import Json

BESIDE = ("targets", "rounds", "machine")
"""Keys of the record that are no figures."""


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="startup, recommend, million_requests, linear, fast_path, steps, python_policy or search; "
            "again for another [all]",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Measure the speed of the simulator on this machine, a minute or four for all of it.

    Each figure is the best of several rounds, with its answer checked: what was fast because it did nothing
    is told with exit code 1. A missed target is no error. Targets are for two cores.
    """
    from kplan.bench import measure
    from kplan.cli.output import print_json
    from kplan.cli.progress import progress

    with progress() as tell:
        record = measure(only or (), tell)
    if json:
        print_json(record)
    else:
        _print(record)
    return 0


def _print(record: Mapping[str, Any]) -> None:
    from kplan.cli.tables import print_table

    targets = record["targets"]
    rows = []
    for name, value in _flat({key: value for key, value in record.items() if key not in BESIDE}):
        asked = targets.get(name)
        bound = f"at {asked['is']} {_number(asked['bound'])}" if asked else "-"
        rows.append([name, _number(value), bound, "-" if not asked else "yes" if asked["met"] else "NO"])
    machine = ", ".join(f"{what} {value}" for what, value in record["machine"].items())
    print_table(f"best of several rounds; {machine}", ("figure", "value", "target", "met"), rows)
    print_table(
        "seconds of the best round, and how much longer the slowest took",
        ("work", "rounds", "CPU s", "slowest", "wall s", "slowest"),
        [
            [
                name,
                str(len(taken["cpu_s"])),
                f"{min(taken['cpu_s']):.3f}",
                f"+{taken['cpu_spread']:.0%}",
                f"{min(taken['wall_s']):.3f}",
                f"+{taken['wall_spread']:.0%}",
            ]
            for name, taken in record["rounds"].items()
        ],
    )


def _flat(figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number with its key, nested ones after a dot."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", number) for inner, number in _flat(value))
        else:
            yield name, value


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
