"""Where a module can be mutated, and which of it is drawn.

A site is one place and one kind of change; the replacements of one operator by others are one site, so that
arithmetic with its many replacements does not outweigh comparisons and numbers. The changes are cosmic-ray's.
Left out, as they change nothing that a test could see or always fail by themselves:

- decorators: those of the kernels say how they are compiled;
- annotations and what is imported;
- ``is`` by anything but ``is not`` and back, nothing else by them: on numbers the interpreter's chance;
- arithmetic by shifts and bit operations: on floats an error of its own, an easy kill;
- ``strict`` of a ``zip``: it is a check, and of what is as long as it should be the result is the same;
- a ``*`` that no operator is, as between parameters: by ``/`` it says of a call what types check;
- variables put in for others: cosmic-ray wants their names given by hand.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

ARITHMETIC = frozenset(["Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"])
BITS = frozenset(["RShift", "LShift", "BitOr", "BitAnd", "BitXor"])
LEFT_OUT = frozenset(["RemoveDecorator", "VariableReplacer", "VariableInserter", "NoOp"])

Position = tuple[int, int]
"""Line from 1, column from 0."""


@dataclass(frozen=True)
class Site:
    """A place and a kind of change.

    Attributes:
        module: path of the file in the repository.
        first, last: lines of the statement that it stands in (of its header, for one with a body).
        choices: operators of cosmic-ray and the occurrence that each counts here.
    """

    module: str
    at: Position
    kind: str
    first: int
    last: int
    choices: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Mutant:
    """A site with its change."""

    site: Site
    operator: str
    occurrence: int


def telling(operator: str) -> str | None:
    """The kind of change that an operator's is one of, None where it is left out."""
    name = operator.removeprefix("core/")
    if name in LEFT_OUT:
        return None
    kind, _, new = name.rpartition("_")
    old = kind.rpartition("_")[2]
    if kind.startswith("ReplaceComparisonOperator"):
        apart = {"Is", "IsNot"} & {old, new}
        return None if apart and {old, new} != {"Is", "IsNot"} else kind
    if kind.startswith("ReplaceBinaryOperator"):
        return kind if {old, new} <= ARITHMETIC or {old, new} <= BITS else None
    return kind or name


def _parts(node: ast.AST) -> Iterable[ast.AST | None]:
    """What of a node no test could see changed."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    elif isinstance(node, ast.AnnAssign | ast.arg):
        yield node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.returns
        yield from node.decorator_list
    elif isinstance(node, ast.ClassDef):
        yield from node.decorator_list
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
        yield from (each.value for each in node.keywords if each.arg == "strict")


def operators(tree: ast.AST) -> list[tuple[Position, Position]]:
    """Between which places each binary operator stands."""
    return [
        ((one.left.end_lineno or 0, one.left.end_col_offset or 0), (one.right.lineno, one.right.col_offset))
        for one in ast.walk(tree)
        if isinstance(one, ast.BinOp)
    ]


def unseen(tree: ast.AST) -> list[tuple[Position, Position]]:
    """Start and end of the parts of a module that are left out."""
    return [
        ((one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset))  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        for one in _parts(node)
        if one is not None
    ]


def statements(tree: ast.AST) -> list[tuple[int, int]]:
    """First and last line of every statement, of one with a body those of its header; outer ones first."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            found.append((node.lineno, max(node.lineno, last or 0)))
    return found


def statement_at(all_of_it: Sequence[tuple[int, int]], line: int) -> tuple[int, int]:
    """The innermost of :func:`statements` at a line; the line itself where there is none (a decorator)."""
    return next((one for one in reversed(all_of_it) if one[0] <= line <= one[1]), (line, line))


def sites(module: str, code: str, found: Iterable[tuple[str, int, Position]]) -> list[Site]:
    """The sites of a module, in the order of the text.

    Args:
        found: (operator, occurrence, start) of every change that cosmic-ray can make.
    """
    tree = ast.parse(code)
    hidden, lines, binary = unseen(tree), statements(tree), operators(tree)
    choices: dict[tuple[Position, str], list[tuple[str, int]]] = defaultdict(list)
    for operator, occurrence, at in found:
        kind = telling(operator)
        if kind is None or any(start <= at < end for start, end in hidden):
            continue
        if kind.startswith("ReplaceBinaryOperator") and not any(start <= at < end for start, end in binary):
            continue
        choices[at, kind].append((operator, occurrence))
    return [
        Site(module, at, kind, *statement_at(lines, at[0]), tuple(each))
        for (at, kind), each in sorted(choices.items())
    ]


def changes(code: str) -> list[tuple[str, int, Position]]:
    """Every change that cosmic-ray can make to a module: (operator, occurrence, start)."""
    import cosmic_ray.plugins  # of tests/tools.lock, which not everybody has
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes = list(ast_nodes(get_ast(code)))
    return [
        (name, occurrence, start)
        for name in cosmic_ray.plugins.operator_names()
        if telling(name) is not None
        for operator in [cosmic_ray.plugins.get_operator(name)()]
        for occurrence, (start, _) in enumerate(
            place for node in nodes for place in operator.mutation_positions(node)
        )
    ]


def mutated(code: str, mutant: Mutant) -> str:
    """The module with its change.

    Raises:
        ValueError: cosmic-ray makes none.
        SyntaxError: it makes one that is no Python.
    """
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    operator = cosmic_ray.plugins.get_operator(mutant.operator)()
    new = mutate_code(code, operator, mutant.occurrence)
    if new is None or new == code:
        raise ValueError(f"{mutant.operator} changes nothing at {mutant.site.module}:{mutant.site.at[0]}")
    ast.parse(new)
    return str(new)


def draw(
    by_module: Mapping[str, Sequence[Site]], count: int, seed: int, good: Callable[[Mutant], bool]
) -> list[Mutant]:
    """``count`` mutants, every module's share that of its sites, at least one; the same for the same seed.

    Args:
        good: whether a mutant can be run; one that cannot is drawn again.
    """
    total = sum(len(each) for each in by_module.values())
    drawn: list[Mutant] = []
    spare: list[Mutant] = []
    for module in sorted(by_module):
        rng = random.Random(f"{seed} {module}")
        order = rng.sample(list(by_module[module]), len(by_module[module]))
        share = max(1, count * len(order) // total)
        usable = filter(good, (Mutant(site, *rng.choice(site.choices)) for site in order))
        drawn += islice(usable, share)
        spare += islice(usable, 1)
    random.Random(seed).shuffle(spare)
    return sorted((drawn + spare)[:count], key=lambda one: (one.site.module, one.site.at, one.operator))
