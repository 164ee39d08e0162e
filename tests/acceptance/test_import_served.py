"""What servers say of a request: steps at their places, the rest unknown, and one line for bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kplan.acceptance import (
    AcceptanceFigures,
    FiguresKind,
    ImportOptions,
    TraceSet,
    load_acceptance,
    load_figures,
    load_traces,
    save_traces,
    walk,
)
from kplan.cli.app import run
from kplan.errors import InputError
from tests.acceptance.made import dump, write_lines
from tests.acceptance.served import aiperf_row, sglang_row, told, vllm_row

NAN = float("nan")


def load(tmp_path: Path, *rows: dict[str, Any], proposer: str = "eagle3", **options: Any) -> Any:
    path = write_lines(tmp_path / "r.jsonl", [dump(row) for row in rows])
    return load_acceptance(path, options=ImportOptions(proposer, **options))


def only(found: TraceSet) -> Any:
    (trace,) = found.proposers.values()
    return trace


def test_steps_without_gaps_are_placed_in_order(tmp_path: Path) -> None:
    # 1 token of the prefill, then steps of 3, 1, 4 tokens: positions 1, 4, 5 of an output of 9
    found = load(tmp_path, vllm_row([2, 0, 3], [3, 3, 3], 9))
    trace = only(found)
    assert trace.acc.tolist() == [1, 3, 1, 1, 1, 4, 1, 1, 1]
    assert trace.seen.tolist() == [0, 4, 0, 0, 4, 4, 0, 0, 0]
    assert (trace.recorded_k, trace.drafted) == (3, None)
    assert (found.prompt_len.tolist(), found.request_id.tolist()) == ([9], ["cmpl-1"])
    assert "3 of 9 positions are known" in found.notes[0]


def test_a_last_step_past_the_end_is_clipped_and_counted(tmp_path: Path) -> None:
    found = load(tmp_path, vllm_row([2, 0, 3], [3, 3, 3], 7))
    assert only(found).acc.tolist() == [1, 3, 1, 1, 1, 2, 1]
    assert only(found).seen.tolist() == [0, 4, 0, 0, 4, 4, 0]
    assert any("1 steps ran past" in note for note in found.notes)


def test_a_step_that_is_not_listed_leaves_its_request_unknown(tmp_path: Path) -> None:
    # 1 + 3 + 1 tokens make 5 and the output has 6: one step had no draft, and nothing says which
    found = load(tmp_path, vllm_row([2, 0], [3, 3], 6), vllm_row([1], [3], 3))
    trace = only(found)
    assert trace.seen.tolist() == [0] * 6 + [0, 4, 0]
    assert trace.acc.tolist() == [1] * 6 + [1, 2, 1]
    assert any("1 of 2 requests could not be placed" in note for note in found.notes)


def test_a_lookup_whose_last_step_was_cut_may_hide_a_step(tmp_path: Path) -> None:
    """Steps of 3 and 4 tokens fill 1 + 3 + 4 = 8; an output of 7 also fits with a step of 1 token between."""
    sure = vllm_row([2, 0], [3, 3], 5)
    unsure = vllm_row([2, 3], [3, 3], 7)
    assert only(load(tmp_path, sure, unsure, proposer="ngram")).seen.tolist() == [0, 4, 0, 0, 4] + [0] * 7
    assert only(load(tmp_path, sure, unsure)).seen.tolist()[5:] == [0, 4, 0, 0, 4, 0, 0]


def test_chunks_place_the_steps_that_drafted(tmp_path: Path) -> None:
    # prefill 1 | no match 1 | 3 drafted, 2 right: 3 | no match 1 | 2 drafted, 2 right: 3
    row = vllm_row([2, 2], [3, 2], 9, chunks=[1, 1, 3, 1, 3])
    found = load(tmp_path, row, proposer="ngram")
    trace = only(found)
    assert trace.seen.tolist() == [0, 1, 4, 0, 0, 1, 3, 0, 0]
    assert trace.acc.tolist() == [1, 1, 3, 1, 1, 1, 3, 1, 1]
    assert trace.drafted.tolist() == [0, 0, 3, 0, 0, 0, 2, 0, 0]
    assert any("2 steps had no draft" in note for note in found.notes)
    assert not any("put first" in note for note in found.notes)


def test_a_request_that_never_had_a_draft_is_placed_too(tmp_path: Path) -> None:
    """vLLM gives null for both lists then; left out, only requests that matched would be known."""
    row = vllm_row([], [], output=4, chunks=[1, 1, 1, 1])
    row["metrics"]["speculative_decoding"] |= {"per_step_accepted": None, "per_step_drafted": None}
    trace = only(load(tmp_path, row, proposer="ngram"))
    assert trace.seen.tolist() == [0, 1, 1, 1]
    assert trace.acc.tolist() == [1, 1, 1, 1]
    assert trace.drafted.tolist() == [0, 0, 0, 0]


def test_one_token_steps_whose_order_is_open_are_counted(tmp_path: Path) -> None:
    # two one-token chunks, one of which drafted in vain: counts are sure, the order is not
    found = load(tmp_path, vllm_row([0, 1], [3, 3], 5, chunks=[1, 1, 1, 2]), proposer="ngram")
    assert only(found).seen.tolist() == [0, 4, 1, 4, 0]
    assert any("1 steps without a draft stand among" in note for note in found.notes)


def test_chunks_may_cut_the_last_step_and_end_in_nothing(tmp_path: Path) -> None:
    found = load(tmp_path, vllm_row([1, 3], [3, 3], 5, chunks=[1, 2, 2, 0]))
    assert only(found).acc.tolist() == [1, 2, 1, 2, 1]
    assert only(found).seen.tolist() == [0, 4, 0, 4, 0]


@pytest.mark.parametrize("chunks", [[1, 4], [3, 2], [5]])
def test_merged_chunks_of_whole_steps_are_placed_in_order(tmp_path: Path, chunks: list[int]) -> None:
    found = load(tmp_path, vllm_row([1, 1], [3, 3], 5, chunks=chunks))
    assert only(found).seen.tolist() == [0, 4, 0, 4, 0]


@pytest.mark.parametrize("chunks", [[1, 4], [3, 2]])
def test_merged_chunks_place_nothing_where_steps_may_be_missing(tmp_path: Path, chunks: list[int]) -> None:
    """Of K = 3 and 2 one step may have been of K = 0: its place cannot be told."""
    found = load(tmp_path, vllm_row([1, 1], [3, 2], 5, chunks=chunks), vllm_row([1], [3], 3))
    assert only(found).seen.tolist() == [0] * 5 + [0, 4, 0]


@pytest.mark.parametrize("chunks", [[2, 3], [1, 2, 1], [1, 1, 3]])
def test_chunks_that_contradict_the_steps_place_nothing(tmp_path: Path, chunks: list[int]) -> None:
    found = load(tmp_path, vllm_row([1, 1], [3, 3], 5, chunks=chunks), vllm_row([1], [3], 3))
    assert only(found).seen.tolist() == [0] * 5 + [0, 4, 0]


def test_sglang_growth_is_placed_when_its_histogram_agrees(tmp_path: Path) -> None:
    # growths 3, 1, 2 after the prefill: 2 and 0 accepted, and a last step that accepted 3 and was cut
    found = load(tmp_path, sglang_row([1, 0, 1, 1], 7, [1, 3, 1, 2]), recorded_k=3)
    assert only(found).acc.tolist() == [1, 3, 1, 1, 1, 2, 1]
    assert only(found).seen.tolist() == [0, 4, 0, 0, 4, 4, 0]


@pytest.mark.parametrize(
    ("histogram", "chunks"),
    [
        ([2, 0, 1], [1, 3, 1, 2]),
        ([0, 1, 2], [1, 3, 1, 2]),
        ([1, 0, 1, 1], [1, 4, 2]),
        ([1, 1, 1], [2, 3, 1, 1]),
    ],
)
def test_sglang_growth_that_its_histogram_denies_is_unknown(
    tmp_path: Path, histogram: list[int], chunks: list[int]
) -> None:
    good = sglang_row([0, 1], 3, [1, 2])
    found = load(tmp_path, sglang_row(histogram, 7, chunks), good, recorded_k=3)
    assert only(found).seen.tolist() == [0] * 7 + [0, 4, 0]


def test_sglang_without_chunks_gives_a_histogram(tmp_path: Path) -> None:
    found = load(tmp_path, sglang_row([4, 3, 2, 1], 21), sglang_row([0, 2], 5))
    assert isinstance(found, AcceptanceFigures)
    assert (found.kind, found.values) == (FiguresKind.HISTOGRAM, (4.0, 5.0, 2.0, 1.0))
    assert (found.steps, found.requests, found.drafted, found.recorded_k) == (12, 2, None, 3)
    assert found.notes == ("K is taken to be 3, the most that a step shows",)
    # 8 of 12 steps accepted one draft or more, 3 two, 1 three
    assert found.marginal.tolist() == pytest.approx([8 / 12, 3 / 12, 1 / 12])
    assert found.acceptance_length == pytest.approx(2.0)
    assert found.every_step_full is None


def test_vllm_summary_gives_a_histogram_that_knows_its_drafts(tmp_path: Path) -> None:
    summary = {"per_step_accepted": None, "per_step_drafted": None}
    row = vllm_row([], [], 9, metrics={"speculative_decoding": told([2, 0, 3], [3, 2, 3], 3, **summary)})
    found = load(tmp_path, row)
    assert (found.values, found.drafted, found.every_step_full) == ((1.0, 0.0, 1.0, 1.0), 8, False)


def test_steps_can_be_pooled_on_request(tmp_path: Path) -> None:
    found = load(tmp_path, vllm_row([2, 0, 3], [3, 3, 3], 9), figures=True)
    assert (found.values, found.drafted, found.every_step_full) == ((1.0, 0.0, 1.0, 1.0), 9, True)


def test_aiperf_records_of_both_levels(tmp_path: Path) -> None:
    detailed = told([2, 0], [3, 3], 3, acceptance_histogram={"0": 1, "2": 1})
    rows = [aiperf_row(None, 4), aiperf_row(detailed, 5, "warmup"), aiperf_row(detailed, 5)]
    found = load(tmp_path, *rows)
    assert only(found).seen.tolist() == [0, 4, 0, 0, 4]
    assert found.prompt_len.tolist() == [550]
    assert any(note.startswith("2 rows carry no acceptance") for note in found.notes)
    plain = told([2, 0], [3, 3], 3, acceptance_histogram={"0": 1, "2": 1}, per_step_accepted=None)
    assert load(tmp_path, aiperf_row(plain, 5)).values == (1.0, 0.0, 1.0, 0.0)


def bad(accepted: list[int], drafted: list[int], **changes: Any) -> dict[str, Any]:
    return {"metrics": {"speculative_decoding": told(accepted, drafted, 3, **changes)}}


HERE = "metrics.speculative_decoding"
BAD_ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "negative": (bad([1], [3], per_step_accepted=[-1]), f"{HERE}.per_step_accepted[0]", "-1"),
    "nan": (bad([1], [3], per_step_accepted=[NAN]), f"{HERE}.per_step_accepted[0]", "nan"),
    "fraction": (bad([1], [3], per_step_drafted=[2.5]), f"{HERE}.per_step_drafted[0]", "2.5"),
    "truth": (bad([1], [3], per_step_drafted=[True]), f"{HERE}.per_step_drafted[0]", "True"),
    "text": (bad([1], [3], per_step_accepted="1"), f"{HERE}.per_step_accepted", "str"),
    "above K": (bad([1], [4]), f"{HERE}.per_step_drafted[0]", "4"),
    "undrafted": (bad([3], [2]), f"{HERE}.per_step_accepted[0]", "2 were drafted"),
    "shorter": (bad([1, 1], [3]), f"{HERE}.per_step_accepted", "2 values"),
    "other histogram": (
        bad([1], [3], acceptance_histogram=[1, 1, 0, 0]),
        f"{HERE}.per_step_accepted",
        "1 steps",
    ),
    "long histogram": (
        bad([1], [3], acceptance_histogram=[0] * 9),
        f"{HERE}.acceptance_histogram",
        "9 values",
    ),
    "K": (bad([1], [3], num_spec_tokens=0), f"{HERE}.num_spec_tokens", "0"),
    "no object": ({"metrics": {"speculative_decoding": 3}}, HERE, "3"),
    "no histogram": (bad([1], [3], acceptance_histogram=None), f"{HERE}.acceptance_histogram", "no such key"),
    "no usage": ({"usage": None}, "usage.prompt_tokens", "no such key"),
    "prompt": ({"usage": {"prompt_tokens": -4, "completion_tokens": 3}}, "usage.prompt_tokens", "-4"),
    "output": ({"usage": {"prompt_tokens": 4, "completion_tokens": NAN}}, "usage.completion_tokens", "nan"),
    "long output": (
        {"usage": {"prompt_tokens": 4, "completion_tokens": 2_000_000_000}},
        "usage.completion_tokens",
        "an integer in 1..10000000",
    ),
    "two choices": ({"choices": [1, 2]}, "choices", "2 choices"),
    "chunk": ({"chunks": [1, -2]}, "chunks[1]", "-2"),
    "no chunk": ({"chunks": [0]}, "chunks", "no token"),
}


@pytest.mark.parametrize(("changes", "column", "value"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_gives_file_row_and_column(
    tmp_path: Path, changes: dict[str, Any], column: str, value: str
) -> None:
    with pytest.raises(InputError) as error:
        load(tmp_path, vllm_row([1], [3], 3), {**vllm_row([1], [3], 3), **changes})
    message = str(error.value)
    assert message.startswith(f"r.jsonl, row 2, column {column}: ")
    assert value in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        (sglang_row([1, 1], 4, [1, 2, 1]), {}, "--recorded-k: got 'nothing'"),
        (vllm_row([1], [3], 3), {"proposer": None}, "kplan traces import FILE --proposer NAME"),
        (vllm_row([1], [3], 3), {"recorded_k": 2}, "--recorded-k: got 2"),
        (vllm_row([], [], 3, metrics=None), {}, "none of 1 rows carries acceptance"),
        (vllm_row([], [], 3), {}, "no step of it verified a draft"),
        (sglang_row([1, 1], 4) | {"meta_info": {"spec_correct_drafts_histogram": [1]}}, {}, "prompt_tokens"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, row: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError) as error:
        load(tmp_path, row, **options)
    assert expected in str(error.value)


def test_a_truncated_line_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [dump(vllm_row([1], [3], 3)), dump(vllm_row([1], [3], 3))[:-9]]
    source, out = write_lines(tmp_path / "r.jsonl", lines), tmp_path / "out.parquet"
    assert run(["traces", "import", str(source), "--proposer", "eagle3", "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "r.jsonl, row 2, column character" in printed.err
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_the_file_keeps_what_is_unknown_and_a_walk_refuses_it(tmp_path: Path) -> None:
    found = load(tmp_path, vllm_row([2, 0], [3, 3], 6), vllm_row([1], [3], 3))
    save_traces(found, tmp_path / "t.parquet")
    again = only(load_traces(tmp_path / "t.parquet"))
    assert again.seen.tolist() == only(found).seen.tolist()
    with pytest.raises(InputError, match=r"got '1 of 9 positions known', a walk needs every position"):
        walk(again, 3)


def test_the_command_writes_figures_as_json_and_refuses_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "s.jsonl", [dump(sglang_row([4, 3, 2, 1], 21))])
    argv = ["traces", "import", str(source), "--proposer", "eagle", "--json", "--out"]
    assert run([*argv, str(tmp_path / "f.parquet")]) == 2
    assert "name a .json file" in capsys.readouterr().err
    assert run([*argv, str(tmp_path / "f.json")]) == 0
    assert '"acceptance_length": 2.0' in capsys.readouterr().out
    assert load_figures(tmp_path / "f.json").values == (4.0, 3.0, 2.0, 1.0)
