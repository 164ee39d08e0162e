"""What policies that one compiled rule makes have in common."""

from __future__ import annotations

from typing import ClassVar

from kplan.policy import I64, Rule, StepOutcome, StepView
from kplan_policies._text import policy_text


class RulePolicy:
    """Hands on to its rule, which the engine runs compiled.

    A derived class names itself, keeps its constructor's parameters as attributes and sets ``_rule``; its
    docstring says what K the rule chooses and what it learns.
    """

    name: ClassVar[str]
    _rule: Rule

    @property
    def text(self) -> str:
        """The name, with the values that are not the default's."""
        return policy_text(self.name, self)

    def choose_k(self, step: StepView) -> int | I64:
        """What the rule chooses: K for the whole batch, or (B,) K per request."""
        return self._rule.choose_k(step)

    def observe(self, outcome: StepOutcome) -> None:
        """Let the rule learn from an executed step."""
        self._rule.observe(outcome)

    def compiled(self) -> Rule:
        """The rule."""
        return self._rule
