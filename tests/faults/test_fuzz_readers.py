"""Every reader, given damaged files: each is read, or refused in one line. ``make soak`` tries more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kplan.cli.app import app, run
from tests.faults.mutate import mutate
from tests.faults.readers import READERS, Reader

NAMES = {reader.name: reader for reader in READERS}
SLOW = {"plan": 5, "exported plan": 5, "model": 8, "calibration": 8, "config.json": 8}
"""Examples of readers whose files take longest; 12 of the others."""

WRITTEN = frozenset(
    {
        "recommend out",
        "simulate records",
        "search out",
        "leaderboard out",
        "export out",
        "import-config out",
        "report out",
        "record out",
        "calibrate out",
        "calibrate save_steps",
        "calibrate report",
        "validate write_baseline",
        "validate report",
        "verify out",
        "policies/new folder",
        "traces/import out",
        "traces/describe report",
        "traces/fit out",
        "traces/record out",
        "traces/replay out",
        "traces/tree out",
        "traces/workload out",
        "traces/adapt out",
    }
)
"""Paths that are written to; what a recording finds there is read by entries of its own."""
RUN = frozenset(
    {
        "export check", "import-config check", "verify engine_python", "steplog/install engine_python",
        "steplog/uninstall engine_python", "steplog/status engine_python",
    }
)  # fmt: skip
"""Interpreters, which are run."""
OTHERS = frozenset({"traces/replay tokenizer"})
"""Read by a package of its own, in the extra ``text``."""


def test_names_are_unique_and_seeds_are_read(tmp_path: Path) -> None:
    assert len(NAMES) == len(READERS)
    for reader in READERS:
        for number, seed in enumerate(reader.seeds):
            folder = tmp_path / f"{number}-{reader.name.replace('/', '-')}"
            folder.mkdir()
            read = reader.try_bytes(seed, folder)
            ours_alone = (
                reader.name == "step log under load" and number == 2
            )  # a server's log is not followed
            assert read != ours_alone, f"{reader.name} refuses its seed {number}"


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_read_or_told_in_one_line(name: str) -> None:
    reader = NAMES[name]

    @settings(
        max_examples=SLOW.get(name, 12),
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(seed=st.integers(0, len(reader.seeds) - 1), chance=st.integers(0, 2**32))
    def damaged(seed: int, chance: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            reader.try_bytes(mutate(reader.seeds[seed], Random(chance)), Path(folder))

    damaged()


BY_COMMAND = [
    reader
    for reader in READERS
    if "OUT" in reader.argv or reader.argv.startswith(("traces", "import-config"))
]
"""Those whose command reads the file before it does anything long."""


@pytest.mark.parametrize("reader", BY_COMMAND, ids=lambda reader: reader.name)
@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff" * 50, b'{"a":' * 5000, "é: [\u2028".encode("utf-16")], ids=repr
)
def test_a_command_says_it_in_one_line_and_ends_with_2(
    reader: Reader, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / reader.file, tmp_path / "out"
    path.write_bytes(data)
    names = {"FILE": str(path), "OUT": str(out / "made.jsonl" if "record" in reader.argv else out / "made")}
    out.mkdir()
    code = run([names.get(word, word) for word in reader.argv.split()])
    told = capsys.readouterr().err
    assert (code, len(told.splitlines())) == (2, 1), told
    assert told.startswith("error: ")
    assert not any(out.iterdir()), "something was left behind"


def path_parameters() -> set[str]:
    """``command parameter`` of every option and argument of the command line that is a path."""
    found: set[str] = set()

    def walk(command: Any, place: list[str]) -> None:
        for name, one in getattr(command, "commands", {}).items():
            walk(one, [*place, name])
        for parameter in command.params:
            kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            if kind is Path or "Path" in str(kind):
                found.add(f"{'/'.join(place)} {parameter.name}")

    walk(typer.main.get_command(app), [])
    return found


def test_every_path_of_the_command_line_has_a_reader() -> None:
    """Who adds an option that reads a file adds a reader: an entry of READERS."""
    read = {option for reader in READERS for option in reader.options}
    assert len(path_parameters()) > 40
    assert path_parameters() - WRITTEN - RUN - OTHERS == read
    assert not read & (WRITTEN | RUN | OTHERS)
