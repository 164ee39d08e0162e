"""What can be mutated, on modules made up here; cosmic-ray's part by the operators' names."""

from __future__ import annotations

import ast

import pytest

from tests.gates.mutants import Known, within
from tests.gates.sites import Mutant, Site, draw, sites, statement_at, statements, telling, unseen

CODE = '''\
from a import b


@cached(1 + 1)
def f(x: int | None, y: float = 2 * 3) -> int | None:
    """Say 1 + 1."""
    if (
        x is None
    ):
        return 1 + 1
    z: int | str = 4
    return x * y
'''


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("core/NumberReplacer", "NumberReplacer"),
        ("core/ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Add"),
        ("core/ReplaceBinaryOperator_Add_BitOr", None),
        ("core/ReplaceBinaryOperator_BitOr_BitAnd", "ReplaceBinaryOperator_BitOr"),
        ("core/ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_Is"),
        ("core/ReplaceComparisonOperator_Is_Eq", None),
        ("core/ReplaceComparisonOperator_Lt_IsNot", None),
        ("core/ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_Lt"),
        ("core/ReplaceUnaryOperator_USub_Not", "ReplaceUnaryOperator_USub"),
        ("core/RemoveDecorator", None),
        ("core/VariableReplacer", None),
    ],
)
def test_kinds_of_change(operator: str, kind: str | None) -> None:
    assert telling(operator) == kind


def test_annotations_decorators_and_imports_are_not_seen() -> None:
    lines = CODE.splitlines()
    shown = {lines[a - 1][start:end] for (a, start), (_, end) in unseen(ast.parse(CODE))}
    assert shown == {"from a import b", "cached(1 + 1)", "int | None", "float", "int | str"}


@pytest.mark.parametrize(
    ("line", "statement"),
    [(1, (1, 1)), (5, (5, 5)), (7, (7, 9)), (8, (7, 9)), (10, (10, 10)), (11, (11, 11)), (3, (3, 3))],
)
def test_the_statement_at_a_line_is_the_innermost(line: int, statement: tuple[int, int]) -> None:
    assert statement_at(statements(ast.parse(CODE)), line) == statement


def test_replacements_of_one_operator_are_one_site() -> None:
    plus, times = "core/ReplaceBinaryOperator_Add_", "core/ReplaceBinaryOperator_Mul_"
    found = [
        (f"{plus}Sub", 0, (4, 10)),  # in a decorator
        (f"{plus}Sub", 1, (10, 17)),
        (f"{plus}Mul", 1, (10, 17)),
        (f"{times}Add", 0, (5, 35)),  # a default, beside annotations
        ("core/NumberReplacer", 6, (10, 15)),
    ]
    assert sites("m.py", CODE, found) == [
        Site("m.py", (5, 35), "ReplaceBinaryOperator_Mul", 5, 5, ((f"{times}Add", 0),)),
        Site("m.py", (10, 15), "NumberReplacer", 10, 10, (("core/NumberReplacer", 6),)),
        Site("m.py", (10, 17), "ReplaceBinaryOperator_Add", 10, 10, ((f"{plus}Sub", 1), (f"{plus}Mul", 1))),
    ]


def test_a_star_between_parameters_is_no_operator_and_strict_no_site() -> None:
    code = "def f(a, *, b=(2) * 3):\n    return [*zip(a, b, strict=True)] * b\n"
    times = "core/ReplaceBinaryOperator_Mul_Div"
    stars = [(1, 9), (1, 18), (2, 12), (2, 37)]
    found = [(times, number, at) for number, at in enumerate(stars)]
    found.append(("core/ReplaceTrueWithFalse", 0, (2, 30)))
    assert [(site.at, site.choices) for site in sites("m.py", code, found)] == [
        ((1, 18), ((times, 1),)),
        ((2, 37), ((times, 3),)),
    ]


def made(module: str, count: int) -> list[Site]:
    return [Site(module, (line, 0), "NumberReplacer", line, line, (("n", line),)) for line in range(count)]


def test_a_draw_is_seeded_stratified_and_without_twins() -> None:
    by_module = {"big": made("big", 300), "small": made("small", 100), "tiny": made("tiny", 1)}
    first = draw(by_module, 40, 1, lambda _: True)
    assert first == draw(by_module, 40, 1, lambda _: True)
    assert first != draw(by_module, 40, 2, lambda _: True)
    assert len(set(first)) == 40
    counts = [sum(one.site.module == module for one in first) for module in ("big", "small", "tiny")]
    assert counts[2] == 1
    assert 29 <= counts[0] <= 30
    assert 9 <= counts[1] <= 10


def test_what_cannot_be_run_is_drawn_again() -> None:
    def odd(mutant: Mutant) -> bool:
        return mutant.occurrence % 2 == 1

    drawn = draw({"m": made("m", 40)}, 15, 3, odd)
    assert len(drawn) == 15
    assert all(map(odd, drawn))


def test_a_mutant_meets_the_tests_of_its_lines_or_where_it_runs_at_import_those_of_its_module() -> None:
    """Import has no test's name. What no function of the module runs is met by nobody."""
    ran = {("m", 0): {"f", "g"}, ("m", 1): {""}, ("m", 2): {"", "g"}, ("m", 3): {"f"}, ("n", 1): {""}}
    known = Known({"f": 2.0, "g": 1.0}, ran)

    def at(module: str, first: int, last: int) -> list[str]:
        return known.meeting(Site(module, (first, 0), "NumberReplacer", first, last, ()))

    assert at("m", 1, 1) == ["g", "f"]
    assert at("m", 1, 2) == ["g"]
    assert at("m", 2, 3) == ["g", "f"]
    assert at("m", 4, 5) == at("n", 1, 1) == []
    assert within(2.5, known.cost_s) == ["g"]
    assert within(0.5, known.cost_s) == ["g"]
