"""What a shell may hand over: sizes that are none, closed streams, no shell that is known, no home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import shellingham

from kplan.cli import complete
from kplan.cli.app import run
from tests.cli.screen import KPLAN, on_terminal

NO_SIZES = ["0", "-5", "abc", "\N{SUPERSCRIPT TWO}", "99999999999", ""]


@pytest.mark.parametrize("size", NO_SIZES)
def test_a_size_that_is_none_leaves_the_terminal_its_own(size: str) -> None:
    usual = on_terminal("profiles", "engines", columns=70)
    assert usual.code == 0
    shown = on_terminal("profiles", "engines", columns=70, env={"COLUMNS": size, "LINES": size})
    assert (shown.code, shown.raw) == (0, usual.raw)
    refused = on_terminal("recommend", "--qps", "-3", columns=70, env={"COLUMNS": size})
    assert refused.code == 2
    assert refused.lines[0].startswith("error: kplan: --qps: got -3.0")


def test_a_size_that_is_one_goes_before_the_terminal() -> None:
    shown = on_terminal("recommend", "--qps", "-3", columns=200, env={"COLUMNS": "30"})
    assert len(shown.lines) > 1
    assert max(map(len, shown.lines)) <= 30


@pytest.mark.parametrize(
    ("argv", "closed", "code"),
    [
        ("profiles engines", ">&-", 0),
        ("profiles engines", "2>&-", 0),
        ("profiles engines", "<&- >&- 2>&-", 0),
        ("profiles --json", ">&-", 0),
        ("recommend --qps -2", "2>&-", 2),
        ("recommend --qps -2", ">&-", 2),
        ("--help", ">&-", 0),
        ("policies new own", "<&- >&- 2>&-", 0),
    ],
)
def test_closed_streams_are_no_fault(argv: str, closed: str, code: int, tmp_path: Path) -> None:
    command = f'"{sys.executable}" {KPLAN[0]} "{KPLAN[1]}" {argv}'
    done = subprocess.run(
        ["bash", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    for written in tmp_path.iterdir():  # what was printed went nowhere, not into the file
        assert "wrote" not in written.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
@pytest.mark.parametrize("shell", ["ksh", None])
def test_a_shell_without_a_script_is_refused_in_one_line(
    option: str, shell: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def detected() -> tuple[str, str]:
        if shell is None:
            raise shellingham.ShellDetectionFailure
        return shell, f"/bin/{shell}"

    monkeypatch.setattr(shellingham, "detect_shell", detected)
    assert run([option]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    named = "no shell" if shell is None else shell
    bound = "there is completion for bash, zsh, fish and PowerShell"
    assert said.err == f"error: shell: got '{named}', {bound}; use one\n"


def test_every_shell_that_is_known_has_a_script() -> None:
    from typer._completion_shared import get_completion_script

    for shell in complete.SHELLS:
        assert "KPLAN" in get_completion_script(prog_name="kplan", complete_var="_KPLAN", shell=shell)


def test_a_home_that_is_no_folder_is_told_in_one_line() -> None:
    command = f'"{sys.executable}" {KPLAN[0]} "{KPLAN[1]}" --install-completion; exit $?'
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ) | {"HOME": os.devnull},
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: path: got '{os.devnull}")
    assert len(done.stderr.splitlines()) == 1
