"""``make mutants``: do the tests notice when latency, acceptance or the scheduler computes something else?

    python -m tests.gates.mutants [--count 200] [--seed 1] [--only PART] [--tests FOLDER ...]

A seeded draw of mutants (:mod:`tests.gates.sites`). First the tests run once on the untouched code, to learn
which lines each runs and what it costs; a mutant then meets the tests that run its statement, cheapest first,
up to :data:`BUDGET_S` of processor time. Survivors are left as diffs in ``runs/mutants``. A statement that no
test runs is a survivor. Exit code 1: a share below :data:`WANTED` was killed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.gates.sites import Mutant, Site, changes, draw, mutated, sites
from tests.gates.trees import KILLED, REPOSITORY, SURVIVED, TIMEOUT, Child, copy, prepare, wait
from tests.soak.figures import RUNS, tell

PACKAGES = ("simulator/kplan/latency", "simulator/kplan/acceptance", "simulator/kplan/engine")
TESTS = ("tests/engine", "tests/latency", "tests/acceptance", "tests/simulate")
WANTED = 0.85
BUDGET_S = 40.0
"""Processor time of the tests that one mutant meets, as they cost on the untouched code."""
SLOWER = 4.0
GRACE_S = 3.0
"""A test is stopped after SLOWER times its cost and this."""
WAIT_S = 240.0
"""Wall time after which a mutant counts as hanging, whatever it does."""
AT_ONCE = 2


@dataclass
class Known:
    """What the untouched code told.

    Attributes:
        cost_s: processor time of each test that passed, by node id.
        ran: the tests that ran a line, by module and line; line 0: any function of the module.
    """

    cost_s: dict[str, float]
    ran: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    def meeting(self, site: Site) -> list[str]:
        """The tests that a mutant of ``site`` meets, cheapest first."""
        met: set[str] = set()
        for line in range(site.first, site.last + 1):
            met |= self.ran.get((site.module, line), set()) - {""}
        if not met and self.at_import(site):
            met = self.ran.get((site.module, 0), set())
        return within(BUDGET_S, {test: self.cost_s[test] for test in met if test in self.cost_s})

    def at_import(self, site: Site) -> bool:
        """Whether its statement runs when the module is imported."""
        return any("" in self.ran.get((site.module, line), ()) for line in range(site.first, site.last + 1))


def within(budget_s: float, cost_s: Mapping[str, float]) -> list[str]:
    """The cheapest tests whose costs add up to no more than a budget; one at least."""
    chosen: list[str] = []
    left_s = budget_s
    for test in sorted(cost_s, key=lambda one: (cost_s[one], one)):
        left_s -= cost_s[test]
        if left_s < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def learn(trees: Sequence[Path], folders: Sequence[str]) -> Known:
    """Run the tests of ``folders`` on the untouched code, of every tree its share of the files.

    Raises:
        SystemExit: none passed in a tree.
    """
    files = sorted(
        path.relative_to(trees[0]) for each in folders for path in (trees[0] / each).glob("test_*.py")
    )
    children = []
    for number, tree in enumerate(trees):
        rules = tree.with_suffix(".coveragerc")
        where = f"source_pkgs = kplan\ndata_file = {tree.with_suffix('.coverage')}\n"
        rules.write_text(f"[run]\nbranch = true\n{where}", encoding="utf-8")
        options = ["--cov", f"--cov-config={rules}", "--cov-context=test", "--cov-report="]
        mine = [str(path) for path in files[number :: len(trees)]]
        children.append(Child.fork(tree, mine, options, None, wait_s=3600))
    known = Known({})
    for tree, child in zip(trees, children, strict=True):
        wait(child)
        told = tree.with_suffix(".costs.json")
        if not told.exists() or not (costs := json.loads(told.read_text(encoding="utf-8"))["passed_s"]):
            raise SystemExit(f"mutants: no test passes on the untouched code; see {tree.with_suffix('.log')}")
        known.cost_s |= costs
        for at, tests in lines_run(tree).items():
            known.ran[at] |= tests
    return known


def lines_run(tree: Path) -> dict[tuple[str, int], set[str]]:
    """Which tests ran which lines, of what coverage has written."""
    from coverage import CoverageData  # of tests/tools.lock, which not everybody has

    ran: dict[tuple[str, int], set[str]] = defaultdict(set)
    kept = CoverageData(str(tree.with_suffix(".coverage")))
    kept.read()
    for file in kept.measured_files():
        module = Path(file).relative_to(tree).as_posix()
        for line, contexts in kept.contexts_by_lineno(file).items():
            tests = {context.partition("|")[0] for context in contexts}
            ran[module, line] |= tests
            ran[module, 0] |= tests - {""}
    return ran


def keep(file: Path, known: Known) -> None:
    """Write what was learnt, for ``--known``."""
    ran = [[module, line, sorted(tests)] for (module, line), tests in known.ran.items()]
    file.write_text(json.dumps({"cost_s": known.cost_s, "ran": ran}), encoding="utf-8")


def kept(file: Path) -> Known:
    """What was learnt."""
    told = json.loads(file.read_text(encoding="utf-8"))
    return Known(told["cost_s"], {(module, line): set(tests) for module, line, tests in told["ran"]})


def draw_all(count: int, seed: int, only: str) -> list[Mutant]:
    """The mutants, of the modules whose path holds ``only``."""
    files = [path for package in PACKAGES for path in sorted((REPOSITORY / package).glob("*.py"))]
    names = {path: path.relative_to(REPOSITORY).as_posix() for path in files}
    codes = {name: path.read_text(encoding="utf-8") for path, name in names.items() if only in name}
    found = {module: sites(module, code, changes(code)) for module, code in codes.items()}

    def good(mutant: Mutant) -> bool:
        try:
            mutated(codes[mutant.site.module], mutant)
        except (ValueError, SyntaxError):
            return False
        return True

    return draw({module: each for module, each in found.items() if each}, count, seed, good)


def judge(
    folder: Path, trees: Sequence[Path], mutants: Iterable[Mutant], known: Known
) -> list[tuple[Mutant, str, int]]:
    """Let each mutant meet its tests, one a tree at a time: (mutant, how it ended, tests that it met)."""
    ended: list[tuple[Mutant, str, int]] = []

    def end(mutant: Mutant, verdict: str, met: int) -> None:
        ended.append((mutant, verdict, met))
        if verdict == SURVIVED:
            leave(folder, mutant, met)
        print(
            f"{len(ended)} {verdict} {mutant.site.module}:{mutant.site.at[0]} {mutant.operator}", flush=True
        )

    free = list(trees)
    busy: dict[Path, tuple[Child, Mutant, int]] = {}
    left = list(reversed(list(mutants)))
    while left or busy:
        while left and free:
            mutant = left.pop()
            tests = known.meeting(mutant.site)
            if not tests:
                end(mutant, SURVIVED, 0)
                continue
            tree = free.pop()
            code = (REPOSITORY / mutant.site.module).read_text(encoding="utf-8")
            (tree / mutant.site.module).write_text(mutated(code, mutant), encoding="utf-8")
            limits = {test: SLOWER * known.cost_s[test] + GRACE_S for test in tests}
            busy[tree] = (Child.fork(tree, tests, ["-x"], limits, WAIT_S), mutant, len(tests))
        for tree, (child, mutant, met) in list(busy.items()):
            verdict = child.verdict()
            if verdict is not None:
                del busy[tree]
                free.append(tree)
                (tree / mutant.site.module).write_bytes((REPOSITORY / mutant.site.module).read_bytes())
                end(mutant, verdict, met)
        time.sleep(0.05)
    return ended


def table(ended: Iterable[tuple[Mutant, str, int]]) -> list[str]:
    """Counts by module, and of all."""
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, verdict, _ in ended:
        for row in (mutant.site.module.removeprefix("simulator/kplan/"), "all"):
            by_module[row][verdict] += 1
    lines = [f"{'module':36} {'mutants':>7} {KILLED:>7} {TIMEOUT:>8} {SURVIVED:>9}"]
    for row in sorted(by_module, key=lambda one: (one == "all", one)):
        counts = by_module[row]
        lines.append(
            f"{row:36} {counts.total():7} {counts[KILLED]:7} {counts[TIMEOUT]:8} {counts[SURVIVED]:9}"
        )
    return lines


def leave(folder: Path, mutant: Mutant, met: int) -> None:
    """Write the diff of a survivor."""
    module, line = mutant.site.module, mutant.site.at[0]
    code = (REPOSITORY / module).read_text(encoding="utf-8")
    diff = difflib.unified_diff(
        code.splitlines(keepends=True), mutated(code, mutant).splitlines(keepends=True), module, module
    )
    kind = mutant.operator.partition("/")[2]
    name = f"{Path(module).parent.name}-{Path(module).stem}-{line}-{mutant.site.at[1]}-{kind}.diff"
    (folder / name).write_text(f"{mutant.operator}, {met} tests met it\n{''.join(diff)}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Draw, learn, judge, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.gates.mutants")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="of the modules whose path holds this alone")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders whose tests are to notice")
    parser.add_argument("--known", action="store_true", help="go by what an earlier run learnt of the tests")
    chosen = parser.parse_args(arguments)
    folder = RUNS / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    prepare()
    mutants = draw_all(chosen.count, chosen.seed, chosen.only)
    trees = [copy(folder / f"tree{number}") for number in range(AT_ONCE)]
    if chosen.known:
        known = kept(folder / "known.json")
    else:
        known = learn(trees, chosen.tests)
        keep(folder / "known.json", known)
    print(f"{len(known.cost_s)} tests pass on the untouched code; {len(mutants)} mutants", flush=True)
    for old in folder.glob("*.diff"):
        old.unlink()
    ended = judge(folder, trees, mutants, known)
    print("\n".join(table(ended)))
    counts = Counter(verdict for _, verdict, _ in ended)
    killed = counts[KILLED] + counts[TIMEOUT]
    tell(
        "mutants",
        mutants=len(ended),
        killed=killed,
        timeouts=counts[TIMEOUT],
        survived=counts[SURVIVED],
        seed=chosen.seed,
    )
    return 0 if killed >= WANTED * len(ended) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
