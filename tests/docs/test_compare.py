"""What counts as the same output, and what a page is read as."""

from __future__ import annotations

import pytest

from tests.docs.compare import WIDTH, differs, renewed, wrapped
from tests.docs.pages import blocks

PRINTED = ["one 1", "two 2", "three 3", "two 4", "five 5"]


@pytest.mark.parametrize(
    "told",
    [
        PRINTED,
        ["..."],
        ["one 1", "..."],
        ["...", "five 5"],
        ["one 1", "...", "three 3", "two 4", "...", "five 5"],
        ["one 1", "...", "two 2", "...", "two 4", "five 5", "..."],
        ["...", *PRINTED, "..."],
    ],
)
def test_lines_may_be_left_out_where_the_page_says_so(told: list[str]) -> None:
    assert differs(told, PRINTED) == ""


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ([], "one 1"),
        (PRINTED[:-1], "five 5"),
        ([*PRINTED, "six 6"], "six 6"),
        (["one 1", "...", "five 6"], "five 6"),
        (["two 2", "..."], "two 2"),
        (["...", "two 4"], "two 4"),
        (["...", "two 2", "...", "two 3", "..."], "two 3"),
        (["...", "two 4", "...", "three 3", "..."], "three 3"),
        (["...", "two 2", "two 4", "..."], "two 4"),
        (["one 1", "two 2", "three 3", "two 4", "...", "two 4", "five 5"], "two 4"),
    ],
)
def test_anything_else_differs(told: list[str], named: str) -> None:
    assert named in differs(told, PRINTED)


def test_the_clock_alone_may_differ() -> None:
    assert differs(["60 trials in 11.0 s"], ["60 trials in 7.25 s"]) == ""
    assert differs(["60 trials in 11.0 s"], ["61 trials in 11.0 s"]) != ""
    assert differs(["29,538 engine steps/s here"], ["9 engine steps/s here"]) == ""
    assert differs(["TPOT 10.56 ms"], ["TPOT 10.57 ms"]) != ""


def test_sentences_are_broken_and_rows_are_not() -> None:
    word = "x" * 29
    first, second = wrapped(" ".join(["- " + word, word, word, word]))
    assert first == f"- {word} {word} {word}"
    assert second == f"  {word}"
    assert wrapped("  note: " + " ".join([word] * 4))[1] == f"    {word}"
    row = "  ".join([word] * 5)
    assert len(row) > WIDTH
    assert wrapped(f"{row}\nshort  \n\nlast\n\n") == [row, "short", "", "last"]


@pytest.mark.parametrize(
    ("told", "now"),
    [
        (["one 1", "...", "two 3", "..."], ["one 1", "...", "two 2", "..."]),
        (["...", "five 6"], ["...", "five 5"]),
        (["one 9", "two 9", "...", "two 9", "five 9"], ["one 1", "two 2", "...", "two 4", "five 5"]),
        (["one 1", "two 3"], PRINTED),
        (["one 1", "...", "five 5"], ["one 1", "...", "five 5"]),
    ],
)
def test_a_renewed_block_is_what_was_printed_with_the_same_left_out(told: list[str], now: list[str]) -> None:
    assert renewed(told, PRINTED) == now
    assert differs(now, PRINTED) == ""


PAGE = """\
Words.

<!-- exit code: 2 -->
```console
kplan one
```

It prints:

```text
told
```

- <!-- not run: a server -->

  <!-- not run: a card -->
  ```console
  kplan two
  ```

```console
kplan three
```
```python
x = 1
```

Words.

```python
y = 1
```
"""


def test_a_page_is_read_as_its_blocks() -> None:
    first, second, third = blocks(PAGE)
    assert (first.commands.lines, first.exit_code, first.not_run) == (("kplan one",), 2, "")
    assert first.output is not None
    assert first.output.lines == ("told",)
    assert PAGE.splitlines()[first.output.first : first.output.end] == ["told"]
    assert (second.commands.lines, second.commands.indent, second.not_run) == (("kplan two",), 2, "a card")
    assert (second.output, second.exit_code) == (None, 0)
    assert third.not_run == ""
    assert third.output is not None
    assert third.output.lines == ("x = 1",)


@pytest.mark.parametrize(
    "page", ["```text\nx\n```\n", "```console\nx\n```\n```text\ny\n```\n```text\nz\n```\n", "```console\nx\n"]
)
def test_output_of_nothing_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="line"):
        blocks(page)
