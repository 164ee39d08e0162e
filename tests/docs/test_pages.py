"""Every command of the pages, run in order, one folder a page; what it prints is what the page says.

``python -m tests.docs.renew`` writes what is printed now into the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.compare import differs, wrapped
from tests.docs.pages import PAGES, REPOSITORY, blocks, fences
from tests.docs.shell import Shell


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_commands_print(page: str, tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        for block in blocks((REPOSITORY / page).read_text(encoding="utf-8")):
            if block.not_run:
                continue
            commands = "\n".join(block.commands.lines)
            code, printed = shell.run(commands)
            where = f"{page}:{block.commands.first + 1}"
            assert code == block.exit_code, f"{where}: exit code {code}\n{commands}\n{printed}"
            if block.output is not None:
                told = differs(block.output.lines, wrapped(printed))
                assert not told, f"{where}\n{told}"


@pytest.mark.parametrize("page", PAGES)
def test_no_command_of_a_page_stands_where_it_is_not_run(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    assert not [one.language for one in fences(text) if one.language in ("bash", "sh", "shell", "")]
    assert not re.findall(r"^ {4,}(?:kplan|make|pip) .*", _without_fences(text), re.MULTILINE)


def _without_fences(text: str) -> str:
    lines = text.splitlines()
    inside = {n for one in fences(text) for n in range(one.first, one.end)}
    return "\n".join(line for n, line in enumerate(lines) if n not in inside)
