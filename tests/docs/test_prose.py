"""Sentences beside a block have its figures; those further off are not held."""

from __future__ import annotations

import pytest

from tests.docs.pages import PAGES, REPOSITORY
from tests.docs.prose import strays

PAGE = """
# 7 things
ABOVE

```console
kplan simulate --concurrency 256
```
```text
policy  TPOT ms  tok/s
off       4.675  1,194
fixed:5  12.1    0.80x
```

BELOW

Far below 7 of them.
"""


def of(above: str = "Words.", below: str = "Words.") -> list[str]:
    return strays(PAGE.replace("ABOVE", above).replace("BELOW", below))


@pytest.mark.parametrize(
    "told",
    [
        "With 256 clients 0.80x (4.68 ms), and 1,194 tokens/s or 1194.",
        "Rounded as it likes: 4.7, 5, 12.",
        "EAGLE-3, vLLM 0.32.0, fp8, `--max-k 7`, [7](7.md) and seven are no figures.",
        "| 7 | a table |",
        "<!-- not printed: measured elsewhere -->\nIt took 7 s.",
    ],
)
def test_figures_of_the_block(told: str) -> None:
    assert of(above=told) == []
    assert of(below=told) == []


@pytest.mark.parametrize("figure", ["4.67", "4.6", "20%", "1,195", "7", "+0.81x"])
def test_a_figure_of_nothing_shown_is_told(figure: str) -> None:
    assert of(above=f"It takes\n{figure} ms.") == [f"3: {figure}"]
    assert of(below=f"({figure}).") == [f"14: {figure}"]


def test_what_does_not_say_what_it_prints_holds_nothing() -> None:
    assert strays("It took 7 s.\n\n```console\nkplan bench\n```\n\nAnd 8.\n") == []


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_beside_a_block_is_of_it(page: str) -> None:
    assert strays((REPOSITORY / page).read_text(encoding="utf-8")) == []
