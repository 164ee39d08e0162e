"""Names that a shell completes. It asks at every Tab: nothing heavy is imported, no file is parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.resources import files

from kplan.errors import InputError

YAML = ".yaml"
_PROPOSER = re.compile(r"^proposer: *(\S+)", re.MULTILINE)

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
"""What typer has scripts for."""

Complete = Callable[[str], list[str]]
"""From the letters typed to the names that begin with them."""

KINDS = ("hardware", "models", "drafters", "calibrations", "engines", "workload")
"""What ``kplan profiles`` lists."""


def shipped(folder: str) -> Complete:
    """The profiles of a folder of kplan_profiles; a user's own file is completed by the shell."""

    def names(incomplete: str) -> list[str]:
        found = (files("kplan_profiles") / folder).iterdir()
        return _begun(incomplete, (one.name.removesuffix(YAML) for one in found if one.name.endswith(YAML)))

    return names


def proposers(incomplete: str) -> list[str]:
    """What drafts; of several joined by +, the last."""
    joined, plus, last = incomplete.rpartition("+")
    found = [one for one in (files("kplan_profiles") / "drafters").iterdir() if one.name.endswith(YAML)]
    named = {name for one in found for name in _PROPOSER.findall(one.read_text(encoding="utf-8"))}
    return [joined + plus + name for name in _begun(last, named)]


def policies(incomplete: str) -> list[str]:
    """The registered policies, those of other packages included."""
    from importlib.metadata import entry_points

    return _begun(incomplete, (point.name for point in entry_points(group="kplan.policies")))


def kinds(incomplete: str) -> list[str]:
    """Kinds of profiles."""
    return _begun(incomplete, KINDS)


def example(incomplete: str) -> list[str]:
    """The recording that comes with kplan."""
    return _begun(incomplete, ["example"])


def refuse_unknown_shell(argv: list[str]) -> None:
    """Refuse to install or show completion for a shell that has no script.

    Raises:
        InputError: the command runs in none of SHELLS, or in no shell.
    """
    if argv not in (["--install-completion"], ["--show-completion"]):
        return
    from shellingham import ShellDetectionFailure, detect_shell

    try:
        name = detect_shell()[0]
    except ShellDetectionFailure:
        name = "no shell"
    if name not in SHELLS:
        raise InputError("shell", name, "there is completion for bash, zsh, fish and PowerShell", "use one")


def _begun(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
