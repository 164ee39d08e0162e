"""Small files that would take all memory or all time: each is read or refused, within a GiB and no hang."""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.faults.measured import LIMIT_MIB, measure
from tests.faults.readers import READERS
from tests.faults.seeds import SERVER_LOG, as_json, as_lines

MIB = 2**20
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


def aliases(key: str) -> bytes:
    """Nine levels of nine: 400 million values."""
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join([*lines, f"{key}: *a9"]).encode()


def gzipped(piece: bytes, times: int) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(piece) for _ in range(times)), packer.flush()])


@cache
def rows_without_end() -> bytes:
    """A table of 17 million equal rows, 400 MB of values: run lengths make some kB of it."""
    sink = io.BytesIO()
    names = ("t_s", "input_tokens", "output_tokens")
    table = pa.table(dict.fromkeys(names, pa.array([1.0] * 2**16)))
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        big = pa.concat_tables([table] * 256).combine_chunks()
        writer.write_table(big, row_group_size=len(big))
    return sink.getvalue()


def one_long_text(nested: bool = False) -> bytes:
    """A text of a MiB that 20,000 rows share: 20 GiB when written out."""
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["a" * MIB]))
    texts: pa.Array = shared
    if nested:
        texts = pa.ListArray.from_arrays(pa.array(range(20_001), pa.int32()), shared)
    ids = pa.array([[1, 2]] * 20_000)
    columns = {"request_id": texts, "prompt_token_ids": ids, "generated_token_ids": ids}
    if nested:
        columns = {"prompt_token_ids": texts, "generated_token_ids": ids}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd", store_schema=False)
    return sink.getvalue()


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
DIGITS = b'{"schema_version": 1' + b"0" * 1_000_000 + b"}"
LINE = b"a," * (MIB // 2)
LOG_HEAD = b"t_s,input_tokens,output_tokens\n"
STEP_HEAD = b"request_id,prompt_len,output_len,position,accepted,drafted\n"
VLLM_ROW = {
    "id": "a", "usage": {"prompt_tokens": 9, "completion_tokens": 5}, "choices": [], "chunks": [1, 4],
    "metrics": {
        "speculative_decoding": {
            "acceptance_histogram": [0, 1], "num_spec_tokens": 2 * 10**9, "num_draft_tokens": 2 * 10**9,
        }
    },
}  # fmt: skip
RECORDING = {"prompt_token_ids": [1], "generated_token_ids": [1, 2]}
ITERATION = SERVER_LOG.splitlines()[1].partition("GPU KV")[0].encode()

BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "aliases in a scenario": ("scenario", lambda: aliases("qps")),
    "aliases in a workload": ("workload", lambda: aliases("models")),
    "aliases in a config": ("vLLM config", lambda: aliases("speculative-config")),
    "an alias of itself": ("SGLang config", lambda: b"model-path: &a [*a]"),
    "merges of merges": (
        "scenario",
        lambda: aliases("qps").replace(b"[x]", b"{x: 1}").replace(b" [", b" {<<: [").replace(b"]\n", b"]}\n"),
    ),
    "YAML lists in lists": ("hardware", lambda: b"[" * 100_000),
    "YAML dashes in dashes": ("scenario", lambda: b"qps:\n  " + b"- " * 60_000),
    "YAML objects in objects": ("published table", lambda: b"{a: " * 30_000),
    "YAML of a MiB": ("calibration", lambda: b"- 1\n" * (MIB // 4)),
    "a number in base 60": ("scenario", lambda: b"qps: 1" + b":59" * 40_000),
    "a number in base 16": ("scenario", lambda: b"qps: 0x" + b"f" * 100_000),
    **{
        f"objects in objects, {name}": (name, lambda: DEEP)
        for name in (
            "config.json", "plan", "leaderboard", "baseline", "trace model", "figures", "request log",
            "token ids",
            "SpecDecode-Bench", "vllm", "prompts", "search journal", "SGLang ladder in force",
            "SGLang ladder of a policy", "step log", "answers of a server", "stream of vllm",
        )
    },
    **{
        f"a million digits, {name}": (name, lambda: DIGITS)
        for name in (
            "config.json", "plan", "leaderboard", "baseline", "trace model", "figures", "request log",
            "SpecDecode-Bench", "prompts", "search journal", "SGLang ladder in force", "step log",
            "answers of a server", "stream of sglang",
        )
    },
    **{
        f"one line of a MiB, {name}": (name, lambda: LINE)
        for name in (
            "request log", "token ids", "CSV of steps", "TPOT table", "GEMM table", "step log", "prompts",
            "metrics of vllm", "SpecDecode-Bench", "scenario",
        )
    },
    "a TPOT cell of a MiB": ("TPOT table", lambda: b"concurrency,tpot_ms\n" + b"1" * MIB),
    "a TPOT table of crowds": (
        "TPOT table",
        lambda: b"concurrency,tpot_ms,prompt_tokens,output_tokens\n" + b"100000,5,9,9\n" * 20_000,
    ),
    "a gzip that unpacks to 200 MB": ("request log", lambda: gzipped(b"0" * MIB, 200)),
    "a parquet log of 17 million rows": ("request log", rows_without_end),
    "a parquet table of 17 million rows": ("GEMM parquet table", rows_without_end),
    "a text of a MiB in each row": ("token ids", one_long_text),
    "a list of a text of a MiB in each row": ("token ids", lambda: one_long_text(nested=True)),
    "a key for every line": (
        "request log", lambda: b"".join(b'{"k%d":1}\n' % i for i in range(80_000)),
    ),
    "outputs of ten million tokens": (
        "CSV of steps", lambda: STEP_HEAD + b"".join(b"r%d,9,10000000,1,0,3\n" % i for i in range(40_000)),
    ),
    "two billion drafts a step": ("vllm", lambda: as_json(VLLM_ROW)),
    "one long name of a request": (
        "SpecDecode-Bench",
        lambda: as_lines({"id": "a" * (1 if i else MIB // 2), **RECORDING} for i in range(2000)),
    ),
    "a server's log without line ends": ("step log", lambda: ITERATION * (MIB // len(ITERATION))),
    "labels without end": ("metrics of vllm", lambda: b'vllm:x{a="' + b"\\\\" * (MIB // 2)),
    "metrics of one line": ("metrics of vllm", lambda: b"vllm:x{" + b'a="b",' * (MIB // 6)),
    "a stream without line ends": ("stream of vllm", lambda: b"data:" * (MIB // 5)),
}  # fmt: skip


def test_bombs_are_read_or_refused_within_a_gib(tmp_path: Path) -> None:
    files = []
    for number, (name, make) in enumerate(BOMBS.values()):
        reader = next(one for one in READERS if one.name == name)
        (tmp_path / str(number)).mkdir()
        path = tmp_path / str(number) / reader.file
        path.write_bytes(make())
        assert path.stat().st_size <= 1.2 * MIB, f"{name}: a bomb is a small file"
        files.append((name, path))
    outcomes = dict(zip(BOMBS, measure(files), strict=True))
    broken = {bomb: one for bomb, one in outcomes.items() if one.end not in ("read", "refused")}
    assert not broken
    assert {bomb: one for bomb, one in outcomes.items() if one.grown_mib > LIMIT_MIB} == {}


OF_A_SERVER = ("metrics of", "stream of", "answers of", "error of", "result of", "recording")
"""Readers that are given bytes, or a file that they made themselves."""


def test_what_is_no_file_is_refused_unread(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a device without end, a link to itself, a folder."""
    files = []
    for number, reader in enumerate(READERS):
        if reader.name.startswith(OF_A_SERVER):
            continue
        for kind in ("pipe", *(("device", "link", "folder") if number % 6 == 0 else ())):
            folder = tmp_path / f"{number}-{kind}"
            folder.mkdir()
            path = folder / reader.file
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "device":
                path.symlink_to("/dev/zero")
            elif kind == "link":
                path.symlink_to(path)
            else:
                path.mkdir()
            files.append((reader.name, path))
    outcomes = list(zip(files, measure(files), strict=True))
    told = ("SGLang ladder in force",)  # says it in a finding, and goes on
    bad = {str(path): one for (name, path), one in outcomes if one.end != "refused" and name not in told}
    assert not bad
    assert all(one.grown_mib < 100 for _, one in outcomes)
