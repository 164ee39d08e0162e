"""A pytest plugin for kernels run as plain Python (``NUMBA_DISABLE_JIT=1``), where a test may take minutes.

Property tests try few examples, always the same, and do not shrink them; a test is stopped at its share of
processor time. Loaded with ``-p tests.gates.brief``, it leaves out what is stopped: its lines were run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings

EXAMPLES = 6
LIMIT_S = 3.0
SETTINGS = "_hypothesis_internal_use_settings"
"""Where hypothesis keeps the settings of a property; a change of its inside is told by an AttributeError."""


class Stopped(BaseException):
    """A test used its share of processor time. No Exception: neither tests nor hypothesis may catch it."""


class Brief:
    """The plugin.

    Args:
        limit_s: seconds of processor time that a test may take, by its node id.
        examples: the most that a property tries.
        leave_out: whether a test that is stopped is skipped; else it fails.
        chosen: node ids of the tests to run, in that order; all of them where None.
    """

    def __init__(
        self,
        limit_s: Callable[[str], float],
        *,
        examples: int = EXAMPLES,
        leave_out: bool = False,
        chosen: Sequence[str] | None = None,
    ) -> None:
        self._chosen = chosen
        self._limit_s = limit_s
        self._examples = examples
        self._leave_out = leave_out
        self.stopped: list[str] = []
        """Node ids of the tests that were stopped."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Let whole numbers wrap without a word, as compiled ones do: hashes live on it."""
        config.addinivalue_line("filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is chosen, and make its properties brief."""
        if self._chosen is not None:
            by_id = {item.nodeid: item for item in items}
            items[:] = [by_id[node] for node in self._chosen if node in by_id]
        for test in {item.obj for item in items if hasattr(getattr(item, "obj", None), "hypothesis")}:
            kept = getattr(test, SETTINGS)
            brief = settings(
                kept,
                max_examples=min(kept.max_examples, self._examples),
                phases=(Phase.explicit, Phase.generate),
                derandomize=True,
                database=None,
            )
            setattr(test, SETTINGS, brief)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Hold fixtures to the limit."""
        return (yield from self._held(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Hold the test to the limit."""
        return (yield from self._held(item))

    def _held(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Hold what runs to the limit; processor time, so that a busy machine stops nothing."""
        before = signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, self._limit_s(item.nodeid))
        try:
            return (yield)
        except Stopped:
            self.stopped.append(item.nodeid)
            if self._leave_out:
                pytest.skip(f"stopped after {self._limit_s(item.nodeid):g} s as plain Python")
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


class Costs:
    """A plugin that measures: seconds of processor time of every test that passed, by node id."""

    def __init__(self) -> None:
        self.passed_s: dict[str, float] = {}
        self._start_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        """Before a test and its fixtures."""
        self._start_s = time.process_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each of its parts."""
        if report.when == "call" and report.passed:
            self.passed_s[report.nodeid] = time.process_time() - self._start_s


def _stop(*_: object) -> None:
    raise Stopped


def pytest_configure(config: pytest.Config) -> None:
    """Loaded by name: stop and leave out (KPLAN_TEST_CPU_S, seconds a test)."""
    limit_s = float(os.environ.get("KPLAN_TEST_CPU_S", LIMIT_S))
    config.pluginmanager.register(Brief(lambda _: limit_s, leave_out=True))
