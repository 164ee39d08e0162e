"""Each law finds the policy that breaks it, and says where; a sound one of a user's own passes."""

from __future__ import annotations

import itertools
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.policy import BATCH, PolicyInfo, Rule, StepOutcome, StepView
from kplan.registry import parse_policy
from kplan.space import Choice, FloatRange, IntRange
from kplan.testing import LAWS, Law, check_policy, examine, spec_of, steps_per_s


class Sound:
    """Two drafts in small batches."""

    def __init__(self, k: Annotated[int, IntRange(0, 5)], calm: Annotated[int, IntRange(1, 64)] = 8) -> None:
        self.k, self.calm = k, calm

    def choose_k(self, step: StepView) -> int:
        return self.k if step.batch <= self.calm else 1


class SaysNothing(Sound):
    info: ClassVar[PolicyInfo] = PolicyInfo(summary="a rule", source="here")


class BelowZero(Sound):
    def choose_k(self, step: StepView) -> int:
        return 3 - step.batch


class OfAnotherShape(Sound):
    def choose_k(self, step: StepView) -> Any:
        return np.ones(step.batch + 1, np.int64)


class NeedsRoom(Sound):
    def choose_k(self, step: StepView) -> int:
        return 1 // step.max_k


class NeedsADecode(Sound):
    def choose_k(self, step: StepView) -> int:
        return 1

    def observe(self, outcome: StepOutcome) -> None:
        outcome.accepted.max()


class Dice(Sound):
    def choose_k(self, step: StepView) -> int:
        return int(np.random.default_rng().integers(0, 5))


class SharedCounter(Sound):
    calls: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.calls.clear()

    def choose_k(self, step: StepView) -> int:
        self.calls.append(1)
        return len(self.calls) % 4


class Meddles(Sound):
    def choose_k(self, step: StepView) -> int:
        step.last_accepted[:] = 0
        return 1


class Peeks(Sound):
    def choose_k(self, step: StepView) -> int:
        return 1 if step.future_accepted is None else int(step.future_accepted.max())


class CallsItselfOff(Sound):
    text = "off"


class Unlike(Sound):
    """Compiled it drafts two, called from Python three."""

    def __init__(self) -> None:
        self.rule = Rule(np.full((1, 1), 2.0), choose_two)

    def compiled(self) -> Rule:
        return self.rule

    def choose_k(self, step: StepView) -> int:
        return 3


class OtherMemory(Unlike):
    """The same answers, another memory: Python counts the calls twice."""

    def __init__(self) -> None:
        self.rule = Rule(np.zeros((1, 1)), count)

    def choose_k(self, step: StepView) -> Any:
        self.rule.choose_k(step)
        return self.rule.choose_k(step)

    def compiled(self) -> Rule:
        return self.rule


class FailsAtTheEnd(Sound):
    def __init__(self, share: Annotated[float, FloatRange(0.1, 0.9)] = 0.5) -> None:
        if share > 0.8:
            raise ValueError("share must be 0.8 or less")
        self.k, self.calm = 2, 8


class DefaultOutside(Sound):
    def __init__(self, k: Annotated[int, IntRange(0, 5)] = 6, mode: Annotated[str, Choice(("a", "b"))] = "a"):
        self.k, self.calm = k, 8


def choose_two(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    return int(state[0, 0])


def count(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    state[0, 0] += 1
    return int(step[BATCH]) % 3


def broken_by(policy: Any) -> dict[str, str]:
    return {finding.law.name: finding.broken for finding in examine(policy) if not finding.passed}


@pytest.mark.parametrize(
    ("policy", "law", "told"),
    [
        (SaysNothing, "builds", "give info either engines or why_not"),
        (BelowZero, "answers", "choose_k: got -"),
        (OfAnotherShape, "answers", "must be an int or an integer array of shape"),
        (NeedsRoom, "edges", "ZeroDivisionError"),
        (NeedsADecode, "edges", "ValueError"),
        (Dice, "repeats", "two runs over the same steps differ: step "),
        (SharedCounter, "stands alone", "another instance moved its answers: step "),
        (Meddles, "reads only", "choose_k changed last_accepted of what it was given; copy it first"),
        (Peeks, "no future", "another future from step "),
        (Unlike, "one form", "run by its compiled rule, it gives another result"),
        (OtherMemory, "one form", "its compiled rule ends in another state"),
        (
            FailsAtTheEnd,
            "ranges",
            "share=0.9, a value of its range, raised ValueError: share must be 0.8 or less",
        ),
        (DefaultOutside, "ranges", "the default of k, 6, lies outside its range IntRange(low=0, high=5)"),
    ],
)
def test_a_broken_law_is_found_and_told_in_one_line(policy: Any, law: str, told: str) -> None:
    found = broken_by(policy)
    assert told in found[law]
    assert all("\n" not in line and line.startswith(spec_of(policy).text) for line in found.values())
    with pytest.raises(AssertionError, match=r"^[^\n]*"):
        check_policy(policy)


def test_only_the_broken_laws_are_told() -> None:
    assert list(broken_by(Meddles)) == ["reads only"]
    assert list(broken_by(SaysNothing)) == ["builds"]
    assert list(broken_by(Unlike)) == ["one form"]


def test_a_sound_class_passes_and_takes_arguments() -> None:
    check_policy(Sound)
    check_policy(Sound, k=4, calm=2)
    assert spec_of(Sound).kwargs == {"k": 2}  # the middle of its range
    assert spec_of(Sound, k=4).text == f"{__name__}:Sound:k=4"


def test_a_class_inside_a_function_has_no_text_and_cannot_reach_a_worker() -> None:
    class Local(Sound):
        """Two drafts."""

    assert list(broken_by(Local)) == ["text", "pickles"]


def test_a_text_holds_its_own_arguments() -> None:
    with pytest.raises(TypeError, match="write the arguments into the text, not beside it: k"):
        check_policy("fixed:3", k=2)
    with pytest.raises(InputError, match="no policy is called"):
        check_policy("fixxed")


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_form_for_pytest(law: Law) -> None:
    law.check(Sound)


def test_names_of_laws_are_unique() -> None:
    assert all(a.name != b.name for a, b in itertools.combinations(LAWS, 2))


def test_the_speed_is_counted_in_engine_steps() -> None:
    assert (steps_per_s(parse_policy("fixed:3")) or 0) > 100
    assert steps_per_s(parse_policy("match-else")) is None  # it needs a server with several proposers
