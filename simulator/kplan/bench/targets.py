"""What the figures should be on two cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A bound on one figure.

    Attributes:
        figure: key of the record; that of a nested one after a dot.
        bound: in the figure's unit.
        at_least: the figure should be no less; else no more.
    """

    figure: str
    bound: float
    at_least: bool = False

    def judge(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """The bound beside the value and whether it is met, None when the figure was not measured."""
        value: Any = record
        for key in self.figure.split("."):
            if key not in value:
                return None
            value = value[key]
        met = value >= self.bound if self.at_least else value <= self.bound
        return {"bound": self.bound, "is": "least" if self.at_least else "most", "value": value, "met": met}


TARGETS = (
    Target("startup_s", 0.5),
    Target("recommend_s", 15.0),
    Target("million_requests.wall_s", 20.0),
    Target("million_requests.peak_gib", 3.0),
    Target("linear.worst", 0.2),
    Target("fast_path_tokens_per_cpu_s", 50e6, at_least=True),
    Target("fast_path_mean_batch", 32.0, at_least=True),
    Target("python_policy_steps_per_s", 20_000.0, at_least=True),
    Target("search_200_trials_s", 90.0),
)
