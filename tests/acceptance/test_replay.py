"""Request logs replayed: what is read from a log, how it is replayed, and what the server recorded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kplan.acceptance import load_traces, save_traces, walk
from kplan.acceptance import replay as replaying
from kplan.acceptance.replay import NgramRule, Requests, replay_requests
from kplan.acceptance.replay_input import find_roles, load_tokenizer, read_requests
from kplan.acceptance.suffix import SuffixRule
from kplan.errors import InputError

IDS = {"prompt_token_ids": "prompt_token_ids", "generated_token_ids": "generated_token_ids"}


def made(n: int, seed: int = 0) -> Requests:
    draw = np.random.default_rng(seed)
    return Requests(
        request_id=tuple(f"r{i}" for i in range(n)),
        prompts=tuple(draw.integers(0, 4, draw.integers(1, 30)).astype(np.int32) for _ in range(n)),
        outputs=tuple(draw.integers(0, 4, draw.integers(1, 300)).astype(np.int32) for _ in range(n)),
        source="made",
    )


@pytest.mark.parametrize("rule", [NgramRule(k=5), SuffixRule(max_cached_requests=0), SuffixRule()])
def test_workers_change_nothing_and_progress_counts_every_position(rule: NgramRule | SuffixRule) -> None:
    requests, told = made(40), []
    one = replay_requests(requests, rule, workers=1, progress=lambda *now: told.append(now))
    many = replay_requests(requests, rule, workers=3)
    (name, trace), (_, other) = *one.proposers.items(), *many.proposers.items()
    assert name == ("ngram" if isinstance(rule, NgramRule) else "suffix")
    np.testing.assert_array_equal(trace.acc, other.acc)
    np.testing.assert_array_equal(trace.drafted, other.drafted)
    positions = sum(map(len, requests.outputs))
    assert told[-1] == (positions, positions)
    assert [done for done, _ in told] == np.cumsum([len(output) for output in requests.outputs]).tolist()
    assert trace.recorded_k == rule.k


def test_a_replay_is_a_trace_file(tmp_path: Path) -> None:
    traces = replay_requests(made(5), NgramRule(k=6, prompt_lookup_min=2, prompt_lookup_max=4))
    save_traces(traces, tmp_path / "out.parquet")
    read = load_traces(tmp_path / "out.parquet")
    np.testing.assert_array_equal(read.proposers["ngram"].acc, traces.proposers["ngram"].acc)
    assert "prompt_lookup_min=2" in read.provenance.note


def test_a_loop_is_marked() -> None:
    loop = Requests(("a",), (np.array([1], np.int32),), (np.full(600, 7, np.int32),), "made")
    traces = replay_requests(loop, NgramRule())
    assert traces.loopy is not None
    assert traces.loopy.tolist() == [True]
    # Once 27 sevens are known, 7 of them match the first ones and 20 follow: 21 tokens a step from there on.
    assert walk(traces.proposers["ngram"], 20).acceptance_length > 15


def test_outputs_that_the_cache_drops_are_told() -> None:
    one = np.array([1], np.int32)
    four = Requests(("a", "b", "c", "d"), (one,) * 4, (one,) * 4, "made")
    for room, told in ((3, "the last 2 outputs before it"), (4, "every output before it")):
        notes = replay_requests(four, SuffixRule(max_cached_requests=room)).notes
        assert any(told in note for note in notes), notes


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1, 2], [3]], pa.list_(pa.int32())),
        pa.array([[1, 2], [3]], pa.large_list(pa.uint16())),
        pa.chunked_array([[[1, 2]], [[3]]], pa.list_(pa.int64())),
        pa.array(["1 2", "3"]),
        pa.array(["[1, 2]", " [3] "]),
    ],
)
def test_ids_are_read_from_lists_and_from_text(column: Any) -> None:
    table = pa.table({"prompt_token_ids": column, "generated_token_ids": column})
    requests = read_requests(table, IDS, file="log")
    assert [ids.tolist() for ids in requests.outputs] == [[1, 2], [3]]
    assert requests.request_id == ("1", "2")


def test_rows_without_output_are_left_out_and_counted() -> None:
    table = pa.table({"prompt_token_ids": [[1], [], [2]], "generated_token_ids": [[5], [], [6, 7]]})
    requests = read_requests(table, IDS, file="log")
    assert [ids.tolist() for ids in requests.prompts] == [[1], [2]]
    assert requests.request_id == ("1", "3")
    assert requests.notes == ("1 rows without output were left out",)


def test_one_data_set_of_several() -> None:
    table = pa.table(
        {
            "dataset": ["x", "y", "y"],
            "request_id": ["0", "0", "1"],
            "prompt_token_ids": [[1], [2], [3]],
            "generated_token_ids": [[4], [5], [6]],
        }
    )
    roles = find_roles(table.column_names, {}, file="log", text=False)
    assert read_requests(table, roles, file="log").request_id == ("x/0", "y/0", "y/1")
    only = read_requests(table, roles, file="log", dataset="y")
    assert only.request_id == ("0", "1")
    assert [ids.tolist() for ids in only.outputs] == [[5], [6]]
    with pytest.raises(InputError, match="log has x, y"):
        read_requests(table, roles, file="log", dataset="z")


@pytest.mark.parametrize(
    ("prompts", "outputs", "message"),
    [
        ([[1]], [[1, None]], r"row 1, column generated_token_ids\[1\]: got 'null'"),
        ([[1]], [[1, -5]], r"row 1, column generated_token_ids\[1\]: got -5"),
        ([[1], [2**31]], [[1], [1]], r"row 2, column prompt_token_ids\[0\]: got 2147483648"),
        ([[1], []], [[1], [1]], "row 2, column prompt_token_ids: got 'an empty prompt'"),
        ([[1]], [[]], "got '1 requests', at least one with an output"),
        ([[1], None], [[1], [1]], "row 2, column prompt_token_ids: got 'null'"),
        ([[1.0]], [[1]], "lists of integers are needed"),
        ([[1]], [1], "lists of integers are needed"),
        (["1 x"], ["1"], r"row 1, column prompt_token_ids\[1\]: got 'x'"),
        (["1 nan"], ["1"], r"row 1, column prompt_token_ids\[1\]: got 'nan'"),
    ],
)
def test_bad_ids_are_named(prompts: list[Any], outputs: list[Any], message: str) -> None:
    table = pa.table({"prompt_token_ids": prompts, "generated_token_ids": outputs})
    with pytest.raises(InputError, match=message) as caught:
        read_requests(table, IDS, file="log")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "given", "text", "message"),
    [
        (["a"], {}, False, "prompt_token_ids: .*it has a; --columns prompt_token_ids=NAME"),
        (["a"], {"tokens": "a"}, False, "tokens=a"),
        (["a"], {"prompt": "b"}, True, "column b: got 'no such column'"),
        (["prompt", "output"], {}, False, "give its --tokenizer"),
    ],
)
def test_missing_columns_are_named(
    columns: list[str], given: dict[str, str], text: bool, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        find_roles(columns, given, file="log", text=text)


def test_named_columns_win_over_known_ones() -> None:
    roles = find_roles(
        ["prompt_token_ids", "ids", "output_ids"], {"prompt_token_ids": "ids"}, file="log", text=False
    )
    assert roles == {"prompt_token_ids": "ids", "generated_token_ids": "output_ids"}


class Words:
    """Stands in for tokenizers.Tokenizer: a token is a word, its id the word's length."""

    ids: tuple[int, ...]

    @classmethod
    def from_file(cls, path: str) -> Words:
        if Path(path).read_text(encoding="utf-8") != "words":
            raise OSError("expected value at line 1")
        return cls()

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Words]:
        assert not add_special_tokens
        found = [Words() for _ in texts]
        for one, text in zip(found, texts, strict=True):
            one.ids = tuple(map(len, text.split()))
        return found


def test_text_is_turned_into_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("tokenizers")
    package.Tokenizer = Words  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", package)
    file = tmp_path / "tokenizer.json"
    file.write_text("words", encoding="utf-8")
    table = pa.table({"prompt": ["a bb ccc"], "output": ["bb ccc"], "id": [9]})
    roles = find_roles(table.column_names, {}, file="log", text=True)
    requests = read_requests(table, roles, file="log", encode=load_tokenizer(file), tokenizer="words")
    assert [ids.tolist() for ids in (*requests.prompts, *requests.outputs)] == [[1, 2, 3], [2, 3]]
    assert (requests.request_id, requests.tokenizer) == (("9",), "words")
    assert any("chat template" in note for note in requests.notes)
    with pytest.raises(InputError, match="text is needed"):
        read_requests(pa.table({"prompt": [1], "output": ["x"]}), roles | {}, file="log", encode=len)  # type: ignore[arg-type]
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        load_tokenizer(file)
    with pytest.raises(InputError, match="no such file"):
        load_tokenizer(tmp_path / "none.json")


def test_a_missing_tokenizer_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'kplan\[text\]'"):
        load_tokenizer(Path("tokenizer.json"))


@pytest.mark.parametrize(
    ("workers", "cores", "threads"), [(3, 8, 3), (None, 8, 8), (None, None, 1), (1, 8, 1)]
)
def test_as_many_threads_as_asked_for_or_as_there_are_cores(
    workers: int | None, cores: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    pool = ThreadPoolExecutor

    def counted(threads: int) -> ThreadPoolExecutor:
        told.append(threads)
        return pool(1)

    monkeypatch.setattr(replaying, "ThreadPoolExecutor", counted)
    monkeypatch.setattr(replaying.os, "cpu_count", lambda: cores)
    replay_requests(made(2), NgramRule(), workers=workers)
    assert told == [threads]


@pytest.mark.parametrize("workers", [0, -1])
def test_bad_workers_are_refused(workers: int) -> None:
    with pytest.raises(InputError, match="workers"):
        replay_requests(made(1), NgramRule(), workers=workers)


def test_nothing_to_replay_is_refused() -> None:
    with pytest.raises(InputError, match="requests: got 0"):
        replay_requests(Requests((), (), (), "made"), NgramRule())


@pytest.mark.shared
@pytest.mark.parametrize(
    ("low", "high", "acc_column", "drafted_column"),
    [(3, 7, "acc_ngram", "ngram_match_k"), (2, 5, "acc_ngram_2_5", "ngram_2_5_k")],
)
def test_ngram_agrees_with_the_recordings(
    shared_dir: Path, low: int, high: int, acc_column: str, drafted_column: str
) -> None:
    recorded = pd.read_parquet(shared_dir / "data" / "acceptance_traces.parquet")
    table = pa.Table.from_pandas(pd.read_parquet(shared_dir / "data" / "token_ids.parquet"))
    roles = find_roles(table.column_names, {}, file="token_ids", text=False)
    traces = replay_requests(
        read_requests(table, roles, file="token_ids"),
        NgramRule(k=20, prompt_lookup_min=low, prompt_lookup_max=high),
    )
    names = [f"{one}/{other}" for one, other in zip(recorded["dataset"], recorded["request_id"], strict=True)]
    assert traces.request_id.tolist() == names
    trace = traces.proposers["ngram"]
    left = np.concatenate([np.arange(length, 0, -1) for length in trace.output_len])
    acc = np.minimum(np.concatenate(recorded[acc_column].tolist()), left)
    assert trace.drafted is not None
    decode = np.ones(len(acc), np.bool_)
    decode[trace.offsets[:-1]] = False  # the prefill drafts nothing; the recording holds a value there
    offers = np.concatenate(recorded[drafted_column].tolist())
    assert len(acc) > 400_000
    assert np.count_nonzero(trace.acc != acc) <= 1e-4 * len(acc)
    assert np.count_nonzero((trace.drafted != offers) & decode) <= 1e-4 * len(acc)
