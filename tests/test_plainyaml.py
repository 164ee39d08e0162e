"""What YAML may hold, and that every fault of it is a YAMLError."""

from __future__ import annotations

import pytest
import yaml

from kplan.plainyaml import load_yaml


def test_plain_values_and_merged_mappings_are_read() -> None:
    text = "base: &b {x: 1, y: a}\nown: {<<: *b, x: 2}\nlist: [1.5, true, null]"
    assert load_yaml(text) == {
        "base": {"x": 1, "y": "a"},
        "own": {"x": 2, "y": "a"},
        "list": [1.5, True, None],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("k: 1\na: 2\nk: 3", "'k' is given twice"),
        ("a: {k: 1, k: 1}", "'k' is given twice"),
        ("day: 2024-13-45", "month must be in 1..12"),
        ("n: !!int x", "invalid literal"),
        ("[" * 20_000, "recursion"),
        ("a: [1", "expected"),
        ("a: !!python/object/apply:os.getcwd []", "constructor"),
    ],
)
def test_every_fault_is_a_yaml_error(text: str, told: str) -> None:
    with pytest.raises(yaml.YAMLError, match=told):
        load_yaml(text)
