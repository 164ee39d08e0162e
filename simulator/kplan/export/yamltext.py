"""YAML text by the library, with each batch range on one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml


class _Row(list[int]):
    """A list that is written as ``[1, 64, 3]``."""


class _Dumper(yaml.SafeDumper):
    """The safe dumper, and rows in flow style."""


def _represent_row(dumper: yaml.SafeDumper, row: _Row) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", row, flow_style=True)


_Dumper.add_representer(_Row, _represent_row)


def row(values: Sequence[int]) -> list[int]:
    """``values`` marked to be written on one line."""
    return _Row(values)


def dump(content: Mapping[str, Any]) -> str:
    """YAML of ``content`` in its own key order; ``yaml.safe_load`` gives the content back."""
    return yaml.dump(
        dict(content), Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True
    )
