"""Every numeric option of the commands that need nothing but this machine, at the edges of what a number is.

The options are read off the command tree. Each value is refused in one line, exit code 2, or gives an answer
that is finite, in a line or in JSON (which has no NaN).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kplan.cli.app import app, run

EDGES = ("nan", "1e-300", str(2**63), "")
"""A few: reading a command line takes a tenth of a second (test_numbers tries all on the schema)."""
NEVER = ("nan", "-1", "")
SMALL = {"--requests": "6", "--max-num-seqs": "2", "--prompt-tokens": "9", "--output-tokens": "3"}
WITH = {
    "--concurrency": {"--concurrency": "2"},
    "--think-s": {"--concurrency": "2"},
    "--ramp-to-qps": {"--qps": "4", "--arrivals": "ramp"},
    "--switch-us": {"--qps": "4", "--proposer": "ngram+eagle3"},
}
"""What an option needs beside it; without an entry a rate."""


def numeric_options(command: str) -> list[str]:
    """Those of ``traces replay``, for one, that take a whole or a real number; --replicas takes auto too."""
    node: Any = get_command(app)
    for name in command.split():
        node = node.commands[name]
    kinds = [(one.opts[0], getattr(one.type_descriptor, "annotation", None)) for one in node.params]
    return [option for option, kind in kinds if kind in (int, float) or option == "--replicas"]


def outcome(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any] | None:
    """The JSON answer, None where the value is refused in one line or the answer is no in one."""
    code = run([*argv, "--json"])
    out, err = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    if code == 2:
        assert err.count("\n") == 1, err
        assert not out
        return None

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    answer: dict[str, Any] = json.loads(out, parse_constant=refuse)
    return answer


@pytest.mark.parametrize("option", numeric_options("simulate"))
def test_an_option_of_simulate(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in EDGES:
        given = SMALL | WITH.get(option, {"--qps": "4"}) | {option: value}
        argv = [part for pair in given.items() for part in pair]
        answer = outcome(capsys, "simulate", *argv)
        if value in NEVER:
            assert answer is None, f"{option} {value} was taken"
        elif answer is not None and answer.get("feasible") is not False:
            assert answer["requests"] >= 1
            assert answer["output_tok_s"] > 0


def test_the_options_of_simulate_are_found() -> None:
    found = numeric_options("simulate")
    assert {"--qps", "--seed", "--gpu-memory-utilization", "--replicas", "--max-k"} <= set(found)


@pytest.mark.parametrize("option", numeric_options("traces replay"))
def test_an_option_of_a_replay(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    row = {"prompt_token_ids": [1, 2, 3, 1, 2, 3, 4], "output_token_ids": [1, 2, 3, 1, 2, 3, 1, 2]}
    log.write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    out = tmp_path / "traces.parquet"
    proposer = "ngram" if option.startswith("--prompt-lookup") else "suffix"
    for value in ("nan", "0", "-1", str(2**63)):
        out.unlink(missing_ok=True)
        argv = ("traces", "replay", str(log), "--proposer", proposer, "--out", str(out), option, value)
        answer = outcome(capsys, *argv)
        assert out.is_file() == (answer is not None)
        assert answer is None or value not in NEVER, f"{option} {value} was taken"


def test_the_options_of_a_replay_are_found() -> None:
    assert {"--k", "--prompt-lookup-max", "--spec-factor"} <= set(numeric_options("traces replay"))
