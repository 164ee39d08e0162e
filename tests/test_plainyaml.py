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
        ("[" * 20_000, "nests more than 100 levels"),
        ("- " * 20_000, "nests more than 100 levels"),
        ("b: !!bool x", "line 1, column 4"),
        ("f: !!float ''", "none of its type"),
        ("t: !!timestamp x", "none of its type"),
        ("n: 1" + ":59" * 40 + ".5", "a number of 123 characters"),
        ("a: &a [*a]", "an alias stands inside what it names"),
        ("a: " + "x" * 2**17, "131,075 characters, and 131,072 are read"),
        ("a: [1", "expected"),
        ("a: !!python/object/apply:os.getcwd []", "constructor"),
    ],
)
def test_every_fault_is_a_yaml_error(text: str, told: str) -> None:
    with pytest.raises(yaml.YAMLError, match=told):
        load_yaml(text)


def test_aliases_are_counted_as_they_are_written_out() -> None:
    """Of each level ten of the one before and one; five levels are 123,456 and are read."""
    lines = ["a0: &a0 x", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 7))]
    total = 1 + 7  # the mapping and its keys
    size = 1
    for _ in range(7):
        total, size = total + size, 10 * size + 1
    assert len(load_yaml("\n".join(lines[:6]))) == 6
    with pytest.raises(
        yaml.YAMLError, match=f"its aliases make {total:,} values of it, and 200,000 are read"
    ):
        load_yaml("\n".join(lines))
