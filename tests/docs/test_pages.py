"""Every command of the pages, run in order, one folder a page; what it prints is what the page says.

``python -m tests.docs.renew`` writes what is printed now into the pages.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from kplan.cli.app import app
from kplan.validate.baseline import Entered, shipped_baseline
from kplan.validate.groups import shipped_groups
from kplan.validate.load import shipped_tables
from kplan.validate.table import Target
from tests.docs.compare import differs, wrapped
from tests.docs.pages import PAGES, REPOSITORY, Block, blocks, fences
from tests.docs.shell import Shell

README = "README.md"
LONGEST = 250
"""Lines of the README: a reader's first two minutes."""
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


def text_of(page: str) -> str:
    """The page as it is stored."""
    return (REPOSITORY / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_commands_print(page: str, tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        for block in blocks(text_of(page)):
            if block.not_run:
                continue
            commands = "\n".join(block.commands.lines)
            code, printed = shell.run(commands)
            where = f"{page}:{block.commands.first}"
            assert code == block.exit_code, f"{where}: exit code {code}\n{commands}\n{printed}"
            if block.output is not None:
                told = differs(block.output.lines, wrapped(printed))
                assert not told, f"{where}\n{told}"


def commands_of(block: Block) -> list[list[str]]:
    """The words of every kplan command of a block."""
    joined = "\n".join(block.commands.lines).replace("\\\n", " ")
    lines = [
        line[line.index("kplan ") :] for line in joined.splitlines() if re.search(r"(^|&& )kplan ", line)
    ]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_has_commands_and_flags_that_exist(page: str) -> None:
    for block in blocks(text_of(page)):
        for words in commands_of(block) if block.not_run else ():
            command, rest = typer.main.get_command(app), words[1:]
            while hasattr(command, "commands"):
                assert rest[0] in command.commands, words
                command, rest = command.commands[rest[0]], rest[1:]
            flags = {
                one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)
            }
            assert {word for word in rest if word.startswith("--")} <= flags, words


@pytest.mark.parametrize("page", PAGES)
def test_no_command_stands_outside_of_a_block_that_is_held(page: str) -> None:
    """No shell in another language, no fence without one, no indented commands."""
    text = text_of(page)
    assert not [one.first for one in fences(text) if one.language in ("", "bash", "sh", "shell")]
    inside = {n for one in fences(text) for n in range(one.first, one.end)}
    prose = "\n".join(line for n, line in enumerate(text.splitlines()) if n not in inside)
    assert not re.findall(r"^(?: {4}|\t)(?:kplan|make|pip|python3?|dask) .*", prose, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for name, heading in LINK.findall(text_of(page)):
        target = (REPOSITORY / page).parent / name if name else REPOSITORY / page
        assert target.exists(), name
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, (name, heading)


def test_the_readme_is_short_and_runs_all_that_it_can() -> None:
    text = text_of(README)
    assert len(text.splitlines()) <= LONGEST
    assert [one.commands.lines for one in blocks(text) if one.not_run] == [("kplan validate",)]


def test_a_newcomer_has_a_yaml_of_a_model_that_does_not_ship_after_one_command(tmp_path: Path) -> None:
    block = next(one for one in blocks(text_of(README)) if "MODEL=" in one.commands.lines[0])
    with Shell(tmp_path) as shell:
        code, printed = shell.run(block.commands.lines[0])
    assert code == 0
    config = (tmp_path / "runs" / "mine" / "vllm.yaml").read_text(encoding="utf-8")
    assert f"\nmodel: {tmp_path / 'my-model'}\n" in config
    assert "assumed to hold for my-model" in printed


@pytest.mark.parametrize("page", [README, "docs/accuracy.md"])
def test_rows_of_validate_are_those_of_the_baseline(page: str) -> None:
    """tests/validate holds the baseline to the predictions; what is not run here is held to the baseline."""
    block = next(
        one for one in blocks(text_of(page)) if one.not_run and one.commands.lines[0].startswith("kplan val")
    )
    assert block.output is not None
    targets = {f"{one.name}-* together": one.target for one in shipped_groups()}
    targets |= {one.name: one.target for one in shipped_tables()}
    before = shipped_baseline().tables
    told = [re.split(r" {2,}", line) for line in block.output.lines[2:] if line != "..."]
    for name, *cells in told:
        assert cells == cells_of(before[name.removesuffix("-* together")], targets[name]), name
    if page == "docs/accuracy.md":
        assert len(told) == sum(one.mape is not None for one in before.values())


def cells_of(entered: Entered, target: Target) -> list[str]:
    """A row of validate behind its name."""
    shares = [entered.mape, entered.worst, entered.sign_ok, entered.best_k_regret]
    mape, worst, sign, regret = ("-" if one is None else f"{one:.1%}" for one in shares)
    bias = "-" if entered.bias is None else f"{entered.bias:+.1%}"
    least = {"mape": "<=", "worst": "<=", "sign": ">=", "regret": "<="}
    asked = [f"{one} {least[one]} {bound:.0%}" for one, bound in target.model_dump(exclude_none=True).items()]
    passed = {True: "yes", False: "NO", None: "-"}[entered.passed]
    counts = [str(entered.rows), str(entered.rows_counted)]
    return [*counts, mape, worst, bias, sign, regret, ", ".join(asked) or "-", passed]


def test_the_readme_counts_the_targets() -> None:
    judged = [one.passed for one in shipped_baseline().tables.values() if one.passed is not None]
    assert (len(judged), judged.count(False)) == (11, 2)
    assert "Of eleven tables and groups with a target two miss it" in text_of(README)
