"""Copies of the repository, and tests run in them by processes forked from one that has the slow imports.

The kernels run as plain Python there: nothing is compiled, so no compiled code outlives a mutant either.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SLOW_IMPORTS = (
    "numpy",
    "scipy.optimize",
    "scipy.stats",
    "pandas",
    "numba",
    "hypothesis",
    "pydantic",
    "typer",
    "yaml",
)

LEARN_S = 20.0
"""Longest test that mutants may meet: fits of what ships take that, as plain Python."""

KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
STOPPED_CODE = 77
"""Exit code of a child with a test that used up its processor time."""
VERDICTS = {0: SURVIVED, 1: KILLED, 2: KILLED, 5: SURVIVED, STOPPED_CODE: TIMEOUT}
"""By exit code; 2 is that of a mutant that no test could import, 5 of one that left no test to run."""


def prepare() -> None:
    """Plain kernels, one thread each, and the slow imports, once for all children."""
    os.environ |= {
        "NUMBA_DISABLE_JIT": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "CI": "true",
    }
    for name in SLOW_IMPORTS:
        importlib.import_module(name)


def copy(to: Path) -> Path:
    """A copy of what git tracks or would, with nothing compiled; returns it."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (REPOSITORY / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, to / name)
    return to


def run_tests(
    tree: Path, tests: Sequence[str], options: Sequence[str], limits_s: dict[str, float] | None
) -> int:
    """Run ``tests`` of ``tree`` in this process, which must be a child of one that prepared.

    Args:
        tests: files, folders or node ids.
        limits_s: seconds of processor time that each test may take, by node id; None to measure, under
            :data:`LEARN_S`: the costs of what passes are left in ``costs.json`` beside the tree.
    """
    for name in [one for one in sys.modules if one.partition(".")[0] in ("tests", "kplan", "kplan_policies")]:
        del sys.modules[name]
    places = [str(tree), *(str(tree / part) for part in ("simulator", "policies", "profiles"))]
    sys.path[:0] = places
    sys.dont_write_bytecode = (
        True  # a mutant of the same size in the same second would be taken for its original
    )
    os.environ |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(tree)
    import pytest

    from tests.gates.brief import Brief, Costs

    costs = Costs()
    if limits_s is None:
        brief = Brief(lambda _: LEARN_S, leave_out=True)
    else:  # by files: a node id that a mutant leaves no place for is a wrong argument to pytest
        brief = Brief(lambda node: limits_s[node], chosen=tests)
        tests = sorted({test.partition("::")[0] for test in tests})
    fixed = ["-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", f"{tree}.tmp", "--tb=short"]
    fixed += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins among the slow imports
    code = int(pytest.main([*fixed, *options, *tests], plugins=[brief, costs]))
    if limits_s is None:
        kept = {"passed_s": costs.passed_s, "stopped": brief.stopped}
        tree.with_suffix(".costs.json").write_text(json.dumps(kept), encoding="utf-8")
    return STOPPED_CODE if limits_s and brief.stopped else code


@dataclass(frozen=True)
class Child:
    """A forked process that runs tests, and when it is ended."""

    pid: int
    until_s: float
    log: Path

    @classmethod
    def fork(
        cls,
        tree: Path,
        tests: Sequence[str],
        options: Sequence[str],
        limits_s: dict[str, float] | None,
        wait_s: float,
    ) -> Child:
        """Start one; what it prints goes to a file beside the tree."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return cls(pid, time.monotonic() + wait_s, tree.with_suffix(".log"))
        code = 3
        try:
            os.setsid()  # with its own children in one group, to be ended with it
            out = os.open(tree.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            code = run_tests(tree, tests, options, limits_s)
        except BaseException:  # noqa: BLE001 - the child ends here, and must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def verdict(self) -> str | None:
        """How the tests ended, None while they run.

        Raises:
            RuntimeError: they did not run, whatever the mutant: nothing may be counted as killed by that.
        """
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            if code not in VERDICTS and code >= 0:
                raise RuntimeError(f"pytest ended with {code}; see {self.log}")
            return VERDICTS.get(code, KILLED)  # by a signal: the mutant crashed the interpreter
        if time.monotonic() > self.until_s:
            os.killpg(self.pid, 9)
            os.waitpid(self.pid, 0)
            return TIMEOUT
        return None


def wait(child: Child) -> str:
    """Until a child has ended: how."""
    while (verdict := child.verdict()) is None:
        time.sleep(0.2)
    return verdict
