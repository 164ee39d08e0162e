"""Whatever is read, damaged in the same five ways: one line that names the place, and no file is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kplan.acceptance import save_traces
from kplan.cli.app import run
from tests.acceptance.made import dump, recording_row, set_of, trace_of
from tests.acceptance.served import aiperf_row, bench_result, sglang_row, told, vllm_row
from tests.acceptance.test_reference_damage import frame

NAN = float("nan")
IMPORT, EAGLE = ("traces", "import"), ("--proposer", "eagle3")
FIT = ("traces", "fit", "--proposer", "ngram")
REPLAY = ("traces", "replay", "--proposer", "ngram")

Write = Callable[[Path], None]


def lines(*rows: dict[str, Any], cut: int = 0) -> Write:
    """JSONL of ``rows``, without the last ``cut`` bytes."""
    whole = "\n".join(dump(row) for row in rows)
    return text(whole[: len(whole) - cut], kind=".jsonl")


def text(*rows: str, kind: str = ".csv") -> Write:
    def write(path: Path) -> None:
        path.with_suffix(kind).write_text("\n".join(rows), encoding="utf-8")

    return write


def table(make: Callable[[], pd.DataFrame | pa.Table], cut: int = 0) -> Write:
    """Parquet, without the last ``cut`` bytes."""

    def write(path: Path) -> None:
        made, file = make(), path.with_suffix(".parquet")
        pq.write_table(pa.Table.from_pandas(made) if isinstance(made, pd.DataFrame) else made, file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size - cut])

    return write


def own(cut: int = 0, **columns: pa.Array) -> Write:
    """kplan's own file of one request with three tokens, with other ``columns``."""

    def write(path: Path) -> None:
        file = path.with_suffix(".parquet")
        save_traces(set_of(trace_of([[1, 2, 1]], 4, [[0, 3, 3]]), "ngram"), file)
        made = pq.read_table(file)
        for name, values in columns.items():
            column = name.replace("_at_", ".")
            made = made.set_column(made.column_names.index(column), column, values)
        pq.write_table(made, file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size - cut])

    return write


def bytes_of(*rows: list[int]) -> pa.Array:
    return pa.array(rows, pa.large_list(pa.uint8()))


def vllm(**changes: Any) -> dict[str, Any]:
    return vllm_row([1], [3], 3, metrics={"speculative_decoding": told([1], [3], 3, **changes)})


def sglang(**meta: Any) -> dict[str, Any]:
    row = sglang_row([0, 1], 3)
    return {**row, "meta_info": {**row["meta_info"], **meta}}


def aiperf(**changes: Any) -> dict[str, Any]:
    return aiperf_row(told([1], [3], 3, **changes), 3)


def request(**changes: Any) -> dict[str, Any]:
    return {"id": "b", "prompt_token_ids": [1, 2], "generated_token_ids": [1, 2], **changes}


def ids(prompt: Any, output: Any) -> Callable[[], pa.Table]:
    return lambda: pa.table({"prompt_token_ids": prompt, "generated_token_ids": output})


def fractions() -> pd.DataFrame:
    return frame().assign(acc_ngram=[[1.0, 2.0, 1.0], [1.0, NAN, 1.0]])


HEAD = "request_id,prompt_len,output_len,position,accepted,drafted"
PER_STEP = "column metrics.speculative_decoding.per_step"
SHARES = "spec_decode_per_position_acceptance_rates"
PAIR = '{"id": "a", "prompt_token_ids": [1, 2], "generated_token_ids": [1, 2]}'

CASES: dict[str, tuple[tuple[str, ...], Write, str]] = {
    "specdecode-bench, truncated": (
        IMPORT,
        lines(recording_row(), recording_row(), cut=30),
        "row 2, column character",
    ),
    "specdecode-bench, nan": (
        IMPORT,
        lines(recording_row(acc_eagle={"acc_len": [1, NAN]})),
        "acc_eagle.acc_len[1]: got 'nan'",
    ),
    "specdecode-bench, negative": (
        IMPORT,
        lines(recording_row(generated_token_ids=[-3])),
        "generated_token_ids[0]: got -3",
    ),
    "specdecode-bench, dtype": (
        IMPORT,
        lines(recording_row(prompt_token_ids=[1.5])),
        "prompt_token_ids[0]: got '1.5'",
    ),
    "specdecode-bench, short": (
        IMPORT,
        lines(recording_row(acc_ngram={"acc_len": [1, 1]})),
        "got '2 values', its output has 8",
    ),
    "vllm, truncated": (IMPORT + EAGLE, lines(vllm(), vllm(), cut=9), "row 2, column character"),
    "vllm, nan": (IMPORT + EAGLE, lines(vllm(per_step_accepted=[NAN])), f"{PER_STEP}_accepted[0]: got 'nan'"),
    "vllm, negative": (
        IMPORT + EAGLE,
        lines({**vllm(), "usage": {"prompt_tokens": 9, "completion_tokens": -3}}),
        "usage.completion_tokens: got '-3'",
    ),
    "vllm, dtype": (IMPORT + EAGLE, lines(vllm(per_step_drafted="3")), f"{PER_STEP}_drafted: got 'str'"),
    "vllm, short": (IMPORT + EAGLE, lines(vllm(per_step_drafted=[])), f"{PER_STEP}_accepted: got '1 values'"),
    "sglang, truncated": (IMPORT + EAGLE, lines(sglang(), sglang(), cut=9), "row 2, column character"),
    "sglang, nan": (
        IMPORT + EAGLE,
        lines(sglang(spec_correct_drafts_histogram=[0, NAN])),
        "histogram[1]: got 'nan'",
    ),
    "sglang, negative": (IMPORT + EAGLE, lines(sglang(completion_tokens=-3)), "completion_tokens: got '-3'"),
    "sglang, dtype": (
        IMPORT + EAGLE,
        lines(sglang(spec_correct_drafts_histogram="01")),
        "histogram: got 'str'",
    ),
    "sglang, short": (
        IMPORT + EAGLE,
        lines(sglang(spec_correct_drafts_histogram=[])),
        "nothing in the recording tells the drafts",
    ),
    "aiperf, truncated": (IMPORT + EAGLE, lines(aiperf(), aiperf(), cut=9), "row 2, column character"),
    "aiperf, nan": (IMPORT + EAGLE, lines(aiperf(num_draft_tokens=NAN)), "num_draft_tokens: got 'nan'"),
    "aiperf, negative": (IMPORT + EAGLE, lines(aiperf(completion_tokens=-3)), "completion_tokens: got '-3'"),
    "aiperf, dtype": (
        IMPORT + EAGLE,
        lines(aiperf(acceptance_histogram=7)),
        "acceptance_histogram: got 'int'",
    ),
    "aiperf, short": (
        IMPORT + EAGLE,
        lines(aiperf(per_step_accepted=[])),
        "per_step_accepted: got '0 values'",
    ),
    "csv, truncated": (IMPORT + EAGLE, text(HEAD, "a,7,6,1,1,3", "a,7,6"), "row 3, column 1: got '3 cells'"),
    "csv, nan": (IMPORT + EAGLE, text(HEAD, "a,7,6,1,nan,3"), "row 2, column accepted: got 'nan'"),
    "csv, negative": (IMPORT + EAGLE, text(HEAD, "a,7,-6,1,1,3"), "row 2, column output_len: got '-6'"),
    "csv, dtype": (IMPORT + EAGLE, text(HEAD, "a,7,6,1,1.0,3"), "row 2, column accepted: got '1.0'"),
    "csv, short": (
        IMPORT + EAGLE,
        text(HEAD.removesuffix(",drafted"), "a,7,6,1,1"),
        "column drafted: got '0 of it'",
    ),
    "bench totals, truncated": (
        IMPORT + EAGLE,
        lines(bench_result([0.6], 10, 10, 6), cut=9),
        "row 1, column character",
    ),
    "bench totals, nan": (IMPORT + EAGLE, lines(bench_result([NAN], 10, 10, 6)), f"{SHARES}[0]: got 'nan'"),
    "bench totals, negative": (
        IMPORT + EAGLE,
        lines(bench_result([0.6], 10, 10, 6, completed=-1)),
        "completed: got '-1'",
    ),
    "bench totals, dtype": (
        IMPORT + EAGLE,
        lines(bench_result([0.6], 10, 10, 6, **{SHARES: "0.6"})),
        f"{SHARES}: got '0.6'",
    ),
    "bench totals, short": (
        IMPORT + EAGLE,
        lines(bench_result([0.6], 10, 20, 8)),
        f"{SHARES}: got 'a sum of 0.6'",
    ),
    "reference parquet, truncated": (IMPORT, table(frame, cut=20), "not a readable parquet file"),
    "reference parquet, nan": (
        IMPORT,
        table(lambda: frame(eagle_len=NAN)),
        "row 2, column eagle_len: got 'nan'",
    ),
    "reference parquet, negative": (
        IMPORT,
        table(lambda: frame(output_len=-3)),
        "row 2, column output_len: got '-3'",
    ),
    "reference parquet, dtype": (IMPORT, table(fractions), "row 1, column acc_ngram[0]: got '1.0'"),
    "reference parquet, short": (
        IMPORT,
        table(lambda: frame(acc_ngram=[1])),
        "row 2, column acc_ngram: got '1 values'",
    ),
    "fit, truncated": (FIT, own(cut=20), "not a readable parquet file"),
    "fit, nan": (FIT, own(ngram_at_acc=pa.array([[1.0, NAN, 1.0]])), "column ngram.acc: got 'list<"),
    "fit, negative": (FIT, own(prompt_len=pa.array([-4], pa.int32())), "row 1, column prompt_len: got -4"),
    "fit, dtype": (FIT, own(ngram_at_acc=pa.array([["1", "2"]])), "column ngram.acc: got 'list<"),
    "fit, short": (
        FIT,
        own(ngram_at_drafted=bytes_of([0, 3])),
        "row 1, column ngram.drafted: got '2 values'",
    ),
    "replay jsonl, truncated": (REPLAY, lines(request(), request(), cut=5), "a line that is no request"),
    "replay jsonl, nan": (REPLAY, lines(request(prompt_token_ids=[NAN, 2])), "prompt_token_ids"),
    "replay jsonl, negative": (
        REPLAY,
        lines(request(generated_token_ids=[1, -2])),
        "row 1, column generated_token_ids[1]: got -2",
    ),
    "replay jsonl, dtype": (
        REPLAY,
        lines(request(generated_token_ids=[1.5])),
        "lists of integers are needed",
    ),
    "replay jsonl, short": (REPLAY, lines(request(prompt_token_ids=[])), "prompt_token_ids"),
    "replay csv, truncated": (
        REPLAY,
        text("prompt_token_ids,generated_token_ids", "1 2,1 2", "1 2"),
        "columns",
    ),
    "replay csv, nan": (
        REPLAY,
        text("prompt_token_ids,generated_token_ids", "1 nan,1 2"),
        "prompt_token_ids[1]: got 'nan'",
    ),
    "replay csv, negative": (
        REPLAY,
        text("prompt_token_ids,generated_token_ids", "1 2,-1 2"),
        "generated_token_ids[0]: got '-1'",
    ),
    "replay csv, dtype": (
        REPLAY,
        text("prompt_token_ids,generated_token_ids", "1 2,1.5"),
        "generated_token_ids",
    ),
    "replay csv, short": (REPLAY, text("prompt_token_ids,generated_token_ids", "[],1 2"), "an empty prompt"),
    "replay parquet, truncated": (REPLAY, table(ids([[1]], [[1]]), cut=20), "parquet"),
    "replay parquet, nan": (REPLAY, table(ids([[1.0, NAN]], [[1]])), "lists of integers are needed"),
    "replay parquet, negative": (
        REPLAY,
        table(ids([[1]], [[1, -5]])),
        "row 1, column generated_token_ids[1]: got -5",
    ),
    "replay parquet, dtype": (REPLAY, table(ids([["1"]], [[1]])), "lists of integers are needed"),
    "replay parquet, short": (
        REPLAY,
        table(ids([[1], []], [[1], [1]])),
        "row 2, column prompt_token_ids: got 'an empty prompt'",
    ),
}


@pytest.mark.parametrize(("command", "write", "expected"), CASES.values(), ids=CASES)
def test_damage_is_told_in_one_line_and_leaves_no_file(
    command: tuple[str, ...], write: Write, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(tmp_path / "log")
    (source,) = tmp_path.glob("log.*")
    assert run([*command[:2], str(source), *command[2:], "--out", str(out / "made")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert len(printed.err.splitlines()) == 1
    assert list(out.iterdir()) == []
