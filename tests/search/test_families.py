"""Families: search spaces out of annotations, and out of the load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from kplan.errors import InputError
from kplan.search.families import FAMILY, Space, read_family
from kplan.space import Choice, FloatRange, IntRange, Limits

LIMITS = Limits(
    max_k=5,
    max_batch=40,
    reach=40,
    greedy=((1, 4), (21, 2)),
    by_context=((0, ((1, 4),)), (512, ((1, 4), (21, 2)))),
)

OWN = """
from typing import Annotated
from kplan.space import Choice, FloatRange, IntRange, SearchSpace

class Own:
    def __init__(self, k: Annotated[int, IntRange(1, 3)] = 2,
                 calm: Annotated[float, FloatRange(1, 99, log=True)] = 9.0,
                 mode: Annotated[str, Choice(("a", "b"))] = "b", fixed: int = 7) -> None:
        if mode == "a" and k == 3:
            raise ValueError("mode a takes no k of 3")
        self.k = k

    def choose_k(self, step):
        return self.k

class Bare:
    def choose_k(self, step):
        return 1

class Needs:
    def __init__(self, name: str, k: Annotated[int, IntRange(1, 3)]) -> None: ...
    def choose_k(self, step):
        return 1

class Reversed(Bare):
    def __init__(self, k: Annotated[int, IntRange(5, 2)] = 3) -> None: ...

class LogOfZero(Bare):
    def __init__(self, x: Annotated[float, FloatRange(0, 1, log=True)] = 0.5) -> None: ...

class NoNumber(Bare):
    def __init__(self, x: Annotated[float, FloatRange(0, float("nan"))] = 0.5) -> None: ...

class NoChoice(Bare):
    def __init__(self, mode: Annotated[str, Choice(())] = "a") -> None: ...

class Outside(Bare):
    def __init__(self, k: Annotated[int, IntRange(0, 2)] = 9) -> None: ...

class Unnamed(Bare):
    def __init__(self, k: "Annotated[int, Missing(0, 1)]" = 1) -> None: ...

class Absent(Bare):
    def __init__(self, k: Annotated[int | None, IntRange(0, 2)] = None) -> None: ...

class Exits(Bare):
    @classmethod
    def search_space(cls, limits):
        raise SystemExit(3)
    @classmethod
    def from_params(cls, params):
        return {}

class BadParams(Bare):
    @classmethod
    def search_space(cls, limits):
        return SearchSpace({"k": IntRange(0, 2)}, {"k": 1})
    @classmethod
    def from_params(cls, params):
        raise RuntimeError("no way")
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "my.py").write_text(OWN, encoding="utf-8")
    return str(tmp_path / "my.py")


def test_a_table_has_a_k_for_every_tier_and_begins_with_the_greedy_one() -> None:
    family = read_family("table", LIMITS)
    assert family.space.ranges == {f"k_from_{b}": IntRange(0, 5) for b in (1, 9, 17, 21, 33)}
    assert list(family.space.first.values()) == [4, 4, 4, 2, 2]
    assert family.spec(family.space.first).text == "table:1-20=4,21-=2"
    same = [family.spec(one).text for one in family.space.then]
    assert same == [f"table:1-={k}" for k in range(6)]
    ks = {"k_from_1": 3, "k_from_9": 3, "k_from_17": 0, "k_from_21": 5, "k_from_33": 5}
    assert family.spec(ks).text == "table:1-16=3,17-20=0,21-=5"


def test_a_context_table_begins_with_the_greedy_table_of_each_context() -> None:
    family = read_family("context-table", LIMITS)
    batches, contexts = (1, 9, 21, 33), (0, 512)
    assert family.space.ranges == {
        f"k_from_{batch}x{context}": IntRange(0, 5) for batch in batches for context in contexts
    }
    first = family.spec(family.space.first)
    assert first.text == "context-table:1-20x0-=4,21-x0-511=4,21-x512-=2"
    rows = zip(batches, ((3, 3), (3, 1), (3, 1), (0, 0)), strict=True)
    ks = {f"k_from_{batch}x{at}": k for batch, row in rows for at, k in zip(contexts, row, strict=True)}
    assert family.spec(ks).text == "context-table:1-8x0-=3,9-32x0-511=3,9-32x512-=1,33-x0-=0"


def test_tiers_that_no_load_reaches_keep_the_greedy_k() -> None:
    closed = replace(LIMITS, reach=9)
    free = IntRange(0, 5)
    assert list(read_family("table", closed).space.ranges.values()) == [
        free, free, IntRange(4, 4), IntRange(2, 2), IntRange(2, 2),
    ]  # fmt: skip
    assert read_family("table", closed).spec(read_family("table", closed).space.then[1]).text == (
        "table:1-16=1,17-20=4,21-=2"
    )
    ranges = read_family("context-table", closed).space.ranges
    assert [ranges[f"k_from_9x{at}"] for at in (0, 512)] == [free, free]
    assert [ranges[f"k_from_33x{at}"] for at in (0, 512)] == [IntRange(4, 4), IntRange(2, 2)]


def test_fixed_is_searched_up_to_the_largest_k() -> None:
    family = read_family("fixed", LIMITS)
    assert family.space.ranges == {"k": IntRange(0, 5)}
    assert family.spec({"k": 2}).text == "fixed:2"


def test_annotations_of_a_users_class_are_its_space_and_its_defaults_come_first(own: str) -> None:
    family = read_family(f"{own}:Own", LIMITS)
    assert family.space.ranges == {
        "k": IntRange(1, 3),
        "calm": FloatRange(1, 99, log=True),
        "mode": Choice(("a", "b")),
    }
    assert family.space.first == {"k": 2, "calm": 9.0, "mode": "b"}
    spec = family.spec({"k": 1, "calm": 2.5, "mode": "a"})
    assert spec.text == f"{own}:Own:k=1,calm=2.5,mode=a"
    assert spec.kwargs == {"k": 1, "calm": 2.5, "mode": "a"}


def test_several_families_share_a_study_and_each_is_begun(own: str) -> None:
    space = Space([read_family("table", LIMITS), read_family(f"{own}:Own", LIMITS)])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for params in space.first():
        study.enqueue_trial(params)
    texts = [space.spec(study.ask()).text for _ in range(2)]
    assert texts == ["table:1-20=4,21-=2", f"{own}:Own:k=2,calm=9.0,mode=b"]
    trial = study.ask()
    chosen = space.spec(trial).text
    assert chosen.startswith(str(trial.params[FAMILY]))


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("nosuch", "no policy is called 'nosuch'"),
        ("fixed:3", "names one policy, not its class; write fixed"),
        ("off", "declares no range to search"),
        ("{own}:Bare", "declares no range to search"),
        ("{own}:Needs", "name has neither a range nor a default"),
        ("{own}:Reversed", r"k: IntRange\(low=5, high=2\) holds no value"),
        ("{own}:LogOfZero", "holds no value"),
        ("{own}:NoNumber", "holds no value"),
        ("{own}:NoChoice", r"Choice\(values=\(\)\) holds no value"),
        ("{own}:Outside", "k = 9 is tried first, and not in IntRange"),
        ("{own}:Unnamed", "its ranges cannot be read: NameError: name 'Missing' is not defined"),
        ("{own}:Exits", "its ranges cannot be read: SystemExit: 3"),
    ],
)
def test_what_cannot_be_searched_is_one_line(own: str, family: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_family(family.format(own=own), LIMITS)


def test_parameters_that_a_class_refuses_are_its_own_line(own: str) -> None:
    with pytest.raises(InputError, match="mode a takes no k of 3"):
        read_family(f"{own}:Own", LIMITS).spec({"k": 3, "calm": 1.0, "mode": "a"})


def test_a_from_params_that_fails_is_one_line(own: str) -> None:
    with pytest.raises(InputError, match=r"from_params: got .*, RuntimeError: no way"):
        read_family(f"{own}:BadParams", LIMITS).spec({"k": 1})


def test_a_default_of_none_is_not_tried_first(own: str) -> None:
    assert read_family(f"{own}:Absent", LIMITS).space.first == {}
