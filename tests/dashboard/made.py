"""Answers without the simulator: a plan that tells which question it is of."""

from __future__ import annotations

import time
from collections.abc import Callable

from kplan.config.evidence import KMap
from kplan.dashboard.app import Answers
from kplan.dashboard.desk import Desk
from kplan.dashboard.job import FullRuns
from kplan.dashboard.quick import Look
from kplan.dashboard.state import State
from kplan.export import export_engines
from tests.export.sample import DRAFTERS, MODEL, make_plan

MAP = KMap(
    batches=(1, 2, 4),
    contexts=(128, 256),
    best_k=((3, 2, 1), (3, 2, None)),
    gain=((2.0, 1.5, 1.1), (2.0, 1.5, None)),
    visited=None,
)


def look_of(state: State, how: str = "Quick look") -> Look:
    """A made-up answer whose words name the load."""
    plan = make_plan()
    words = f"answer to {state.qps:g} requests/s"
    plan = plan.model_copy(update={"answer": plan.answer.model_copy(update={"words": words})})
    exports = export_engines(plan, MODEL, DRAFTERS["eagle3"])
    return Look(plan, exports, MAP, (2.0, 200.0), how, full=how != "Quick look")


def slow_look(seconds: float) -> Callable[[State], Look]:
    """:func:`look_of` after so many seconds."""

    def look(state: State) -> Look:
        time.sleep(seconds)
        return look_of(state)

    return look


def full(state: State, tell: Callable[[str], None]) -> Look:
    """A full run in three steps."""
    for step in ("pricing", "simulating", "judging"):
        tell(step)
        time.sleep(0.05)
    return look_of(state, "Full run")


def answers(seconds: float = 0.0, waiting: int = 16) -> Answers:
    """Answers that take so long."""
    return Answers(Desk(slow_look(seconds), waiting=waiting), FullRuns(full))
