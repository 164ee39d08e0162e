"""What a running engine's config says, and what the engine really does with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kplan.export.header import one_line
from kplan.profiles import Tree

MAX_BATCH = 65_536
"""Batch sizes above are read from no config: a scenario allows no more seats."""


class Severity(StrEnum):
    """How bad a finding is; with one of the first three the config cannot be run as it is."""

    REFUSED = "refused"  # the server does not start
    CRASH = "crash"  # it starts and stops on the first batch of some size
    CORRUPT = "corrupt"  # it runs and drafts wrong tokens
    IGNORED = "ignored"  # it runs without what was asked for
    CHANGED = "changed"  # it runs another value than was written
    WARNING = "warning"  # nobody checks it
    NOTE = "note"


FATAL = frozenset({Severity.REFUSED, Severity.CRASH, Severity.CORRUPT})


@dataclass(frozen=True)
class Finding:
    """One thing that the engine does with the config, in a line."""

    severity: Severity
    text: str

    @property
    def line(self) -> str:
        """For a person."""
        return f"{self.severity}: {self.text}"


@dataclass(frozen=True)
class CurrentConfig:
    """A config as its engine runs it.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        model: name or folder of the target.
        policy: text of the policy that it runs.
        proposer: kplan's name of the drafter; None without speculation, or where kplan has no price for it.
        drafter: name or folder of the drafter's weights.
        tree: the draft tree, None of a chain.
        settings: keys of a scenario -> values, of everything else that is simulated.
        findings: what the engine does with what is written, worst first.
        unsimulated: why its figures cannot be simulated, "" when they can.
    """

    engine: str
    model: str
    policy: str
    proposer: str | None
    drafter: str | None
    tree: Tree | None
    settings: Mapping[str, Any]
    findings: tuple[Finding, ...]
    unsimulated: str

    @property
    def runs(self) -> bool:
        """Whether a server would start with it and emit the model's own tokens."""
        return not any(one.severity in FATAL for one in self.findings)


@dataclass
class Flags:
    """Options of a server start by their long names, with what was found while reading them."""

    values: Mapping[str, Any]
    folder: Path
    findings: list[Finding] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def say(self, severity: Severity, text: str) -> None:
        """Add a finding; what it quotes of the config stays on its line."""
        self.findings.append(Finding(severity, one_line(text)))

    def get(self, *names: str) -> Any:
        """The value of the first of these names that is given; None when none is."""
        self.read.update(names)
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def flag(self, *names: str) -> bool | None:
        """A switch; a word that is neither yes nor no counts as given."""
        value = self.get(*names)
        if value is None or isinstance(value, bool):
            return value
        return str(value).lower() not in ("false", "0", "no")

    def whole(self, *names: str, least: int = 1) -> int | None:
        """A whole number; one that the engine would refuse is a finding, and then None."""
        value = self.get(*names)
        if value is None:
            return None
        number = whole_number(value)
        if number is None or number < least:
            self.say(Severity.REFUSED, f"{names[0]}: {short(value)} is no whole number >= {least}")
            return None
        return number

    def share(self, *names: str) -> float | None:
        """A number in (0, 1]; another is a finding, and then None."""
        value = self.get(*names)
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError):
            number = -1.0
        if number is not None and not 0 < number <= 1:
            self.say(Severity.REFUSED, f"{names[0]}: {short(value)} must be above 0 and at most 1")
            return None
        return number

    def text(self, *names: str) -> str | None:
        """A word; a number is taken as it is written."""
        value = self.get(*names)
        return None if value is None or isinstance(value, dict | list | bool) else str(value)

    def concluded(self, harmless: frozenset[str], unsimulated: str) -> tuple[Finding, ...]:
        """All findings, the worst first, else in the order found.

        Args:
            harmless: options that change no figure; others that nothing has read are noted.
            unsimulated: why figures cannot be simulated, "" when they can; noted too.
        """
        if unread := sorted(set(self.values) - self.read - harmless):
            self.say(Severity.NOTE, f"not simulated: {', '.join(unread)}")
        if unsimulated:
            self.say(Severity.NOTE, f"cannot be simulated: {unsimulated}")
        order = list(Severity)
        return tuple(sorted(self.findings, key=lambda one: order.index(one.severity)))


_LARGEST = 10**12


def whole_number(value: Any) -> int | None:
    """A whole number as engines read one: ``4``, ``"4"``, ``4.0``, ``"8k"``; None for anything else."""
    if isinstance(value, int | float):
        return int(value) if abs(value) < _LARGEST and value == value // 1 else None
    if not isinstance(value, str) or len(value) > 20:
        return None
    text = value.strip()
    scale = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(text[-1:], 0)
    try:
        number = round(float(text[:-1]) * scale) if scale else int(text)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < _LARGEST else None


def short(value: Any) -> str:
    """A value in a message, cut where it is long."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
