"""Request logs: the headers that are known, what is dropped, and faults named by row and column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.errors import InputError
from kplan.workload import load_log

T_S = [0.0, 0.25, 2.0]
PROMPT = [100, 40, 1200]
OUTPUT = [7, 1, 30]

KNOWN = {
    "kplan.csv": "t_s,input_tokens,output_tokens\n5,100,7\n5.25,40,1\n7,1200,30\n",
    "kplan-ms.csv": "t_ms,input_tokens,output_tokens\n5000,100,7\n5250,40,1\n7000,1200,30\n",
    "azure2023.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,100,7\n2023-11-16 18:17:04.2299600,40,1\n"
    "2023-11-16 18:17:05.9799600,1200,30\n",
    "azure2024.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00+00:00,100,7\n2024-05-10 00:00:00.250000+00:00,40,1\n"
    "2024-05-10 00:00:02+00:00,1200,30\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,100,7,107,Conversation log\n5.25,GPT-4,40,1,41,API log\n7,GPT-4,1200,30,1230,API log\n",
    "vidur.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n5,100,7\n5.25,40,1\n7,1200,30\n",
    "windows.csv": "\ufefft_s, input_tokens ,output_tokens\r\n5, 100 ,7\r\n5.25,40,1.0\r\n\r\n7,1.2e3,30\r\n",
    "mooncake.jsonl": '{"timestamp": 5000, "input_length": 100, "output_length": 7, "hash_ids": [0]}\n'
    '{"timestamp": 5250, "input_length": 40, "output_length": 1, "hash_ids": [1]}\n'
    '{"timestamp": 7000, "input_length": 1200, "output_length": 30, "hash_ids": [0, 2, 3]}\n',
    "bailian.jsonl": '{"chat_id": 9, "parent_chat_id": -1, "timestamp": 5.0, "input_length": 100, '
    '"output_length": 7}\n'
    '{"chat_id": 4, "parent_chat_id": -1, "timestamp": 5.25, "input_length": 40, "output_length": 1}\n'
    '{"chat_id": 5, "parent_chat_id": 9, "timestamp": 7.0, "input_length": 1200, "output_length": 30}\n',
    "bench.json": '{"backend": "vllm", "completed": 3, "input_lens": [100, 40, 1200], '
    '"output_lens": [7, 1, 30], "start_times": [5.0, 5.25, 7.0], "errors": ["", "", ""]}\n',
}  # fmt: skip


def written(tmp_path: Path, text: str, name: str = "log.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("zipped", [False, True])
def test_known_logs_read_alike_whatever_their_header_and_unit(
    tmp_path: Path, name: str, zipped: bool
) -> None:
    path = tmp_path / "log"  # the kind is known by content, never by the name
    path.write_bytes(gzip.compress(KNOWN[name].encode()) if zipped else KNOWN[name].encode())
    log = load_log(path)
    np.testing.assert_allclose(log.t_s, T_S, atol=1e-9)
    assert log.prompt_len.tolist() == PROMPT
    assert log.output_len.tolist() == OUTPUT
    assert log.mean_qps == pytest.approx(1.0)


def test_parquet_reads_like_csv_and_keeps_dates_categories_and_lists(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "when": pd.to_datetime(
                ["2026-01-05 10:00:00.00", "2026-01-05 10:00:00.25", "2026-01-05 10:00:02.00"]
            ),
            "input_tokens": np.array(PROMPT, np.uint16),
            "output_tokens": np.array(OUTPUT, np.float32),
            "session_id": pd.Categorical(["a", "b", "a"]),
            "hash_ids_32": [[7, 8, 9], [5], [7, 8, 4]],
        }
    )
    frame.to_parquet(tmp_path / "log.parquet")
    log = load_log(tmp_path / "log.parquet", {"datetime": "when"})
    np.testing.assert_allclose(log.t_s, T_S, atol=1e-9)
    assert log.prompt_len.tolist() == PROMPT
    assert log.follows is not None
    assert log.follows.tolist() == [-1, -1, 0]
    assert log.prefix is not None
    assert log.prefix.ids.tolist() == [0, 1, 2, 3, 0, 1, 4]
    assert log.prefix.offsets.tolist() == [0, 3, 4, 7]


def test_other_headers_are_mapped_and_the_rest_of_a_known_one_stays(tmp_path: Path) -> None:
    path = written(tmp_path, "when,n_in,output_tokens,user\n5000,100,7,x\n5250,40,1,x\n7000,1200,30,x\n")
    log = load_log(path, {"t_ms": "when", "input_tokens": "n_in", "session_id": "user"})
    np.testing.assert_allclose(log.t_s, T_S, atol=1e-9)
    assert log.follows is not None
    assert log.follows.tolist() == [-1, 0, 1]


def test_rows_out_of_order_are_sorted_and_those_without_output_dropped_and_counted(tmp_path: Path) -> None:
    rows = "30,3,3,s\n10,1,0,s\n20,2,2,s\n20,4,4,s\n15,9,9,\n"
    log = load_log(written(tmp_path, "t_s,input_tokens,output_tokens,session_id\n" + rows))
    assert log.t_s.tolist() == [0.0, 5.0, 5.0, 15.0], "time starts at the first that is kept"
    assert log.prompt_len.tolist() == [9, 2, 4, 3], "equal times stay in the file's order"
    assert log.follows is not None
    assert log.follows.tolist() == [-1, -1, 1, 2], "a dropped turn is waited for by nobody"
    assert len(log.notes) == 2
    assert "2 rows" in log.notes[0]
    assert "1 of 5" in log.notes[1]


def test_a_logs_pace_is_stretched_and_its_start_taken(tmp_path: Path) -> None:
    log = load_log(written(tmp_path, KNOWN["mooncake.jsonl"]))
    fast = log.at_rate(4.0)
    np.testing.assert_allclose(fast.t_s, [0.0, 0.0625, 0.5])
    assert fast.mean_qps == pytest.approx(4.0)
    two = log.first(2)
    assert (len(two), two.prompt_len.tolist()) == (2, [100, 40])
    assert two.prefix is not None
    assert two.prefix.offsets.tolist() == [0, 0, 0], "neither prompt fills 512 tokens"
    with pytest.raises(InputError, match="the log has 3"):
        log.first(4)
    with pytest.raises(InputError, match="at once"):
        log.first(1).at_rate(2.0)


def test_hash_ids_keep_whole_units_and_are_renumbered(tmp_path: Path) -> None:
    """1,200 tokens are two whole units of 512 and a third that is not full: its id is dropped."""
    log = load_log(written(tmp_path, KNOWN["mooncake.jsonl"]))
    assert log.prefix is not None
    assert log.prefix.unit_tokens == 512
    assert log.prefix.ids.tolist() == [0, 1]
    assert log.prefix.ids.flags.writeable, "for read-only arrays the whole engine would be compiled again"
    assert log.prefix.offsets.tolist() == [0, 0, 0, 2]
    assert log.notes == ("3 hash ids of the unfilled last unit of a prompt were dropped",)


@pytest.mark.parametrize("lists", [["[3, 7]", "", "[3, 9]"], ["3 7", " ", "3 9"], ["a;b", "[]", "a;c"]])
def test_lists_in_a_csv_are_text(tmp_path: Path, lists: list[str]) -> None:
    frame = pd.DataFrame({"t_s": T_S, "input_tokens": 32, "output_tokens": 1, "hash_ids_16": lists})
    frame.to_csv(tmp_path / "log.csv", index=False)
    log = load_log(tmp_path / "log.csv")
    assert log.prefix is not None
    assert log.prefix.ids.tolist() == [0, 1, 0, 2]
    assert log.prefix.offsets.tolist() == [0, 2, 2, 4]


HEAD = "t_s,input_tokens,output_tokens\n"
GOOD = "1,5,5\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEAD + GOOD + "2,nan,5\n", ["row 2", "input_tokens", "nan", "whole number"]),
        (HEAD + GOOD * 3 + "2,5,-1\n", ["row 4", "output_tokens", "-1"]),
        (HEAD + GOOD + "2,5,1.5\n", ["row 2", "output_tokens", "1.5"]),
        (HEAD + "2,0,5\n", ["row 1", "input_tokens", "'0'", "1 to"]),
        (HEAD + GOOD + "2,10000001,5\n", ["row 2", "input_tokens", "10000001", "10000000"]),
        (HEAD + GOOD + "inf,5,5\n", ["row 2", "t_s", "inf", "1e+15"]),
        (HEAD + GOOD * 9 + "2,five,5\n" + GOOD, ["row 10", "input_tokens", "five"]),
        (HEAD + GOOD + "2,,5\n", ["row 2", "input_tokens", "nothing"]),
        (HEAD + GOOD + "2,5\n", ["Row #2", "Expected 3 columns, got 2"]),
        (HEAD, ["log.csv", "no request"]),
        (HEAD + "\n \n", ["log.csv", "no request"]),
        (HEAD + "1,5,0\n", ["log.csv", "no request with output"]),
        ("", ["log.csv", "empty"]),
        (" \n\n", ["log.csv", "empty"]),
        ("t_s,input_tokens\n1,5\n", ["output_tokens is missing", "--columns"]),
        ("time,tokens\n1,5\n", ["time, tokens", "--columns"]),
        ("t_s,t_s,input_tokens,output_tokens\n1,1,5,5\n", ["two columns t_s"]),
        ("timestamp,input_tokens,output_tokens\n1,5,5\n", ["t_s=NAME", "t_ms"]),
        ("[1, 2]", ["JSON array", "JSONL"]),
        ("\x00\x01\x80binary", ["log.csv", "columns"]),
        ('{"t_s": 1, "input_tokens": 5, "output_tokens": 5}\n{"t_s": 2,\n', ["row 2", "log.csv"]),
        ('{"t_s": 1, "input_tokens": 5, "output_tokens": 5}\n{"t_s": "x"}\n', ["t_s", "row 2"]),
        ('{"t_s": 1, "input_tokens": 5, "output_tokens": 5}\n{"t_s": 2}\n', ["row 2", "column input_tokens"]),
        ('{"t_s": true, "input_tokens": 5, "output_tokens": 5}\n', ["t_s", "type bool"]),
        (KNOWN["azure2023.csv"] + "yesterday,5,5\n", ["row 4", "TIMESTAMP", "yesterday"]),
        (KNOWN["azure2024.csv"] + "2024-05-10 00:00:03,5,5\n", ["row 4", "TIMESTAMP", "zone"]),
        (
            '{"timestamp": 61.114, "input_length": 5, "output_length": 5}\n',
            ["61.114", "whole milliseconds", "t_s=timestamp"],
        ),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1, 2, 3]}\n',
            ["row 1", "hash_ids", "3 ids", "2 units of 512", "hash_ids_N=hash_ids"],
        ),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1, null]}\n',
            ["row 1", "hash_ids", "None"],
        ),
        ('{"timestamp": 1, "input_length": 6, "output_length": 5, "hash_ids": 7}\n', ["hash_ids", "list"]),
        ('{"start_times": [1.0], "input_lens": [1, 2], "output_lens": [1]}\n', ["2 input_lens"]),
        (
            "t_s,input_tokens,output_tokens,hash_ids_16,hash_ids_512\n1,5,5,,\n",
            ["hash_ids_16 and hash_ids_512", "--columns"],
        ),
        (
            '{"t_s": 1, "input_tokens": 5, "output_tokens": 5, "session_id": [1]}\n',
            ["session_id", "type list", "names or numbers"],
        ),
        (
            "t_s,input_tokens,output_tokens,session_id,think_s\n1,5,5,a,\n2,5,5,a,-1\n",
            ["row 2", "think_s", "-1"],
        ),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_file_row_and_column(tmp_path: Path, text: str, named: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load_log(written(tmp_path, text))
    told = str(caught.value)
    assert "\n" not in told
    for part in ("log.csv", *named):
        assert part in told


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"when": "t_s"}, ["when=t_s", "hash_ids_N"]),
        ({"t_s": "t"}, ["column t", "no such column", "input_tokens"]),
        ({"t_s": "t_s", "t_ms": "t_s"}, ["t_s and t_ms", "give one"]),
        ({"hash_ids_0": "t_s"}, ["hash_ids_0"]),
        ({"request_id": "t_s"}, ["request_id", "both are needed"]),
        ({"datetime": "t_s"}, ["row 1", "date and time"]),
    ],
)
def test_columns_that_map_nothing_are_told(tmp_path: Path, columns: dict[str, str], named: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load_log(written(tmp_path, HEAD + GOOD), columns)
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize("data", [b'{"t_s": 1, "\xff": 2}', b"t_s,\xff\n", HEAD.encode() + b"1,\xff,3\n"])
def test_text_that_is_not_utf8_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(InputError, match=r"UTF-?8|CSV header"):
        load_log(tmp_path / "log")


@pytest.mark.parametrize("data", [b"PAR1 and then no parquet", b"\x1f\x8b and then no gzip"])
def test_damaged_files_are_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(InputError, match=r"damaged|not a readable"):
        load_log(tmp_path / "log")
    with pytest.raises(InputError, match="No such file"):
        load_log(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is no file"):
        load_log(tmp_path)


def test_mooncakes_sessions_pause_in_milliseconds_and_a_missing_pause_is_none(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 9, "output_length": 9, "session_id": "a", "delay": None},
        {"timestamp": 5, "input_length": 9, "output_length": 9, "session_id": "a", "delay": 1500},
    ]
    log = load_log(written(tmp_path, "\n".join(map(json.dumps, rows))))
    assert log.think_s is not None
    assert log.think_s.tolist() == [0.0, 1.5]
