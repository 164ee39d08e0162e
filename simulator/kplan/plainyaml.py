"""YAML of plain values, where every fault of the text is a YAMLError with its line."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

MOST_BYTES = 2**17
"""Longest text that is read; the longest shipped one has 13 kB, and the parser takes seconds for this one."""
MOST_LEVELS = 100
"""Lists and mappings in one another."""
MOST_NODES = 200_000
"""Values of a text once its aliases are written out: ten of them, each ten of the next, make billions."""
_LONGEST_NUMBER = 100
"""Characters of a number: some are read in time that grows with their square."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, within bounds; it refuses a key given twice, of which that takes the last and
    says nothing."""

    _levels = 0

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_aliases(node)
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._levels += 1
        self._check_levels(self._levels)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._levels -= 1
        return node

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        self._check_levels(self.flow_level)  # here too, as the scanner is ahead, and slow at it
        super().fetch_flow_collection_start(token)

    def _check_levels(self, levels: int) -> None:
        if levels > MOST_LEVELS:
            raise yaml.MarkedYAMLError(
                problem=f"nests more than {MOST_LEVELS} levels", problem_mark=self.get_mark()
            )

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        # what PyYAML lets through of a scalar that is none of its type: a month 13, ``!!int x``, ``!!bool x``
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"a value that is none of its type ({error})", node.start_mark
            ) from error

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if node.tag in _NUMBERS and len(text) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(text):,} characters")
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def load_yaml(text: str) -> Any:
    """The content of a YAML text: mappings, lists, texts, numbers, booleans, dates, None.

    Raises:
        yaml.YAMLError: it is no YAML, is too long, gives a key twice, nests too deeply, holds a scalar that
            is none of its type, or aliases that make too much of it or stand inside what they name.
    """
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"holds {len(text):,} characters, and {MOST_BYTES:,} are read")
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - derived from the safe one
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error


def _check_aliases(root: yaml.Node) -> None:
    """Raise YAMLError where aliases, written out, make more than MOST_NODES values, or never end."""
    sizes: dict[int, int] = {}
    inside: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in inside:
            raise yaml.MarkedYAMLError(
                problem="an alias stands inside what it names", problem_mark=node.start_mark
            )
        if id(node) not in sizes:
            inside.add(id(node))
            mapping = isinstance(node, yaml.MappingNode)
            children = [one for pair in node.value for one in pair] if mapping else node.value
            sizes[id(node)] = 1 + sum(map(size, children))
            inside.remove(id(node))
        return sizes[id(node)]

    if (found := size(root)) > MOST_NODES:
        raise yaml.YAMLError(f"its aliases make {found:,} values of it, and {MOST_NODES:,} are read")
