"""Which licences are allowed, what kplan needs, and when the page is stale."""

from __future__ import annotations

import pytest

from tests.gates.licences import Row, faults, needed, page, refusal, rows, spdx

MADE_UP = {
    "kplan": ["Small_Lib>=1", 'far; sys_platform == "win32"', 'db[fast]; extra == "postgres"'],
    "small-lib": ["deep", 'old; python_version < "3.9"'],
    "deep": ["small-lib"],
    "db": ['wire; extra == "fast"', 'unasked; extra == "slow"'],
}
TOLD = [
    {"Name": "Small_Lib", "Version": "1.2", "License": "MIT License"},
    {"Name": "deep", "Version": "3", "License": "BSD License; Apache Software License"},
]


@pytest.mark.parametrize(
    ("package", "licence"),
    [
        ("any", "MIT"),
        ("any", "Apache-2.0 WITH LLVM-exception AND BSD-2-Clause"),
        ("any", "MPL-2.0"),
        ("any", "GPL-3.0-only OR MIT"),
        ("psycopg", "LGPL-3.0-only"),
    ],
)
def test_allowed(package: str, licence: str) -> None:
    assert refusal(package, licence) is None


@pytest.mark.parametrize(
    ("licence", "blamed"),
    [
        ("UNKNOWN", "UNKNOWN"),
        ("", ""),
        ("LGPL-3.0-only", "LGPL-3.0-only"),
        ("MIT AND GPL-3.0-only", "GPL-3.0-only"),
        ("GPL-3.0-only OR AGPL-3.0-only AND MIT", "GPL-3.0-only"),
        ("MIT WITH strange-exception", "MIT WITH strange-exception"),
        ("(MIT)", "(MIT)"),
    ],
)
def test_refused_by_name(licence: str, blamed: str) -> None:
    why = refusal("any", licence)
    assert why is not None
    assert why.startswith("any: ")
    assert why.endswith(f": {blamed}")


def test_several_classifiers_are_all_asked_for() -> None:
    assert spdx("BSD License; Apache Software License") == "BSD AND Apache-2.0"
    assert spdx("Nobody's; MIT") == "Nobody's AND MIT"


def test_needed_follows_markers_extras_and_rings() -> None:
    assert needed("", MADE_UP.get) == {"small-lib", "deep"}
    assert needed("postgres", MADE_UP.get) == {"small-lib", "deep", "db", "wire"}


def test_a_package_that_is_not_installed_ends_it_by_name() -> None:
    with pytest.raises(SystemExit, match="not told: db, wire; run make setup"):
        rows(TOLD, MADE_UP.get)


def test_the_page_is_current_only_as_written_and_of_the_lock() -> None:
    table = [Row("deep", "3", "BSD AND Apache-2.0", "kplan"), Row("small-lib", "1.2", "MIT", "`cluster`")]
    lock = "# comment\nsmall_lib==1.2\ndeep==3\n"
    assert faults(table, page(table), lock) == []
    assert faults(table, page(table[:1]), lock) == [
        "docs/licences.md is not current; run .venv/bin/python -m tests.gates.licences --write"
    ]
    assert faults(table, page(table), lock.replace("1.2", "1.3")) == [
        "small-lib: 1.2 is here, requirements.lock has 1.3; run make setup"
    ]
    strange = [Row("deep", "3", "Odd", "kplan")]
    assert faults(strange, page(strange), lock) == [
        "deep: 'Odd' is not a licence of tests/gates/licences.py: Odd"
    ]
