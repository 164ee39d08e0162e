"""Step logs and tables that would take the memory, hide a fault, or be of something else than told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import read_tpot
from tests.latency.test_fit_measured import write_log

STEP = {"step_s": 0.01, "decode_requests": 1, "k": 0, "context": 10}
HEAD = "concurrency,tpot_ms,prompt_tokens,output_tokens"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[" * 100_000, "is not JSON"),
        ('{"step_s": ' + "9" * 5000 + "}", "is not JSON"),
        (json.dumps(STEP | {"k": 255}), "less than or equal to 254"),
        (json.dumps(STEP | {"context": 1e300}), "less than or equal to 1000000000"),
    ],
)
def test_a_step_that_cannot_be_is_named_by_its_line(line: str, told: str, tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text(f"{json.dumps(STEP)}\n{line}\n")
    with pytest.raises(InputError, match=rf"line 2 of steps\.jsonl.*{told}"):
        read_steps(log)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{HEAD}\n1000000000,6,200,200", "less than or equal to 100000"),
        (f"{HEAD}\n1,6,1000000000,200", "less than or equal to 100000000"),
        (f"{HEAD},tpot_ms\n1,6,200,200,7", "'tpot_ms', is there twice"),
        (f"{HEAD}\n1,0.099,9,9\n1,0.09,9,9\n1,7,9,9", "got 0.099, looks like seconds; multiply it by 1000"),
        (f"{HEAD}\n" + "100000,5,9,9\n" * 100 + "1,5,9,9", "'10,000,001', at most 10,000,000 over all rows"),
        (f"{HEAD}\n1,5,9,9\n1,0,0,9", "tpot_ms in line 3 of tpot.csv: got '0'"),
        (f"{HEAD}\n1,5,9", "line 2 of tpot.csv: got '3 cells', the header has 4"),
        (f"{HEAD},k\n1,5,9,9,1", "the row in line 2 of tpot.csv: got '1,5,9,9,1', .*no proposer"),
        (f'{HEAD}\n1,"5,9,9', "3 cells|2 cells"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(text: str, told: str, tmp_path: Path) -> None:
    table = tmp_path / "tpot.csv"
    table.write_text(text)
    with pytest.raises(InputError, match=told):
        read_tpot(table)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    table, log = tmp_path / "tpot.csv", tmp_path / "steps.jsonl"
    table.write_text(f"{HEAD}\n4,6,200,200\n", encoding="utf-8-sig")
    log.write_text(json.dumps(STEP), encoding="utf-8-sig")
    assert read_tpot(table)[0].seconds == pytest.approx(0.006)
    assert read_steps(log)[0].seconds == 0.01


def test_rows_in_another_unit_are_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "steps.jsonl", (1, 16, 128))
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps(step | {"step_s": step["step_s"] / 1000}) for step in steps))
    assert run(["calibrate", "--steps", str(log), "--out", str(tmp_path / "own.yaml"), "--partial"]) == 2
    assert "check the unit of their times" in capsys.readouterr().err
    assert not (tmp_path / "own.yaml").exists()
