"""``make audit``: known vulnerabilities and yanked releases among the pinned versions, and whether they fit.

    python -m tests.gates.audit requirements.lock tests/tools.lock

Vulnerabilities are asked for by pip-audit. A package index may not know them: it then "could not audit", and
that is neither clean nor vulnerable, and is said in a banner without failing. What every index must tell
(PEP 592) is whether a release was withdrawn: pip is asked to resolve, not install, what users install.
Exit code 1: vulnerable, yanked, or versions that do not fit together.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.gates.licences import EXTRAS, needed

WAIT_S = 90.0
"""Longest wait for one command that asks the index."""
AT_ONCE = 4
"""pips that ask side by side: each spends most of its time waiting for the index."""
PART = 8
"""Releases asked of one pip: those of one that fails are left unaudited, not the others."""


@dataclass(frozen=True)
class Audit:
    """What was found out about releases.

    Attributes:
        asked: how many there are.
        clean: how many of them were looked up and had nothing against them.
        bad: those that had, a line each.
        why_not: why the others were not looked up, in one line; "" where all were.
    """

    asked: int
    clean: int
    bad: tuple[str, ...]
    why_not: str

    @property
    def left(self) -> int:
        """How many could not be looked up."""
        return self.asked - self.clean - len({line.split(":")[0] for line in self.bad})


def pins(text: str) -> list[str]:
    """The releases of a lock file, as ``name==version``."""
    return [
        line.split()[0] for line in text.splitlines() if "==" in line and not line.lstrip().startswith("#")
    ]


def vulnerable(told: str, asked: int) -> Audit:
    """What pip-audit told.

    Args:
        told: its JSON.
        asked: releases it was given; what it leaves out was not audited.
    """
    try:
        releases = json.loads(told)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audit(asked, 0, (), "pip-audit gave no answer")
    looked_up = [one for one in releases if "skip_reason" not in one]
    bad = [
        f"{one['name']} {one['version']}: {flaw['id']}"
        + (
            f", mended in {', '.join(flaw['fix_versions'])}"
            if flaw.get("fix_versions")
            else ", no mended release"
        )
        for one in looked_up
        for flaw in one.get("vulns", ())
    ]
    clean = sum(not one.get("vulns") for one in looked_up)
    untold = asked - len(looked_up)
    return Audit(
        asked, clean, tuple(bad), "the package index knows no vulnerabilities of them" if untold else ""
    )


def yanked(told: str, asked: int, resolved: bool) -> Audit:
    """What pip told while it resolved releases.

    Args:
        told: what it printed; only the names, versions and reasons of yanked releases are kept of it.
        asked: releases it was given.
        resolved: whether it got to the end.
    """
    warned = re.findall(
        r"yanked version: '([^']+)' candidate \(version (\S+).*\)\s+Reason for being yanked: (.*)", told
    )
    bad = tuple(f"{name} {version}: yanked ({reason.strip()})" for name, version, reason in warned)
    return Audit(
        asked, asked - len(bad) if resolved else 0, bad, "" if resolved else "pip could not resolve them"
    )


def together(parts: Sequence[Audit]) -> Audit:
    """Several answers as one."""
    return Audit(
        sum(part.asked for part in parts),
        sum(part.clean for part in parts),
        tuple(line for part in parts for line in part.bad),
        next((part.why_not for part in parts if part.why_not), ""),
    )


def verdict(kind: str, audit: Audit) -> list[str]:
    """What to print: the bad ones, then how many were looked up, in a banner where some were not."""
    lines = [f"{kind}: {line}" for line in audit.bad]
    if audit.left:
        lines += [
            "!" * 79,
            f"! {kind}: could not be audited: {audit.left} of {audit.asked} ({audit.why_not}).",
            "! This is not a clean answer: run it again where the index can tell.",
            "!" * 79,
        ]
    else:
        lines.append(f"{kind}: {audit.clean} of {audit.asked} releases are clean")
    return lines


def ask_vulnerable(locks: Sequence[str]) -> Audit:
    """Ask pip-audit about the lock files."""
    asked = sum(len(pins(Path(lock).read_text(encoding="utf-8"))) for lock in locks)
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    command += ["--format=json", *(f"--requirement={lock}" for lock in locks)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Audit(asked, 0, (), f"pip-audit took longer than {WAIT_S:g} s")
    return vulnerable(answer.stdout, asked)


def ask_yanked(releases: Sequence[str], options: Sequence[str] = ()) -> Audit:
    """Ask pip for ``releases``, as it would install them; nothing is installed."""
    parts = [releases[at : at + PART] for at in range(0, len(releases), PART)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return together(list(pool.map(lambda part: _ask_pip(part, options), parts)))


def _ask_pip(releases: Sequence[str], options: Sequence[str]) -> Audit:
    """Ask one pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        *options,
    ]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=15", "--progress-bar=off", *releases]
    with tempfile.TemporaryDirectory() as aside:  # pip looks at the working folder for packages
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=aside
            )
        except subprocess.TimeoutExpired:
            return Audit(len(releases), 0, (), f"pip took longer than {WAIT_S:g} s")
    return yanked(answer.stderr + answer.stdout, len(releases), answer.returncode == 0)


def main(locks: list[str]) -> int:
    """Ask, say, and judge."""
    wanted = {name for extra in EXTRAS for name in needed(extra, metadata.requires)}
    first = pins(Path(locks[0]).read_text(encoding="utf-8"))
    shipped = [one for one in first if canonicalize_name(one.split("==")[0]) in wanted]
    with ThreadPoolExecutor(2) as pool:
        flaws = pool.submit(ask_vulnerable, locks)
        withdrawn = pool.submit(ask_yanked, shipped)
        answers = {"vulnerabilities": flaws.result(), "yanked releases": withdrawn.result()}
    for kind, answer in answers.items():
        print("\n".join(verdict(kind, answer)))
    fits = subprocess.run([sys.executable, "-m", "pip", "check"], check=False).returncode == 0
    return 0 if fits and not any(answer.bad for answer in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
