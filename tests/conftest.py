"""Fixtures for every test folder."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]


def pytest_configure() -> None:
    """No deadline for property tests (a first example may compile a kernel); CI tries the same examples.

    Output is that of a pipe, whatever the colours of the shell that runs the tests.
    """
    for name in ("FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as behind a shell's &: commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    forget_stale_kernels()
    settings.register_profile("kplan", deadline=None, derandomize="CI" in os.environ, print_blob=True)
    settings.load_profile("kplan")


def forget_stale_kernels() -> None:
    """Drop compiled kernels when any source with one has changed.

    numba's cache of a function looks at that function's own file alone, yet holds the code of what it calls.
    The rules of policies are kernels too: the engine compiles them.
    """
    roots = [REPOSITORY / folder for folder in ("simulator/kplan", "policies/kplan_policies", "tests")]
    modules = sorted(path for root in roots for path in root.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in modules]
    kernels = "".join(text for text in texts if "njit" in text or "Rule" in text)
    digest = hashlib.sha256(kernels.encode()).hexdigest()
    mark = roots[0] / "__pycache__" / "kernels.sha256"
    if mark.exists() and mark.read_text(encoding="utf-8") == digest:
        return
    for compiled in (path for root in roots for path in root.rglob("__pycache__/*.nb[ci]")):
        compiled.unlink(missing_ok=True)
    mark.parent.mkdir(exist_ok=True)
    mark.write_text(digest, encoding="utf-8")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The reference data beside the repository; a test that asks for it skips where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("no reference data: ../shared/data is not beside the repository")
    return folder
