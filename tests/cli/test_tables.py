"""Tables and words on terminals of any width: nothing wraps, no number is cut, a pipe gets plain text."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Sequence

import pytest

from kplan.cli import leaderboard, search, validate, verify
from kplan.cli.app import run
from kplan.cli.output import prose, say
from kplan.cli.policy_table import POLICY_COLUMNS
from kplan.cli.recommend import _show
from kplan.cli.tables import Column, fit, fold, print_table
from kplan.config.plan import Plan
from kplan.profiles import KINDS
from tests.cli.screen import on_terminal

SHOWN = re.compile(r"\x1b\[[0-9;]*m")
WIDTHS = (60, 80, 120)
ROWS = {
    "policies": (POLICY_COLUMNS, 1, [
        ["off", "19.51", "17.63..21.40", "53.2", "114.6", "39,396", "62.1", "1.00x", "187.7", "0.00", "1.00"],
        ["fixed:5", "saturated", "", "", "", "138,381", "159.6", "-", "1208.8", "5.00", "2.53"],
        ["table:1-321=2,322-=1 *", "10.51", "9.29..11.72", "57.5", "123.2", "40,487", "64.6", "1.86x",
         "101.9", "2.00", "2.06"],
    ]),
    "search": (search.COLUMNS, 1, [
        ["context-table:1-64x1-2048=4,65-x1-=2 (misses the SLO)", "0.9912", "0.9880..0.9944", "10.512",
         "157.5", "140,487", "2.00"],
    ]),
    "standings": (leaderboard.STANDING_COLUMNS, 1, [
        ["throughput-aware *", "0.912", "0.880..0.944", "-0.512", "157.5", "12", "3"],
    ]),
    "cell": (leaderboard.ROW_COLUMNS, 1, [
        ["throughput-aware *", "saturated", "1.880..1.944", "0.512", "0.480..0.551", "12.3", "1000.1", "2.00",
         "10.512"],
    ]),
    "validate": (validate.COLUMNS, 1, [
        ["e2e-qwen3-32b-trtllm-1.2.0rc6-fp8", "128", "128", "12.3%", "100.0%", "+12.3%", "95.0%", "12.3%",
         "mape <= 8%, worst <= 10%, sign >= 95%", "yes"],
    ]),
    "rows": (validate.ROW_COLUMNS, 1, [
        ["batch 128, k 3, context 2048, proposer eagle3", "1.234e+04", "1.234e+04", "1.11e+04..1.32e+04",
         "+12.3%", "no: used in fit"],
    ]),
    "verify": (verify.COLUMNS, 1, [
        ["accepted of what was drafted", "1,234.56", "1,234.56", "±1,234.56", "+12.3%", "10%",
         "cannot tell: the interval is wider than the tolerance"],
    ]),
}  # fmt: skip


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Makes stdout a terminal of some width, and gives what is written there."""

    def of(columns: int) -> io.StringIO:
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stdout", stream)
        for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        return stream

    return of


def lines(stream: io.StringIO) -> list[str]:
    return SHOWN.sub("", stream.getvalue()).splitlines()


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", ROWS)
def test_every_table_fits_and_every_number_that_is_shown_is_whole(
    name: str, columns: int, screen: Callable[[int], io.StringIO]
) -> None:
    heads, left, rows = ROWS[name]
    stream = screen(columns)
    print_table("title", heads, rows, left)
    told = lines(stream)
    assert max(map(len, told)) <= columns
    gone = "".join(told[-3:]).partition("too narrow for ")[2].partition(":")[0].split(", ")
    for i, head in enumerate(heads):
        column = head if isinstance(head, Column) else Column(head)
        if i < left or column.folds or column.name in gone:
            continue
        for row in rows:
            assert any(row[i] in line.split() for line in told if row[i]) or not row[i], (column.name, row[i])


def test_columns_go_by_their_rank_and_texts_get_what_is_free() -> None:
    heads = [Column("name"), Column("a", spare=1), Column("b", spare=2), Column("c")]
    rows = [["one two", "1234", "12345", "1"]]
    assert fit(heads, rows, 1, 24) == {0: 7, 1: 4, 2: 5, 3: 1}  # 17 letters and 3 gaps of 2: 23
    assert fit(heads, rows, 1, 22) == {0: 6, 1: 4, 2: 5, 3: 1}  # the name is folded first
    assert fit(heads, rows, 1, 18) == {0: 7, 1: 4, 3: 1}  # then b goes
    assert fit(heads, rows, 1, 10) == {0: 7, 3: 1}
    assert fit(heads, rows, 1, 3) == {0: 4, 3: 1}  # no spare one is left: too wide, but whole


def test_texts_are_broken_after_commas_and_blanks() -> None:
    assert fold("table:1-321=2,322-=1", 15) == "table:1-321=2,\n322-=1"
    assert fold("used in the fit", 8) == "used in\nthe fit"
    assert fold("a/very/long/path", 6) == "a/very\n/long/\npath"
    assert fold("", 5) == ""


def test_the_chosen_row_has_a_sign_and_not_only_a_color(screen: Callable[[int], io.StringIO]) -> None:
    stream = screen(80)
    print_table("title", ["policy", "K"], [["off", "0"], ["fixed:2", "2"]], marked=1)
    assert [line.split() for line in lines(stream)[-2:]] == [["off", "0"], [">", "fixed:2", "2"]]


def test_a_pipe_gets_aligned_plain_text_whatever_the_columns_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ["policy", Column("K", spare=9)], [["off", "0"], ["fixed:12", "12"]], marked=1)
    assert capsys.readouterr().out == "title\npolicy     K\noff        0\nfixed:12  12\n"
    print_table("", ["fit", "rows"], [["gemm", "12"]], plain="{:<8}{:>6} ", err=True)
    assert capsys.readouterr().err == "fit       rows \ngemm        12 \n"


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize(
    "argv",
    [["policies"], ["profiles"], *(["profiles", kind] for kind in (*KINDS, "workload"))],
    ids=lambda argv: argv[-1],
)
def test_lists_fit(argv: list[str], columns: int, screen: Callable[[int], io.StringIO]) -> None:
    stream = screen(columns)
    assert run(argv) == 0
    assert max(map(len, lines(stream))) <= columns


@pytest.mark.parametrize("columns", WIDTHS)
def test_sentences_are_broken_between_words(columns: int, screen: Callable[[int], io.StringIO]) -> None:
    stream = screen(columns)
    text = "- Run K = 2 (eagle3) on 4 replicas: " + "at 64 QPS the TPOT is 10.56 ms, and K = 3 is worse; " * 4
    prose(text)
    told = lines(stream)
    assert max(map(len, told)) <= columns
    assert " ".join(line.strip() for line in told) == text.strip()
    assert all(line.startswith("  ") for line in told[1:])
    assert not any(line.endswith((" =", " K")) for line in told)


def test_what_may_be_copied_is_one_line(screen: Callable[[int], io.StringIO]) -> None:
    stream = screen(60)
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --config runs/recommend/vllm.yaml --port 8000"
    say(command)
    assert lines(stream) == [command]


@pytest.mark.parametrize(
    ("env", "codes", "rules"),
    [({}, True, True), ({"NO_COLOR": "1"}, False, True), ({"TERM": "dumb"}, False, False)],
)
def test_the_environment_says_how_much_style(env: dict[str, str], codes: bool, rules: bool) -> None:
    shown = on_terminal("simulate", "--policy", "none", env=env)
    table = on_terminal("profiles", "engines", env=env)
    assert shown.code == 2
    assert shown.text.startswith("error: ")
    assert (re.search(r"\x1b\[[0-9;]*3[0-7]m", shown.raw) is not None) is codes
    assert ("─" in table.raw) is rules
    if not rules:
        assert "\x1b" not in shown.raw + table.raw


def test_a_pipe_of_a_terminal_gets_what_any_pipe_gets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profiles", "models"]) == 0
    assert on_terminal("profiles", "models", piped=True).out == capsys.readouterr().out


def test_color_can_be_forced_into_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    print_table("title", ["policy", "K"], [["off", "0"]])
    assert "\x1b[1m" in capsys.readouterr().out


@pytest.fixture(scope="module")
def plan() -> Plan:
    from kplan.config.scenario import make_scenario
    from kplan.search.recommend import recommend

    asked = {"qps": 12.0, "requests": 60, "replications": 2, "max_k": 2}
    return recommend(make_scenario(asked, "test"))


@pytest.mark.parametrize("columns", WIDTHS)
def test_an_answer_on_a_terminal(columns: int, plan: Plan, screen: Callable[[int], io.StringIO]) -> None:
    stream = screen(columns)
    _show(plan, ["wrote plan.json", "vllm 1: vllm serve --config vllm.yaml " + "--flag " * 20])
    told = lines(stream)
    assert max(map(len, told[:-1])) <= columns
    assert _words(told).startswith(plan.answer.words)
    marked = [line.split()[1] for line in told if line.startswith("> ")]
    assert marked == [plan.answer.policy]
    assert told[-2] == "wrote plan.json"
    assert stream.getvalue().startswith("\x1b[1m")


def _words(told: Sequence[str]) -> str:
    return " ".join(line.strip() for line in told)


def test_json_on_a_terminal_has_no_style() -> None:
    shown = on_terminal("profiles", "engines", "--json")
    assert "\x1b" not in shown.raw
    assert shown.text.startswith("{\n")
