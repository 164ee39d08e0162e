"""Groups of options: where they stand, and what a command is given."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
import typer.main

from kplan.cli import options as o
from kplan.cli.app import app
from kplan.cli.groups import LOAD, Group, grouped, of

PAIR = {"qps": o.Qps, "tp": o.Tp}
FEW = of(PAIR, {"seed": o.Seed}, without="qps", tp=Annotated[str | None, typer.Option("--tp")])


def test_options_stand_where_their_group_does_and_reach_the_command_as_one() -> None:
    heard: list[object] = []

    @grouped
    def command(
        file: Annotated[str, typer.Argument()],
        load: Group = PAIR,
        loud: Annotated[bool, typer.Option("--loud")] = False,
        rest: Group = {"seed": o.Seed},  # noqa: B006
    ) -> int:
        heard.extend([file, load, loud, rest])
        return 3

    made = typer.Typer()
    made.command()(command)
    names = [one.name for one in typer.main.get_command(made).params]
    assert names[:5] == ["file", "qps", "tp", "loud", "seed"]
    assert made(["log", "--tp", "2", "--loud"], standalone_mode=False) == 3
    assert heard == ["log", {"qps": None, "tp": 2}, True, {"seed": None}]


def test_a_group_with_another_option_in_the_same_place() -> None:
    assert list(FEW) == ["tp", "seed"]
    assert FEW["tp"].__args__ == (str | None,)
    assert list(PAIR) == ["qps", "tp"]


def test_an_option_that_no_group_has_cannot_be_left_out() -> None:
    with pytest.raises(KeyError, match="qpz"):
        of(PAIR, without="qpz")


@pytest.mark.parametrize("name", ["simulate", "recommend", "search", "import-config"])
def test_every_command_of_a_load_takes_it_whole(name: str) -> None:
    command = typer.main.get_command(app).commands[name]
    assert set(LOAD) <= {one.name for one in command.params}
