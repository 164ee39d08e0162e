"""``docs/licences.md``: what kplan installs on a user's machine, under which licence.

    python -m tests.gates.licences [--write]

Without ``--write``: exit code 1 where the page is not current, or a licence is not one of those allowed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "licences.md"
SEED = "setuptools"
"""What a fresh environment comes with, so that pip freeze, and the lock with it, leaves it out."""
EXTRAS = ("", "cluster", "postgres")
"""What users install: kplan alone, and its extras that requirements.lock holds."""
PLATFORM = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
"""Whom the list is for, whatever runs it: a dependency may be of one platform or Python alone."""

PERMISSIVE = {
    *(
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "HPND",
        "ISC",
        "LLVM-exception",
    ),
    *("MIT", "PSF-2.0", "Unlicense", "ZPL-2.1", "Zlib"),
}
"""They ask for their notice alone; "BSD" is what a package says that does not say which."""
NOTED = {"MPL-2.0": "changed files of it must be offered as source; kplan changes none"}
NAMED = {
    ("psycopg", "LGPL-3.0-only"): "of the optional extra `postgres` alone; imported, not copied",
    ("psycopg-binary", "LGPL-3.0-only"): "of the optional extra `postgres` alone; imported, not copied",
}
"""Licences allowed for one package alone."""
_OLD_NAMES = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "Zope Public License": "ZPL-2.1",  # the one that is in use
}
"""Names of before SPDX, of trove classifiers."""


_OPENING = """\
# Licences of what kplan installs

Written by `python -m tests.gates.licences --write` from the versions of `requirements.lock` on Linux and
Python 3.11, as the metadata of each package says; `make audit` fails when it is not current or a licence is
not on the list there. kplan itself is Apache-2.0. The extra `text` (tokenizers) is not locked, so not listed;
what only develops or tests kplan is not installed with it.
"""


@dataclass(frozen=True)
class Row:
    """A package of the page: its name, its version, its licence in SPDX words, and who needs it."""

    name: str
    version: str
    licence: str
    wanted_by: str


def refusal(package: str, licence: str) -> str | None:
    """Why ``package`` may not come under ``licence``, in SPDX words without brackets; None where it may."""
    choices = [choice.split(" AND ") for choice in licence.split(" OR ")]
    unknown = [[one for one in choice if not _allowed(package, one)] for choice in choices]
    if any(not left for left in unknown):
        return None
    blamed = ", ".join(min(unknown, key=len))
    return f"{package}: {licence!r} is not a licence of tests/gates/licences.py: {blamed}"


def _allowed(package: str, licence: str) -> bool:
    """Whether every part of a licence with its exceptions is on a list."""
    return all(
        one in PERMISSIVE or one in NOTED or (package, one) in NAMED
        for one in licence.strip().split(" WITH ")
    )


def spdx(told: str) -> str:
    """A licence as pip-licenses tells it, in SPDX words: several classifiers are all asked for."""
    return " AND ".join(_OLD_NAMES.get(one.strip(), one.strip()) for one in told.split(";"))


def needed(extra: str, requires: Callable[[str], Iterable[str] | None]) -> frozenset[str]:
    """The canonical names of all that ``kplan[extra]`` needs, itself not among them.

    Args:
        requires: what a package needs, as its metadata says: ``importlib.metadata.requires``.
    """
    found: set[tuple[str, frozenset[str]]] = set()
    left = [("kplan", frozenset([extra]))]
    while left:
        name, extras = left.pop()
        for line in requires(name) or ():
            one = Requirement(line)
            wanted = [dict(PLATFORM, extra=each) for each in extras | {""}]
            if one.marker is not None and not any(one.marker.evaluate(each) for each in wanted):
                continue
            key = (canonicalize_name(one.name), frozenset(one.extras))
            if key not in found:
                found.add(key)
                left.append(key)
    return frozenset(name for name, _ in found)


def rows(told: list[dict[str, str]], requires: Callable[[str], Iterable[str] | None]) -> list[Row]:
    """The rows of the page, by name.

    Args:
        told: what ``pip-licenses --format=json`` prints.

    Raises:
        SystemExit: a package that kplan needs is not installed, so that nothing can be told of it.
    """
    licences = {canonicalize_name(one["Name"]): one for one in told}
    wanted: dict[str, str] = {}
    for extra in EXTRAS:
        for name in needed(extra, requires):
            wanted.setdefault(name, f"`{extra}`" if extra else "kplan")
    if missing := sorted(set(wanted) - set(licences)):
        raise SystemExit(f"licences: not installed, so not told: {', '.join(missing)}; run make setup")
    return [
        Row(name, "any" if name == SEED else one["Version"], spdx(one["License"]), wanted[name])
        for name in sorted(wanted)
        for one in [licences[name]]
    ]


def page(table: list[Row]) -> str:
    """The page, as it is to be stored."""
    by_licence: dict[str, int] = {}
    for row in table:
        by_licence[row.licence] = by_licence.get(row.licence, 0) + 1
    notes = [f"- {name}: {why}." for name, why in NOTED.items()]
    notes += [f"- {licence} ({package}): {why}." for (package, licence), why in NAMED.items()]
    return "\n".join(
        [
            _OPENING,
            "| licence | packages |",
            "|---|---|",
            *(
                f"| {name} | {count} |"
                for name, count in sorted(by_licence.items(), key=lambda at: (-at[1], at[0]))
            ),
            "",
            "Permissive, but for:",
            "",
            *notes,
            "",
            "| package | version | licence | needed by |",
            "|---|---|---|---|",
            *(f"| {row.name} | {row.version} | {row.licence} | {row.wanted_by} |" for row in table),
            "",
        ]
    )


def faults(table: list[Row], stored: str, lock: str) -> list[str]:
    """What is wrong, a line each: a licence not allowed, a version not of the lock, a page not current.

    Args:
        stored: the page as it stands.
        lock: the text of requirements.lock.
    """
    pinned = {
        canonicalize_name(name): version for name, version in re.findall(r"^([^#=\s]+)==(\S+)", lock, re.M)
    }
    found = [why for row in table if (why := refusal(row.name, row.licence))]
    found += [
        f"{row.name}: {row.version} is here, requirements.lock has {pinned.get(row.name)}; run make setup"
        for row in table
        if row.name != SEED and pinned.get(row.name) != row.version
    ]
    if stored != page(table):
        found.append("docs/licences.md is not current; run .venv/bin/python -m tests.gates.licences --write")
    return found


def main(arguments: list[str]) -> int:
    """Check the page, or write it."""
    command = [sys.executable, "-m", "piplicenses", "--format=json", "--with-system"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    table = rows(told, metadata.requires)
    if arguments == ["--write"]:
        PAGE.write_text(page(table), encoding="utf-8")
    stored = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    found = faults(table, stored, (REPOSITORY / "requirements.lock").read_text(encoding="utf-8"))
    for line in found:
        print(f"licences: {line}", file=sys.stderr)
    if not found:
        print(f"licences: {len(table)} packages, all of allowed licences; docs/licences.md is current")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
