"""Which branches the tests take, of coverage's JSON: ``make coverage``.

    python -m tests.gates.branches build/coverage/coverage.json

What counts is branches taken of branches there are. coverage's own percentage mixes them with lines, which
are easier to reach; it is shown beside. Exit code 1: a tree below :data:`WANTED`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.soak.figures import tell

WANTED = 0.90
TREES = ("simulator", "policies")
WORST = 15
"""Files told by name, those with most branches never taken."""
_PLACE = re.compile(r"(?:^|/)(simulator|policies)/(kplan|kplan_policies)/(.+)$")


@dataclass(frozen=True)
class Counts:
    """Branches and lines, and how many of each the tests took."""

    branches: int = 0
    taken: int = 0
    lines: int = 0
    run: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.branches + other.branches,
            self.taken + other.taken,
            self.lines + other.lines,
            self.run + other.run,
        )

    @property
    def share(self) -> float:
        """Branches taken of those there are; 1 where there are none."""
        return self.taken / self.branches if self.branches else 1.0

    @property
    def mixed(self) -> float:
        """coverage's percentage, as a share."""
        there = self.branches + self.lines
        return (self.taken + self.run) / there if there else 1.0


def by_file(told: Mapping[str, Any]) -> dict[str, Counts]:
    """Counts of every file of the trees, by its path from the repository."""
    found: dict[str, Counts] = {}
    for path, one in told["files"].items():
        place = _PLACE.search(Path(path).as_posix())
        if place:
            its = one["summary"]
            counts = Counts(
                its["num_branches"], its["covered_branches"], its["num_statements"], its["covered_lines"]
            )
            found["/".join(place.groups())] = counts
    return found


def packages(files: Mapping[str, Counts]) -> dict[str, Counts]:
    """Counts of each package and, last, of each tree."""
    sums: dict[str, Counts] = defaultdict(Counts)
    for path, counts in sorted(files.items()):
        parts = path.split("/")
        sums["/".join(parts[: min(3, len(parts) - 1)])] += counts
    for tree in TREES:
        sums[f"{tree}/"] = sum(
            (each for path, each in files.items() if path.startswith(f"{tree}/")), Counts()
        )
    return dict(sums)


def table(sums: Mapping[str, Counts], files: Mapping[str, Counts]) -> list[str]:
    """What to print."""
    lines = [f"{'package':36} {'branches':>8} {'taken':>7} {'share':>7} {'with lines':>10}"]
    lines += [
        f"{name:36} {one.branches:8} {one.taken:7} {one.share:7.1%} {one.mixed:10.1%}"
        for name, one in sums.items()
    ]
    left = sorted(files, key=lambda path: files[path].taken - files[path].branches)[:WORST]
    lines += ["", "most branches never taken:"]
    lines += [
        f"{path:52} {files[path].branches - files[path].taken:4} of {files[path].branches}" for path in left
    ]
    return lines


def below(sums: Mapping[str, Counts]) -> list[str]:
    """The trees that fall short, a line each; one without a branch was not measured, and falls short too."""
    return [
        f"coverage: {tree}/ takes {sums[f'{tree}/'].share:.1%} of its branches, {WANTED:.0%} is asked for"
        if sums[f"{tree}/"].branches
        else f"coverage: nothing of {tree}/ was measured"
        for tree in TREES
        if not sums[f"{tree}/"].branches or sums[f"{tree}/"].share < WANTED
    ]


def main(arguments: Iterable[str]) -> int:
    """Read, tell, judge."""
    (path,) = arguments
    files = by_file(json.loads(Path(path).read_text(encoding="utf-8")))
    sums = packages(files)
    print("\n".join(table(sums, files)))
    whole = sum((sums[f"{tree}/"] for tree in TREES), Counts())
    tell("coverage", branches=whole.branches, taken=whole.taken, lines=whole.lines, lines_run=whole.run)
    print("\n".join(short := below(sums)), file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
