"""Shipped workloads against what they were fitted on or published as, and a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from kplan.acceptance import compare, load_traces, save_traces, walk
from kplan.acceptance.columns import select
from kplan.cli.app import run
from kplan.errors import InputError
from kplan.workload import available_workloads, load_workload
from tests.acceptance.made import flat_model, set_of

FITTED = [(w, p) for w in ("gsm8k", "instructcoder", "sharegpt") for p in ("eagle3", "ngram", "suffix")]
ISSUE_20780 = {
    "eagle": {2: 2.10, 3: 2.29, 4: 2.39, 5: 2.43, 6: 2.45, 7: 2.47},
    "eagle3": {2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54},
}


@pytest.mark.shared
@pytest.mark.parametrize(("workload", "proposer"), FITTED)
def test_shipped_models_walk_as_the_recordings_do(shared_dir: Path, workload: str, proposer: str) -> None:
    recorded = load_traces(shared_dir / "data" / "acceptance_traces.parquet", workload)
    assert recorded.loopy is not None
    real = select(recorded.proposers[proposer], np.flatnonzero(~recorded.loopy))
    copies = 1_500_000 // len(real.acc)
    model = load_workload(workload).model(proposer).generate(2024, np.tile(real.output_len, copies))
    for row in compare(real, model):
        assert abs(row["acceptance_length_error"]) < 0.02, row
        assert abs(row["lag1_error"]) < 0.05, row
        assert abs(row["request_sd_error"]) < 0.15, row
    if real.drafted is not None and model.drafted is not None:
        for k in (1, 3, 7):
            assert walk(model, k).drafted_per_step == pytest.approx(walk(real, k).drafted_per_step, rel=0.05)


@pytest.mark.parametrize(("proposer", "published"), ISSUE_20780.items())
def test_mtbench_has_the_published_acceptance_lengths(proposer: str, published: dict[int, float]) -> None:
    trace = load_workload("mtbench").traces(31, 8000, proposer).proposers[proposer]
    for k, length in published.items():
        assert walk(trace, k).acceptance_length == pytest.approx(length, rel=0.01), k
    # K = 1 is not published: it must lie under a chain that loses nothing from depth 1 to 2
    first = walk(trace, 1).acceptance_length
    assert 1 + (published[2] - 1) / 2 <= first < published[2]
    assert trace.recorded_k == 7


@pytest.mark.parametrize("workload", ["gsm8k", "instructcoder", "sharegpt"])
def test_eagle_accepts_less_than_eagle3(workload: str) -> None:
    loaded = load_workload(workload)
    for k in (1, 3, 7):
        eagle, eagle3 = (
            walk(loaded.traces(1, 2000, p).proposers[p], k).acceptance_length for p in ("eagle", "eagle3")
        )
        assert eagle < eagle3


@pytest.mark.parametrize(
    ("workload", "median"), [("gsm8k", 2.689), ("instructcoder", 3.611), ("sharegpt", 2.667)]
)
def test_eagle_has_the_published_median(workload: str, median: float) -> None:
    """arXiv:2601.11580 Fig. 7, Llama-3.1-8B, EAGLE: the median request's mean over positions."""
    trace = load_workload(workload).traces(5, 6000, "eagle").proposers["eagle"]
    total = np.add.reduceat(trace.acc.astype(np.int64), trace.offsets[:-1]) - 1
    decoding = trace.output_len > 1
    means = total[decoding] / (trace.output_len[decoding] - 1)
    assert float(np.median(means)) == pytest.approx(median, rel=0.03)


def test_every_shipped_figure_says_where_it_comes_from() -> None:
    lines = available_workloads()
    assert [line.name for line in lines] == ["gsm8k", "instructcoder", "mtbench", "sharegpt"]
    for line in lines:
        workload = load_workload(line.name)
        for proposer in workload.models:
            for source in workload.sources(proposer).values():
                assert source.source
        if line.name == "mtbench":
            assert workload.lengths.provenance.kind == "assumed"


def test_traces_of_a_request_do_not_depend_on_how_many_follow() -> None:
    workload = load_workload("gsm8k")
    few, many = (workload.traces(9, n, "ngram") for n in (3, 40))
    end = few.proposers["ngram"].offsets[-1]
    np.testing.assert_array_equal(few.proposers["ngram"].acc, many.proposers["ngram"].acc[:end])
    np.testing.assert_array_equal(few.prompt_len, many.prompt_len[:3])


def test_constant_lengths_replace_the_sampled_ones() -> None:
    made = load_workload("sharegpt").traces(0, 4, "eagle3", prompt_tokens=7, output_tokens=11)
    assert made.prompt_len.tolist() == [7] * 4
    assert made.proposers["eagle3"].output_len.tolist() == [11] * 4
    with pytest.raises(InputError, match="output tokens: got 0"):
        load_workload("sharegpt").traces(0, 4, "eagle3", output_tokens=0)


@pytest.mark.parametrize(
    ("workload", "proposer", "named"),
    [
        ("mtbench", "ngram", "workload mtbench has eagle, eagle3 (no acceptance of n-gram"),
        ("sharegpt", "draft-model", "has eagle, eagle3, ngram, suffix (no acceptance of a draft model"),
        ("gsm8k", "magic", "has eagle, eagle3, ngram, suffix;"),
    ],
)
def test_a_missing_proposer_names_what_there_is_and_why(workload: str, proposer: str, named: str) -> None:
    with pytest.raises(InputError) as error:
        load_workload(workload).traces(0, 1, proposer)
    assert named in str(error.value)


def test_unknown_workloads_are_refused_with_a_guess() -> None:
    with pytest.raises(InputError, match="did you mean sharegpt"):
        load_workload("sharegtp")
    with pytest.raises(InputError, match="no such file"):
        load_workload("none.yaml")


GOOD = {
    "name": "mine",
    "summary": "",
    "lengths": {
        "probabilities": [0.0, 1.0],
        "prompt_tokens": [1.0, 9.0],
        "output_tokens": [2.0, 8.0],
        "rank_correlation": 0.0,
        "provenance": {"kind": "assumed", "source": "made"},
    },
    "models": {"eagle3": "none.json"},
    "provenance": {"kind": "assumed", "source": "made"},
}


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("colour",), 1, "colour"),
        (("lengths", "probabilities"), [0.0, 0.5], "rise from 0 to 1"),
        (("lengths", "prompt_tokens"), [9.0, 1.0], "non-decreasing"),
        (("lengths", "prompt_tokens"), [0.0, 1.0], "prompt_tokens"),
        (("lengths", "output_tokens"), [1.0, float("nan")], "output_tokens"),
        (("lengths", "rank_correlation"), 2.0, "rank_correlation"),
        (("models",), {}, "models"),
    ],
)
def test_a_bad_workload_file_is_named(
    tmp_path: Path, place: tuple[str, ...], value: object, named: str
) -> None:
    record = json.loads(json.dumps(GOOD))
    target = record
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(record))
    with pytest.raises(InputError) as error:
        load_workload(tmp_path / "w.yaml")
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_yaml_that_is_none_and_a_model_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("a: [")
    with pytest.raises(InputError, match="not YAML"):
        load_workload(tmp_path / "w.yaml")
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.raises(InputError, match="No such file"):
        load_workload(tmp_path / "w.yaml").traces(0, 1, "eagle3")


def test_a_user_makes_a_workload_and_adapts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.parquet"
    save_traces(set_of(flat_model([0.4, 0.8], stay=0.95).generate(1, np.full(40, 60)), "eagle3"), source)
    out = tmp_path / "w"
    assert (
        run(
            ["traces", "workload", str(source), "--name", "mine", "--out", str(out), "--no-holdout", "--json"]
        )
        == 0
    )
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(p.name for p in out.iterdir()) == ["mine-eagle3.json", "mine.yaml"]
    assert len(files) == 2
    workload = load_workload(out / "mine.yaml")
    assert workload.traces(0, 5, "eagle3").proposers["eagle3"].output_len.tolist() == [60] * 5
    argv = ["traces", "adapt", str(out / "mine-eagle3.json"), "--proposer", "eagle", "--source", "a test"]
    argv += ["--lengths", str(out / "mine.yaml"), "--out", str(out / "mine-eagle.json")]
    assert run([*argv, "--acceptance-length", "2=1.8", "--acceptance-length", "4=2.1", "--json"]) == 0
    reached = json.loads(capsys.readouterr().out)["acceptance_lengths"]
    assert [row["reached"] for row in reached] == pytest.approx([1.8, 2.1], rel=0.01)
    assert run([*argv, "--acceptance-length", "two=1.8"]) == 2
    assert run([*argv]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_describe_and_fit_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.parquet"
    trace = flat_model([0.7]).generate(1, np.full(40, 400))
    save_traces(set_of(trace, "eagle3"), source)
    assert run(["traces", "describe", str(source), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["proposers"]["eagle3"]
    row = next(r for r in found["walk"] if r["k"] == 3)
    assert row["tokens_per_step"] == walk(trace, 3).acceptance_length
    assert row["first_accepted"] == pytest.approx(0.7, rel=0.05)
    assert found["positions"] == 40 * 399
    assert run(["traces", "fit", str(source), "--proposer", "ngram", "--out", str(tmp_path / "m.json")]) == 2
    assert "the traces have eagle3" in capsys.readouterr().err
    assert not (tmp_path / "m.json").exists()
