"""The README says of the long suites what they found, all that was kept, and only that."""

from __future__ import annotations

from tests.docs.pages import REPOSITORY
from tests.soak.told import CLAUSES, kept, words


def test_the_readme_tells_what_the_long_suites_found() -> None:
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    told = kept()
    assert told
    assert told.keys() <= CLAUSES.keys()
    assert "; ".join(words(told)) in readme


def test_words_count_what_was_told() -> None:
    told = {
        "kills": {"kills": 1234, "commands": 4, "runs": 9, "torn": 0, "trials_lost": 0},
        "coverage": {"branches": 2000, "taken": 1800, "lines": 1, "lines_run": 1},
    }
    assert words(told) == [
        "1,234 kills and interrupts of writers: 0 files torn, 0 trials lost",
        "90.0% of 2,000 branches are taken by the tests",
    ]
