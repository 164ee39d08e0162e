"""The laws, one function each: it returns when the policy keeps it, else it says in one line where not."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kplan.engine.asking import Form, form_of, rule_of
from kplan.policy import CompiledPolicy, Policy, PolicyInfo, StepOutcome, StepView
from kplan.registry import PolicySpec, parse_policy
from kplan.space import annotated_ranges
from kplan.testing.run import served
from kplan.testing.scene import Answers, Scene, drive, make_scene, scrambled
from kplan.testing.subject import holds, probes, spec_of


@dataclass(frozen=True)
class Law:
    """What every policy must keep.

    Attributes:
        name: two or three words.
        says: the law.
    """

    name: str
    says: str
    _holds: Callable[[PolicySpec], None]

    def check(self, policy: str | type[Policy] | PolicySpec, **kwargs: Any) -> None:
        """Raise AssertionError, in one line, when ``policy`` breaks the law.

        Args:
            policy: a policy text, or a class with its constructor's arguments.
            kwargs: of a class.
        """
        spec = spec_of(policy, **kwargs)
        try:
            self._holds(spec)
        except AssertionError as broken:
            raise AssertionError(f"{spec.text}: {self.name}: {broken}") from broken
        except (Exception, SystemExit) as error:  # a policy may raise anything, and must not
            told = f"{type(error).__name__}: {error}"
            raise AssertionError(f"{spec.text}: {self.name}: it raised {told}") from error

    def __str__(self) -> str:
        return self.name


def _expect(kept: bool, broken: str) -> None:
    if not kept:
        raise AssertionError(broken)


def _answers(spec: PolicySpec, scene: Scene) -> Answers:
    return drive(spec.build(), scene, spec.info)


def _same(one: Answers, two: Answers, what: str) -> None:
    for at, (a, b) in enumerate(zip(one, two, strict=True)):
        _expect(a == b, f"{what}: step {at} chose {_short(a)} and {_short(b)}")


def _short(ks: list[int]) -> str:
    return f"{ks[:6]}"[:-1] + ", ...]" if len(ks) > 6 else f"{ks}"


def _builds(spec: PolicySpec) -> None:
    one, two = spec.build(), spec.build()
    _expect(one is not two, "two builds are one object")
    _expect(bool(spec.info.summary), "its summary is empty; give the class a docstring or an info")
    info = vars(spec.cls).get("info")
    if isinstance(info, PolicyInfo):
        _expect(bool(info.source), "info.source is empty; say where the rule is from")
        _expect(bool(info.engines) != bool(info.why_not), "give info either engines or why_not")
    else:
        _expect(info is None, f"info must be a kplan.policy.PolicyInfo, not {type(info).__name__}")


def _answers_whole(spec: PolicySpec) -> None:
    _answers(spec, make_scene(1))


def _edges(spec: PolicySpec) -> None:
    for max_k in (0, 1, 31):
        _answers(spec, make_scene(2, max_k=max_k, steps=60))
    _answers(spec, make_scene(3, steps=60, seats=1))
    _answers(spec, make_scene(4, steps=20, seats=600))


def _repeats(spec: PolicySpec) -> None:
    scene = make_scene(5)
    _same(_answers(spec, scene), _answers(spec, scene), "two runs over the same steps differ")


def _stands_alone(spec: PolicySpec) -> None:
    scene = make_scene(6, steps=90)
    alone = _answers(spec, scene)
    policy, other = spec.build(), spec.build()

    def disturb(method: str, *_: object) -> None:
        if method == "choose_k":
            drive(other, small, spec.info)

    small = make_scene(7, steps=3)
    beside = drive(policy, scene, spec.info, disturb)
    _same(alone, beside, "another instance moved its answers")


def _reads_only(spec: PolicySpec) -> None:
    def compare(method: str, seen: StepView | StepOutcome, before: dict[str, Any]) -> None:
        for name, value in before.items():
            now = getattr(seen, name)
            same = np.array_equal(now, value) if isinstance(value, np.ndarray) else now == value
            _expect(same, f"{method} changed {name} of what it was given; copy it first")

    drive(spec.build(), make_scene(8), spec.info, compare)


def _no_future(spec: PolicySpec) -> None:
    if spec.info.needs_future:
        return
    scene, shown = make_scene(9), replace(spec.info, needs_future=True)
    for now in (0, 40, 110):
        other = scrambled(scene, now, seed=now)
        one, two = (drive(spec.build(), each, shown) for each in (scene, other))
        _same(one[: now + 1], two[: now + 1], f"another future from step {now} on moved an earlier answer")


def _text(spec: PolicySpec) -> None:
    again = parse_policy(spec.text)
    _expect(again.text == spec.text, f"its text reads back as {again.text}")
    scene = make_scene(10)
    _same(_answers(spec, scene), _answers(again, scene), "the policy made from its text differs")


def _pickles(spec: PolicySpec) -> None:
    sent = pickle.loads(pickle.dumps(spec))  # noqa: S301 - of our own
    _expect(sent == spec, f"its spec arrives in a worker process as {sent.text}")
    scene = make_scene(11)
    _same(_answers(spec, scene), _answers(sent, scene), "the policy built in a worker process differs")


def _one_form(spec: PolicySpec) -> None:
    form = form_of(spec.build())
    if form is Form.PYTHON:
        return
    for clients, lag in ((1, 0), (12, 1), (40, 2)):
        policies = spec.build(), spec.build()
        fast, slow = (
            served(policy, 60, clients, compiled=compiled, lag=lag)
            for policy, compiled in zip(policies, (True, False), strict=True)
        )
        _expect(
            fast.requests.tobytes() == slow.requests.tobytes()
            and fast.machine.k_steps.tolist() == slow.machine.k_steps.tolist(),
            f"run {form.value}, it gives another result than asked at every step ({clients} clients)",
        )
        if form is Form.RULE:
            states = [rule_of(policy).state for policy in policies if isinstance(policy, CompiledPolicy)]
            _expect(states[0].tobytes() == states[1].tobytes(), "its compiled rule ends in another state")


def _ranges(spec: PolicySpec) -> None:
    scene = make_scene(12, steps=40)
    for name, space in annotated_ranges(spec.cls).items():
        default = inspect.signature(spec.cls).parameters[name].default
        inside = default is inspect.Parameter.empty or holds(space, default)
        _expect(inside, f"the default of {name}, {default}, lies outside its range {space}")
        for value in probes(space):
            try:
                drive(spec.cls(**{**spec.kwargs, name: value}), scene, spec.info)
            except (Exception, SystemExit) as error:  # a policy may raise anything, and must not
                told = f"{type(error).__name__}: {error}"
                raise AssertionError(f"{name}={value}, a value of its range, raised {told}") from error


LAWS: tuple[Law, ...] = (
    Law(
        "builds",
        "a new object each time; it tells what it does, from where, and which engines run it",
        _builds,
    ),
    Law("answers", "K is a whole number >= 0, one for all or one per request, shape (B,)", _answers_whole),
    Law("edges", "max_k 0, 1 and 31, batch 1 and 600, steps that decode nothing, returning requests", _edges),
    Law("repeats", "the same steps give the same answers", _repeats),
    Law("stands alone", "two instances share no state", _stands_alone),
    Law("reads only", "what it is given stays as it was", _reads_only),
    Law("no future", "what has not happened moves no answer, unless info.needs_future says so", _no_future),
    Law("text", "its text makes it again", _text),
    Law("pickles", "a worker process gets the same policy", _pickles),
    Law("one form", "compiled or asked at every step, the run is the same, byte for byte", _one_form),
    Law("ranges", "ends and middle of each search range build and run; the default is inside", _ranges),
)
"""All laws, the cheap ones first."""
