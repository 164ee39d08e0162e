"""The reference parquet against the figures published beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.acceptance import TraceSet, load_traces, save_traces, walk
from kplan.acceptance.columns import select
from kplan.acceptance.loops import is_loopy
from kplan.errors import InputError

pytestmark = pytest.mark.shared

DATASETS = ("gsm8k", "instructcoder", "sharegpt")
FIGURE_NAMES = {"gsm8k": "GSM8K", "instructcoder": "InstructCoder", "sharegpt": "ShareGPT"}
NAMES = {"ngram": "ngram", "ngram_2_5": "ngram-2-5", "suffix": "suffix", "eagle": "eagle3"}


@pytest.fixture(scope="module")
def recordings(shared_dir: Path) -> dict[str, TraceSet]:
    path = shared_dir / "data" / "acceptance_traces.parquet"
    return {name: load_traces(path, name) for name in DATASETS}


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_published_walk_figure_is_reproduced(
    recordings: dict[str, TraceSet], shared_dir: Path, dataset: str
) -> None:
    summary = pd.read_csv(shared_dir / "data" / "acceptance_summary.csv")
    found = recordings[dataset]
    assert found.loopy is not None
    for row in summary[summary["dataset"] == dataset].itertuples():
        trace = found.proposers[NAMES[row.proposer]]
        if row.filter == "no_loops":
            trace = select(trace, np.flatnonzero(~found.loopy))
        assert len(trace.output_len) == row.requests
        for k in (1, 3, 5, 7, 20):
            stats = walk(trace, k)
            where = (row.proposer, row.filter, k)
            assert stats.acceptance_length == pytest.approx(
                getattr(row, f"walk_tokens_per_step_K{k}"), abs=5.1e-5
            ), where
            assert stats.drafted_per_step == pytest.approx(
                getattr(row, f"drafted_per_step_K{k}"), abs=5.1e-5
            ), where


@pytest.mark.parametrize("dataset", DATASETS)
def test_more_drafts_never_shorten_recorded_steps(recordings: dict[str, TraceSet], dataset: str) -> None:
    for name, trace in recordings[dataset].proposers.items():
        lengths = [walk(trace, k).acceptance_length for k in range(9)]
        assert np.all(np.diff(lengths) >= 0), name


@pytest.mark.parametrize(
    ("dataset", "figure"), [("gsm8k", "GSM8K"), ("instructcoder", "InstructCoder"), ("sharegpt", "ShareGPT")]
)
def test_the_recorded_head_is_eagle3(
    recordings: dict[str, TraceSet], shared_dir: Path, dataset: str, figure: str
) -> None:
    """The rule in heads.py: quartiles over requests lie nearer to EAGLE-3's published box than to EAGLE's."""
    boxes = pd.read_csv(shared_dir / "validation" / "illusion_fig7_request_level_boxplots.csv", comment="#")
    boxes = boxes[(boxes["dataset"] == figure) & (boxes["model"] == "Llama3.1-8B")].set_index("method")
    trace = recordings[dataset].proposers["eagle3"]
    means = [
        trace.acc[a + 1 : b].mean()
        for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)
        if b - a > 1
    ]
    quartiles = np.quantile(means, (0.25, 0.5, 0.75))
    gap = {}
    for head in ("EAGLE", "EAGLE-3"):
        published = boxes.loc[head, ["q1", "median", "q3"]].to_numpy(np.float64)
        gap[head] = float(np.abs(quartiles / published - 1).mean())
    assert gap["EAGLE-3"] < 0.03 < gap["EAGLE"]


def test_anomalies_are_counted(recordings: dict[str, TraceSet]) -> None:
    notes = " | ".join(note for found in recordings.values() for note in found.notes)
    for count in ("126 rows", "92 rows", "241 rows"):  # eagle_aligned = false in each data set
        assert count in notes
    heads = [note for found in recordings.values() for note in found.notes if note.startswith("eagle3: ")]
    clipped = sum(int(note.split()[1]) for note in heads if "ran past" in note)
    assert clipped == 3161
    replayed = [note for found in recordings.values() for note in found.notes if "ran past" in note]
    assert not any(note.startswith(("ngram-2-5: ", "suffix: ")) for note in replayed)  # clipped when made
    assert [int(found.loopy.sum()) for found in recordings.values() if found.loopy is not None] == [0, 6, 5]


def test_rows_stand_together_where_they_are_of_one_generation(
    recordings: dict[str, TraceSet], shared_dir: Path
) -> None:
    """A head's row is aligned when it is as long as the token ids, which every lookup's row is."""
    ids = pd.read_parquet(shared_dir / "data" / "token_ids.parquet")
    for dataset, found in recordings.items():
        tokens = ids[ids["dataset"] == dataset].set_index("request_id").loc[found.request_id.tolist()]
        lengths = tokens["generated_token_ids"].map(len).to_numpy()
        assert found.prompt_len.tolist() == tokens["prompt_token_ids"].map(len).tolist()
        for name in ("ngram", "ngram-2-5", "suffix"):
            assert found.proposers[name].output_len.tolist() == lengths.tolist()
            assert found.proposers[name].aligned.all()
        head = found.proposers["eagle3"]
        assert head.aligned.tolist() == (head.output_len == lengths).tolist()


def test_import_keeps_every_array(recordings: dict[str, TraceSet], tmp_path: Path) -> None:
    save_traces(recordings["gsm8k"], tmp_path / "t.parquet")
    found = load_traces(tmp_path / "t.parquet")
    for name, trace in recordings["gsm8k"].proposers.items():
        np.testing.assert_array_equal(found.proposers[name].acc, trace.acc)
    assert found.notes == recordings["gsm8k"].notes


def test_all_data_sets_together_have_distinct_names(shared_dir: Path) -> None:
    found = load_traces(shared_dir / "data" / "acceptance_traces.parquet")
    assert len(set(found.request_id.tolist())) == len(found) == 1110


def test_an_unknown_data_set_names_those_there_are(shared_dir: Path) -> None:
    with pytest.raises(InputError, match="gsm8k, instructcoder, sharegpt"):
        load_traces(shared_dir / "data" / "acceptance_traces.parquet", "mtbench")


def test_loops_are_found_from_the_tokens(shared_dir: Path) -> None:
    data = shared_dir / "data"
    columns = ["dataset", "request_id", "output_len", "hit_max_len", "loopy", "acc_ngram"]
    marked = pd.read_parquet(data / "acceptance_traces.parquet", columns=columns)
    ids = pd.read_parquet(data / "token_ids.parquet")
    both = marked.merge(ids, on=["dataset", "request_id"])
    assert len(both) == 1110
    found = both[[is_loopy(tokens) for tokens in both["generated_token_ids"]]]
    labelled = both[both["loopy"]]
    # The 11 rows that the column marks are those at the limit, and long ones that a lookup foretells in full.
    full = np.array(
        [np.mean(acc[:n] == 21) for acc, n in zip(both["acc_ngram"], both["output_len"], strict=True)]
    )
    told = both["hit_max_len"] | ((both["output_len"] > 1000) & (full > 0.5))
    assert both[told].index.tolist() == labelled.index.tolist()
    assert int(labelled["hit_max_len"].sum()) == 9
    assert set(labelled.index) <= set(found.index)
    more = found.drop(labelled.index)
    assert sorted(zip(more["dataset"], more["request_id"], strict=True)) == [
        ("sharegpt", "161"),
        ("sharegpt", "271"),
    ]
    shares = {row.request_id: repeated(row.generated_token_ids) for row in more.itertuples()}
    assert shares == {"161": pytest.approx(0.245, abs=1e-3), "271": pytest.approx(0.512, abs=1e-3)}


def repeated(tokens: Sequence[int]) -> float:
    """Share of the windows of 32 tokens that had occurred before."""
    windows = [tuple(tokens[at : at + 32]) for at in range(len(tokens) - 31)]
    return 1 - len(set(windows)) / len(windows)
