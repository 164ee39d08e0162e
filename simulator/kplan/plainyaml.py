"""YAML of plain values, where every fault of the text is a YAMLError with its line."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader; it refuses a key given twice, of which that takes the last and says nothing."""

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


def load_yaml(text: str) -> Any:
    """The content of a YAML text: mappings, lists, texts, numbers, booleans, dates, None.

    Raises:
        yaml.YAMLError: it is no YAML, gives a key twice, nests too deeply, or holds a scalar that is none of
            its type (a month 13, ``!!int x``), for which PyYAML raises ValueError.
    """
    try:
        return yaml.load(text, _Loader)
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from error
