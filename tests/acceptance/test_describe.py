"""What describe says of traces: counts made by hand, figures published beside recordings, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.acceptance import TraceSet, load_traces, save_traces
from kplan.acceptance.describe import complementarity, describe
from kplan.cli.app import run
from tests.acceptance.made import set_of, trace_of

# K = 2. Row 1: positions 1..5, of which 4 has room for one draft and 5 for none. Row 2: position 1, no draft.
ROWS = [[1, 3, 1, 2, 2, 1], [1, 1]]


def test_drafts_are_counted_where_the_output_has_room() -> None:
    found = describe(set_of(trace_of(ROWS, 2)))["made"]
    first, second = found["by_draft"]
    # draft 1 at positions 1, 2, 3, 4: right at 1, 3, 4
    assert (first["reached"], first["accepted"], first["conditional"], first["marginal"]) == (
        4,
        3,
        0.75,
        0.75,
    )
    # draft 2 at positions 1, 2, 3, reached at 1 and 3, right at 1
    assert (second["reached"], second["accepted"], second["conditional"]) == (2, 1, 0.5)
    assert second["marginal"] == pytest.approx(1 / 3)
    assert found["position_mean"] == pytest.approx((3 + 1 + 2 + 2 + 1 + 1) / 6)
    assert (found["positions"], found["known_positions"], found["censored_positions"]) == (6, 6, 1)
    assert [(b["from"], b["to"], b["positions"], b["mean"]) for b in found["by_position"]] == [
        (1, 1, 2, 2.0), (2, 3, 2, 1.5), (4, 7, 2, 1.5),
    ]  # fmt: skip


def test_the_walk_stands_beside_the_positions() -> None:
    one = next(row for row in describe(set_of(trace_of(ROWS, 2)))["made"]["walk"] if row["k"] == 2)
    # steps of 3 and 2 tokens in the first request (positions 1, 4), of 1 in the second
    assert one["tokens_per_step"] == pytest.approx(6 / 3)
    assert one["position_tokens"] == pytest.approx(10 / 6)


def test_a_recording_of_steps_is_described_over_its_steps() -> None:
    seen = np.array([0, 3, 0, 0, 3, 0, 0, 1], np.uint8)
    trace = replace(trace_of([[1, 3, 1, 1, 2, 1], [1, 1]], 2), seen=seen)
    found = describe(set_of(trace))["made"]
    assert (found["walk"], found["spread"], found["position_mean"]) == ([], None, None)
    assert found["step_mean"] == pytest.approx((3 + 2 + 1) / 3)
    assert (found["positions"], found["known_positions"], found["censored_positions"]) == (6, 3, 1)
    # the step at 4 has room for one draft, the one of the second request had none
    assert [(row["reached"], row["accepted"]) for row in found["by_draft"]] == [(2, 2), (1, 1)]


def test_pairs_are_counted_on_aligned_rows() -> None:
    one = trace_of([[1, 2, 2, 1, 1], [1, 2, 1]], 3)
    two = trace_of([[1, 3, 1, 2, 1], [1, 2, 1]], 3)
    other = replace(two, aligned=np.array([True, False]))
    traces = replace(set_of(one), proposers={"a": one, "b": other, "c": one})
    (pair,) = complementarity(traces)  # c is an alias of a
    assert (pair["proposers"], pair["requests"], pair["positions"]) == (["a", "b"], 1, 4)
    assert pair["first_accepted"] == [0.5, 0.5]
    assert (pair["both_accepted"], pair["either_accepted"], pair["independent_either"]) == (0.25, 0.75, 0.75)
    assert pair["correlation"] == pytest.approx(0.0)
    assert (pair["means"], pair["better_mean"]) == ([1.5, 1.75], 2.0)


def test_rows_that_never_stand_together_make_no_pair() -> None:
    one, two = trace_of([[1, 2, 1]], 3), trace_of([[1, 2, 1, 1]], 3)
    assert complementarity(replace(set_of(one), proposers={"a": one, "b": two})) == []


def test_the_command_writes_the_page_and_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_of(ROWS, 2)
    offered = trace_of(ROWS, 2, [[0, 2, 2, 2, 2, 2], [0, 0]])
    traces: TraceSet = replace(
        set_of(trace), proposers={"eagle<3>": trace, "ngram": offered}, notes=("a <note>",)
    )
    save_traces(traces, tmp_path / "t.parquet")
    page = tmp_path / "r.html"
    argv = ["traces", "describe", str(tmp_path / "t.parquet"), "--report", str(page)]
    assert run([*argv, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["proposers"]["ngram"]["unmatched_positions"] == 1
    assert record["pairs"][0]["proposers"] == ["eagle<3>", "ngram"]
    html = page.read_text(encoding="utf-8")
    assert "a &lt;note&gt;" in html
    assert "eagle&lt;3&gt;" in html
    assert "<3>" not in html.split("<script>")[0]
    assert all(f'id="chart-{name}"' in html for name in ("drafts", "positions", "walk"))
    assert run(argv) == 0
    assert "first drafts at the same positions" in capsys.readouterr().out
    assert run([*argv[:3], "--report", str(tmp_path / "t.parquet")]) == 2


@pytest.mark.shared
@pytest.mark.parametrize("dataset", ["gsm8k", "instructcoder", "sharegpt"])
def test_conditional_acceptance_is_what_is_published(shared_dir: Path, dataset: str) -> None:
    """acceptance_conditional.csv counts drafts beyond the output's end too (hence the tolerance), and takes a
    draft that a lookup did not offer for a wrong one (hence its shares hold for the head alone)."""
    published = pd.read_csv(shared_dir / "data" / "acceptance_conditional.csv")
    found = describe(load_traces(shared_dir / "data" / "acceptance_traces.parquet", dataset))
    names = {"ngram": "ngram", "ngram_2_5": "ngram-2-5", "suffix": "suffix", "eagle": "eagle3"}
    rows = published[(published["dataset"] == dataset) & (published["filter"] == "all")]
    for row in rows[(rows["draft_pos"] >= 2) & (rows["draft_pos"] <= 5)].itertuples():
        mine = found[names[row.proposer]]["by_draft"][row.draft_pos - 1]
        assert mine["accepted"] == pytest.approx(row.p_accept_given_prev * row.n, rel=0.02), row
        if row.proposer == "eagle":
            assert mine["conditional"] == pytest.approx(row.p_accept_given_prev, abs=0.008), row
