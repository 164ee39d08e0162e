"""Steps from a CSV: placed where it says, and one line with row and column for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kplan.acceptance import ImportOptions, load_acceptance
from kplan.cli.app import run
from kplan.errors import InputError
from tests.acceptance.made import write_lines

HEAD = "request_id,prompt_len,output_len,position,accepted,drafted"


def load(tmp_path: Path, *lines: str, proposer: str = "eagle3", **options: Any) -> Any:
    path = write_lines(tmp_path / "s.csv", list(lines))
    return load_acceptance(path, options=ImportOptions(proposer, **options))


def test_steps_stand_where_the_file_says(tmp_path: Path) -> None:
    found = load(tmp_path, HEAD, "a,7,6,1,1,3", "a,7,6,4,2,2", "b,8,3,2,0,0", proposer="ngram")
    trace = found.proposers["ngram"]
    assert trace.acc.tolist() == [1, 2, 1, 1, 2, 1, 1, 1, 1]  # the step at 4 is cut: 2 tokens were left
    assert trace.seen.tolist() == [0, 4, 0, 0, 3, 0, 0, 0, 1]
    assert trace.drafted.tolist() == [0, 3, 0, 0, 2, 0, 0, 0, 0]
    assert found.request_id.tolist() == ["a", "b"]
    assert found.prompt_len.tolist() == [7, 8]
    assert trace.recorded_k == 3


def test_order_of_columns_and_further_ones_do_not_matter(tmp_path: Path) -> None:
    head = '\ufeff"drafted", accepted,position,output_len,prompt_len,request_id,when'
    found = load(tmp_path, head, '3,1,1,3,7,"a, b",noon', recorded_k=5)
    assert found.request_id.tolist() == ["a, b"]
    assert found.proposers["eagle3"].seen.tolist() == [0, 4, 0]
    assert found.proposers["eagle3"].recorded_k == 5


def test_progress_is_told_to_the_last_byte(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "s.csv", [HEAD, *(f"r{i},7,6,1,1,3" for i in range(40_000))])
    told: list[tuple[int, int]] = []
    load_acceptance(path, options=ImportOptions("eagle3"), progress=lambda *now: told.append(now))
    size = path.stat().st_size
    assert told == sorted(told)
    assert len(told) == 4  # rows 1, 16,385 and 32,769, and the end
    assert told[-1] == (size, size)


BAD_LINES = {
    "negative": ("a,7,6,3,-1,3", "row 3, column accepted: got '-1'"),
    "nan": ("a,7,6,3,nan,3", "row 3, column accepted: got 'nan'"),
    "fraction": ("a,7,6,3,1.0,3", "row 3, column accepted: got '1.0'"),
    "empty": ("a,7,6,3,,3", "row 3, column accepted: got ''"),
    "huge": ("a,7,6,3,0,99999999999", "row 3, column drafted: got '99999999999'"),
    "above a byte": ("a,7,6,3,0,255", "row 3, column drafted: got '255', an integer in 0..254"),
    "no output": (
        "b,7,2000000000,1,0,3",
        "row 3, column output_len: got '2000000000', an integer in 1..10000000",
    ),
    "no draft": ("a,7,6,3,3,2", "row 3, column accepted: got 3, 2 were drafted"),
    "overlap": ("a,7,6,2,0,3", "row 3, column position: got 2, 3..5 is possible"),
    "past the end": ("a,7,6,6,0,3", "row 3, column position: got 6, 3..5 is possible"),
    "another length": ("a,7,8,3,0,3", "row 3, column output_len: got 8, the request began with 6"),
    "another prompt": ("a,9,6,3,0,3", "row 3, column prompt_len: got 9, the request began with 7"),
    "no name": (",7,6,3,0,3", "row 3, column request_id: got 'nothing'"),
    "truncated": ("a,7,6", "row 3, column 1: got '3 cells', the header has 6"),
    "open quote": ('"a,7,6,3,0,3', "is a quote left open"),
}


@pytest.mark.parametrize(("line", "expected"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named_and_leaves_no_file(
    tmp_path: Path, line: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "s.csv", [HEAD, "a,7,6,1,1,3", line])
    out = tmp_path / "t.parquet"
    assert run(["traces", "import", str(source), "--proposer", "eagle3", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "s.csv" in error
    assert len(error.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["s.csv"]


def test_a_request_in_two_places_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 4, column request_id.*do not stand together"):
        load(tmp_path, HEAD, "a,7,6,1,0,3", "b,7,6,1,0,3", "a,7,6,2,0,3")


def test_a_missing_or_doubled_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s.csv, column drafted: got '0 of it'"):
        load(tmp_path, HEAD.removesuffix(",drafted"), "a,7,6,1,0")
    with pytest.raises(InputError, match=r"s.csv, column accepted: got '2 of it'"):
        load(tmp_path, HEAD + ",accepted", "a,7,6,1,0,3,0")


def test_a_header_alone_holds_no_request(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no request"):
        load(tmp_path, HEAD)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(HEAD.encode() + b"\n\xff,7,6,1,0,3\n")
    with pytest.raises(InputError, match=r"s\.csv: got 'not UTF-8'"):
        load_acceptance(path, options=ImportOptions("eagle3"))
