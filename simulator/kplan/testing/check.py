"""All laws at once: as findings, or as one assertion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kplan.policy import Policy
from kplan.registry import PolicySpec
from kplan.testing.laws import LAWS, Law
from kplan.testing.subject import spec_of


@dataclass(frozen=True)
class Finding:
    """Whether a policy keeps one law.

    Attributes:
        law: which.
        broken: where it does not, in one line; empty when it keeps it.
    """

    law: Law
    broken: str

    @property
    def passed(self) -> bool:
        """The law is kept."""
        return not self.broken


def examine(policy: str | type[Policy] | PolicySpec, **kwargs: Any) -> list[Finding]:
    """One finding per law, in the order of LAWS.

    Args:
        policy: a policy text, or a class with its constructor's arguments.
        kwargs: of a class.

    Raises:
        InputError: a text that names no policy.
    """
    spec = spec_of(policy, **kwargs)
    return [find(law, spec) for law in LAWS]


def check_policy(policy: str | type[Policy] | PolicySpec, **kwargs: Any) -> None:
    """Raise AssertionError with one line per law that ``policy`` breaks.

    Args:
        policy: a policy text, or a class with its constructor's arguments.
        kwargs: of a class.

    Raises:
        InputError: a text that names no policy.
    """
    broken = [finding.broken for finding in examine(policy, **kwargs) if not finding.passed]
    if broken:
        raise AssertionError("\n".join(broken))


def find(law: Law, spec: PolicySpec) -> Finding:
    """Whether ``spec`` keeps ``law``."""
    try:
        law.check(spec)
    except AssertionError as broken:
        return Finding(law, str(broken))
    return Finding(law, "")
