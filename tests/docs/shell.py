"""A folder in which the commands of one page are run, as a reader's clone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.pages import REPOSITORY
from tests.live_fake.fake import Engine, FakeServer

GIVEN = Path(__file__).parent / "given"
"""Files that stand for a reader's own."""
SERVER = "http://127.0.0.1:8000"
"""Where the pages have a running server; a made-up one takes its place."""
CLONE = "/home/you/kplan"
"""What the pages call the folder."""
LIMIT_S = 600


class Shell:
    """Runs commands in ``folder``, which looks like the clone: its make, and a .venv that is set up.

    Commands find ``kplan`` and ``python3`` of the environment that runs the tests.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(GIVEN, folder, dirs_exist_ok=True)
        for name in ("Makefile", "requirements.lock", "pyproject.toml", "profiles"):
            (folder / name).symlink_to(REPOSITORY / name)
        venv = folder / ".venv"
        venv.mkdir()
        for part in Path(sys.prefix).iterdir():
            if part.name != ".ready":
                (venv / part.name).symlink_to(part)
        (venv / ".ready").touch()
        self._fake = FakeServer(Engine(k=4, alpha=0.7))

    def __enter__(self) -> Self:
        self._fake.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fake.__exit__(kind, error, trace)

    def run(self, commands: str) -> tuple[int, str]:
        """Exit code of the first command that fails, or 0, and all that was printed, in order."""
        environment = {
            name: os.environ[name] for name in ("HOME", "PYTHONPATH", "TMPDIR") if name in os.environ
        }
        environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }
        begun = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", commands.replace(SERVER, self._fake.url)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = begun.communicate(timeout=LIMIT_S)
        finally:  # with all it started: a server would keep the pipe open
            with suppress(ProcessLookupError):
                os.killpg(begun.pid, signal.SIGKILL)
        return begun.returncode, printed.replace(self._fake.url, SERVER).replace(str(self.folder), CLONE)
