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


def test_every_figure_of_a_lookup_by_hand() -> None:
    """Positions 1..5 of the first request: 3 tokens of 2 drafts, 1 of 2, 2 of 2, no match, and nothing left.
    No match in the third."""
    offered = trace_of([[1, 3, 1, 2, 1, 1], [1], [1, 1]], 2, [[0, 2, 2, 2, 0, 2], [0], [0, 0]])
    found = describe(set_of(offered))["made"]
    assert (found["requests"], found["positions"], found["known_positions"]) == (3, 6, 6)
    assert (found["recorded_k"], found["aligned_rows"]) == (2, 3)
    assert (found["unmatched_positions"], found["censored_positions"]) == (2, 1)
    assert found["position_mean"] == pytest.approx(9 / 6)
    assert [(row["draft"], row["reached"], row["accepted"]) for row in found["by_draft"]] == [
        (1, 3, 2),
        (2, 2, 1),
    ]
    assert [row["marginal"] for row in found["by_draft"]] == [2 / 3, 1 / 3]
    one, two = found["walk"]
    assert (one["k"], two["k"]) == (1, 2)
    # K = 1 from 1: 2 tokens, at 3: 2, at 5: 1; and 1 of the third request
    assert one["tokens_per_step"] == pytest.approx(6 / 4)
    assert one["position_tokens"] == pytest.approx((2 + 1 + 2 + 1 + 1 + 1) / 6)
    assert one["drafted_per_step"] == pytest.approx(3 / 4)
    assert one["first_accepted"] == pytest.approx(2 / 4)
    assert one["oracle_drafted_per_step"] == pytest.approx(2 / 4)
    # K = 2 from 1: 3, at 4: 1, at 5: 1
    assert two["tokens_per_step"] == pytest.approx(6 / 4)
    assert two["drafted_per_step"] == pytest.approx(4 / 4)
    assert two["first_accepted"] == pytest.approx(1 / 4)
    assert two["oracle_drafted_per_step"] == pytest.approx(2 / 4)
    assert (two["request_sd"], found["spread"]["requests"]) == (None, 0)
    assert found["spread"]["quantiles"] == dict.fromkeys(["0.05", "0.25", "0.5", "0.75", "0.95"])


def test_the_spread_is_of_requests_of_ten_steps() -> None:
    """At K = 3 of requests that accept 0, 1 and 2 drafts at every step: 1, 2 and 3 tokens."""
    rows = [[1, *[min(m - at % m, 10 * m - at) for at in range(10 * m)]] for m in (1, 2, 3)]
    found = describe(set_of(trace_of([*rows, [1] * 10], 5)))["made"]["spread"]
    assert (found["k"], found["requests"]) == (3, 3)
    assert list(found["quantiles"].values()) == pytest.approx([1.1, 1.5, 2.0, 2.5, 2.9])
    assert describe(set_of(trace_of(rows, 2)))["made"]["spread"]["k"] == 2


def test_what_was_offered_beyond_k_was_not_verified() -> None:
    trace = trace_of([[1, 3, 1, 1, 1]], 2, [[0, 9, 9, 9, 9]])
    (first, second) = describe(set_of(trace))["made"]["by_draft"]
    assert (first["reached"], second["reached"]) == (3, 1)
    assert second["marginal"] == pytest.approx(1 / 2)


def test_two_that_depend_on_each_other() -> None:
    """First drafts right at 3 and 2 of 5 positions, at one of them both: (1/5 - 6/25) / sqrt(36/625)."""
    one = trace_of([[1, 2, 2, 3, 1, 1]], 3)
    two = trace_of([[1, 2, 1, 1, 2, 1]], 3)
    (pair,) = complementarity(replace(set_of(one), proposers={"b": two, "a": one}))
    assert pair["proposers"] == ["a", "b"]
    assert pair["first_accepted"] == pytest.approx([3 / 5, 2 / 5])
    assert (pair["both_accepted"], pair["either_accepted"]) == pytest.approx((1 / 5, 4 / 5))
    assert pair["independent_either"] == pytest.approx(1 - 2 / 5 * 3 / 5)
    assert pair["correlation"] == pytest.approx(-1 / 6)
    assert pair["means"] == pytest.approx([9 / 5, 7 / 5])
    assert pair["better_mean"] == pytest.approx((2 + 2 + 3 + 2 + 1) / 5)
    (same,) = complementarity(replace(set_of(one), proposers={"a": one, "b": trace_of([[1] * 6], 3)}))
    assert same["correlation"] is None


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
