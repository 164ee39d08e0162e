"""The JSONL importer: what it reads, what it counts, and one line for everything it cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.acceptance import load_acceptance, load_traces, walk
from kplan.cli.app import run
from kplan.errors import InputError
from tests.acceptance.made import dump, recording_row, write_lines

NAN = float("nan")


def load(tmp_path: Path, *rows: dict[str, Any]) -> Any:
    return load_traces(write_lines(tmp_path / "r.jsonl", [dump(row) for row in rows]))


def test_a_row_becomes_a_trace(tmp_path: Path) -> None:
    found = load(tmp_path, recording_row())
    assert found.prompt_len.tolist() == [5]
    assert found.proposers["eagle3"].acc.tolist() == [1, 3, 2, 1, 2, 1, 1, 1]
    assert found.proposers["ngram"].acc.tolist() == [1, 1, 1, 3, 2, 1, 1, 1]
    # prompt 5 6 7 8 9, output 5 6 7 | ...: the 3-gram [5, 6, 7] matches and what follows it is in the text
    assert found.proposers["ngram"].drafted.tolist()[:5] == [0, 0, 0, 5, 5]
    assert any("8 of 8 positions" in note for note in found.notes)


def test_eagle_is_an_alias_that_says_so(tmp_path: Path) -> None:
    found = load(tmp_path, recording_row())
    assert found.proposers["eagle"] is found.proposers["eagle3"]
    assert any("eagle: alias of the eagle3 recording" in note for note in found.notes)


def test_another_generation_is_kept_unaligned_and_counted(tmp_path: Path) -> None:
    other = recording_row(acc_eagle={"acc_len": [1, 2, 1]})
    found = load(tmp_path, recording_row(), other)
    assert found.proposers["eagle3"].aligned.tolist() == [True, False]
    assert found.proposers["eagle3"].output_len.tolist() == [8, 3]
    assert found.proposers["ngram"].aligned.all()
    assert any(note.startswith("eagle3: 1 rows belong to another generation") for note in found.notes)


def test_acceptance_past_the_end_is_clipped_and_counted(tmp_path: Path) -> None:
    found = load(tmp_path, recording_row(acc_eagle={"acc_len": [1, 3, 2, 1, 2, 9, 9, 9]}))
    assert found.proposers["eagle3"].acc.tolist()[-3:] == [3, 2, 1]
    assert any(note.startswith("eagle3: 3 positions ran past") for note in found.notes)


def test_a_replay_that_disagrees_is_counted_and_the_recording_kept(tmp_path: Path) -> None:
    found = load(tmp_path, recording_row(acc_ngram={"acc_len": [1, 2, 1, 3, 2, 1, 1, 1]}))
    assert found.proposers["ngram"].acc[1] == 2
    assert found.proposers["ngram"].drafted[1] == 1
    assert any("7 of 8 positions" in note for note in found.notes)


def test_without_a_recording_ngram_is_replayed(tmp_path: Path) -> None:
    found = load(tmp_path, recording_row(acc_ngram=None, acc_eagle=None))
    assert list(found.proposers) == ["ngram"]
    assert found.proposers["ngram"].acc.tolist() == [1, 1, 1, 3, 2, 1, 1, 1]


def test_a_loop_is_marked(tmp_path: Path) -> None:
    loop = recording_row(generated_token_ids=[1, 2, 3, 4] * 200, acc_eagle=None, acc_ngram=None)
    plain = recording_row(generated_token_ids=list(range(800)), acc_eagle=None, acc_ngram=None)
    found = load(tmp_path, plain, loop)
    assert found.loopy.tolist() == [False, True]
    assert any(note.startswith("1 rows degenerate") for note in found.notes)


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    found = load(tmp_path, recording_row(acc_medusa={"acc_len": [1]}))
    assert any("acc_medusa" in note for note in found.notes)


def test_progress_is_told_to_the_last_byte(tmp_path: Path) -> None:
    line = dump(recording_row(prompt_token_ids=[5] * 400_000))
    path = write_lines(tmp_path / "r.jsonl", [line, line])
    told: list[tuple[int, int]] = []
    load_acceptance(path, progress=lambda *now: told.append(now))
    size = path.stat().st_size
    assert size == 2 * (len(line) + 1)
    assert told == [(size // 2, size), (size, size), (size, size)]


BAD_ROWS = {
    "negative": ({"acc_eagle": {"acc_len": [1, -2, 1]}}, "acc_eagle.acc_len[1]", "-2"),
    "nan": ({"acc_eagle": {"acc_len": [1, 2, NAN]}}, "acc_eagle.acc_len[2]", "nan"),
    "fraction": ({"acc_eagle": {"acc_len": [1, 1.5]}}, "acc_eagle.acc_len[1]", "1.5"),
    "text": ({"acc_eagle": {"acc_len": [1, "2"]}}, "acc_eagle.acc_len[1]", "2"),
    "null": ({"acc_eagle": {"acc_len": [1, [2]]}}, "acc_eagle.acc_len[1]", "[2]"),
    "truth value": ({"acc_eagle": {"acc_len": [True, 1]}}, "acc_eagle.acc_len[0]", "True"),
    "zero": ({"acc_eagle": {"acc_len": [1, 0]}}, "acc_eagle.acc_len[1]", "0"),
    "above K + 1": ({"acc_eagle": {"acc_len": [1, 22]}}, "acc_eagle.acc_len[1]", "22"),
    "more than a byte": (
        {"acc_ngram": {"acc_len": [1, 300, 1, 1, 1, 1, 1, 1]}},
        "acc_ngram.acc_len[1]",
        "300",
    ),
    "prefill": ({"acc_eagle": {"acc_len": [2, 1]}}, "acc_eagle.acc_len[0]", "2"),
    "short": ({"acc_ngram": {"acc_len": [1, 1]}}, "acc_ngram.acc_len", "2 values"),
    "empty array": ({"acc_eagle": {"acc_len": []}}, "acc_eagle.acc_len", "empty"),
    "no array": ({"acc_eagle": [1, 2]}, "acc_eagle", "acc_len"),
    "no output": ({"generated_token_ids": None}, "generated_token_ids", "no such key"),
    "no id": ({"id": None}, "id", "no such key"),
    "negative token": ({"prompt_token_ids": [1, -1]}, "prompt_token_ids[1]", "-1"),
    "half recorded": ({"acc_eagle": None}, "acc_eagle", "all rows or none"),
}


@pytest.mark.parametrize(("changes", "column", "value"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_gives_file_row_and_column(
    tmp_path: Path, changes: dict[str, Any], column: str, value: str
) -> None:
    with pytest.raises(InputError) as error:
        load(tmp_path, recording_row(), recording_row(**changes))
    message = str(error.value)
    assert message.startswith(f"r.jsonl, row 2, column {column}: ")
    assert value in message
    assert "\n" not in message


BAD_FILES = {
    "truncated": dump(recording_row())[:-30],
    "not JSON": '{"id": nonsense}',
    "an array": '{"id": 1}\n[1, 2]',
    "not UTF-8": None,
    "endless": "{" + '"a":' + "[" * 100_000,
}


@pytest.mark.parametrize("text", BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_gives_one_line_and_leaves_nothing(
    tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_bytes(b'{"id": "\xff\xfe"}\n' if text is None else text.encode())
    out = tmp_path / "out.parquet"
    assert run(["traces", "import", str(source), "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "bad.jsonl, row " in printed.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl"]


@pytest.mark.parametrize(
    ("line", "place"), [(b'{"id": nonsense}', "character 8"), (b'{"id": "\xff"}', "byte 9"), (b"[1]", "1")]
)
def test_the_place_of_a_fault_is_counted_from_one(tmp_path: Path, line: bytes, place: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(dump(recording_row()).encode() + b"\n\n" + line)
    with pytest.raises(InputError) as error:
        load_traces(path)
    assert f"r.jsonl, row 3, column {place}: " in str(error.value)


@pytest.mark.parametrize("content", [b"", b"   \n\n", b"a,b\n1,2\n", b"PAR1 and then nothing"])
def test_what_is_no_trace_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_traces(path)
    assert "odd" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_traces(tmp_path / "none.jsonl")


@pytest.mark.shared
def test_the_shipped_recording_reads_as_its_summary_says(shared_dir: Path) -> None:
    found = load_traces(shared_dir / "data" / "specdecode_bench" / "combined_gsm8k.jsonl")
    eagle = found.proposers["eagle3"]
    assert len(found) == 300
    assert int(eagle.aligned.sum()) == 174
    assert found.loopy is not None
    assert not found.loopy.any()
    # acceptance_summary.csv, gsm8k, all, eagle
    assert walk(eagle, 3).acceptance_length == pytest.approx(2.3994, abs=5e-5)
    assert np.all(eagle.acc[eagle.offsets[:-1]] == 1)
