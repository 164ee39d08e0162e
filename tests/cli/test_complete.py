"""What a shell completes: the very names that the commands take, and nothing heavy is imported for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kplan.cli import complete
from kplan.profiles import KINDS, available, known_proposers
from kplan.registry import list_policies
from kplan.validate.load import shipped_tables
from kplan.workload import available_workloads

MAIN = "from kplan.cli.app import main; main()"


def completed(shell: str, env: dict[str, str]) -> str:
    """What the command answers to the script of a shell."""
    asked = env | {"_KPLAN_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        env=dict(os.environ) | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.stdout


@pytest.fixture
def kplan(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has kplan on the PATH and an empty home."""
    script = tmp_path / "bin" / "kplan"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{MAIN}' \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("_")}
    return kept | {"PATH": f"{script.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def test_the_names_are_those_that_the_commands_take() -> None:
    for kind in KINDS:
        assert complete.shipped(kind)("") == [one.name for one in available(kind)]
    assert complete.shipped("workloads")("") == [one.name for one in available_workloads()]
    assert complete.shipped("published")("") == [one.name for one in shipped_tables()]
    assert complete.policies("") == sorted(name for name, _ in list_policies())
    assert complete.proposers("") == known_proposers()
    assert sorted(complete.KINDS) == sorted([*KINDS, "workload"])


def test_of_joined_proposers_the_last_is_completed() -> None:
    assert complete.proposers("ngram+eagle3-") == ["ngram+eagle3-tree", "ngram+eagle3-tree4"]
    assert complete.proposers("suff") == ["suffix"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_bash_completes_once_it_is_installed(kplan: dict[str, str]) -> None:
    script = """
    kplan --install-completion >&2
    . ~/.bashrc
    ask() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _kplan_completion kplan "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        echo "${COMPREPLY[@]}"
    }
    ask kplan recom
    ask kplan recommend --hardware h100-
    ask kplan simulate --policy sglang
    ask kplan recommend --slo-tp
    complete -p kplan
    """
    done = subprocess.run(["bash", "-c", script], env=kplan, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[:4] == [
        "recommend",
        "h100-nvl h100-pcie h100-sxm",
        "sglang-ema",
        "--slo-tpot-ms",
    ], done.stderr
    assert "_kplan_completion kplan" in done.stdout.splitlines()[4]
    assert "bash completion installed" in done.stderr


def test_zsh_and_fish_are_answered_as_their_scripts_ask() -> None:
    words = {"_TYPER_COMPLETE_ARGS": "kplan recommend --hardware h100-"}
    zsh = completed("zsh", words)
    assert [name in zsh for name in ("h100-nvl", "h100-pcie", "h100-sxm", "h200")] == [
        True,
        True,
        True,
        False,
    ]
    fish = completed("fish", words | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})
    assert fish.split() == ["h100-nvl", "h100-pcie", "h100-sxm"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell: str) -> None:
    asked = dict(os.environ) | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "--show-completion", shell],
        env=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"_KPLAN_COMPLETE=complete_{shell}" in done.stdout
    if there := shutil.which(shell):
        subprocess.run([there, "-n"], input=done.stdout, text=True, check=True)


@pytest.mark.parametrize("words", ["kplan recommend --model l", "kplan simulate --policy f"])
def test_a_tab_imports_nothing_heavy(words: str) -> None:
    code = f"""
import atexit, sys
heavy = ("numba", "numpy", "pandas", "scipy", "optuna", "yaml", "plotly", "dash", "kplan.profiles")
atexit.register(lambda: print("heavy:", *[one for one in heavy if one in sys.modules], file=sys.stderr))
{MAIN}
"""
    env = dict(os.environ) | {"_KPLAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout
    assert done.stderr == "heavy:\n"
