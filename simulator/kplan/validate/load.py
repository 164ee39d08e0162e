"""Published tables: those that ship with kplan_profiles, or a user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml
from pydantic import ValidationError

from kplan.errors import InputError
from kplan.files import read_text
from kplan.formats import TABLE
from kplan.plainyaml import MOST_BYTES, load_yaml
from kplan.validate.groups import shipped_groups
from kplan.validate.table import PublishedTable

SUFFIXES = (".yaml", ".yml")


def shipped_tables() -> tuple[PublishedTable, ...]:
    """Every table that ships, by name."""
    tables = [_parse(file) for file in _folder().iterdir() if file.name.endswith(".yaml")]
    return tuple(sorted(tables, key=lambda table: table.name))


def load_tables(names: Sequence[str] = ()) -> tuple[PublishedTable, ...]:
    """Tables by name, or from YAML files and folders of them; all that ship when none is named.

    Args:
        names: names of shipped tables or groups of them, paths ending in .yaml or .yml, or folders.

    Raises:
        InputError: no such table or file, a folder without tables, two tables of one name, or a file that
            does not hold together (the key is named).
    """
    if not names:
        return shipped_tables()
    found = [table for name in names for table in _load(name)]
    seen: set[str] = set()
    for table in found:
        if table.name in seen:
            raise InputError("table", table.name, "is given twice", "name every table once")
        seen.add(table.name)
    return tuple(found)


def _load(name: str) -> list[PublishedTable]:
    path = Path(name)
    if name.endswith(SUFFIXES):
        return [_parse(path)]
    shipped = {file.name.removesuffix(".yaml"): file for file in _folder().iterdir()}
    if name in shipped:
        return [_parse(shipped[name])]
    groups = {group.name: group.members for group in shipped_groups()}
    if name in groups:
        return [_parse(shipped[member]) for member in groups[name]]
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not inside:
            raise InputError("folder of tables", name, "holds no .yaml file", "check the path")
        return [_parse(file) for file in inside]
    known = sorted([*groups, *(each for each in shipped if not each.endswith(".json"))])
    close = get_close_matches(name, known, n=3, cutoff=0.4)
    fix = f"did you mean {' or '.join(close)}?" if close else f"shipped: {', '.join(known)}"
    raise InputError("table", name, "is no shipped table, .yaml file or folder", fix)


def _folder() -> Traversable:
    return files("kplan_profiles") / "published"


def _parse(file: Traversable | Path) -> PublishedTable:
    try:
        record = load_yaml(read_text("table", file, MOST_BYTES))
        return PublishedTable.model_validate(TABLE.unmarked_of(record, file))
    except yaml.YAMLError as error:
        raise InputError("table", str(file), f"is not YAML: {error}"[:200], "mend that line") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError("table", str(file), f"{where}: {first['msg']}", "mend that key") from error
