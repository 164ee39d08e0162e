"""Fits on the steps of a server: what made the steps is found again, beyond the walk that was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kplan.acceptance import (
    ProposerTrace,
    TraceModel,
    TraceSet,
    load_model,
    load_traces,
    save_model,
    walk,
    walk_shape,
)
from kplan.acceptance import fit_steps as fitting
from kplan.acceptance.columns import select
from kplan.acceptance.fit_steps import fit_steps, known_steps
from kplan.acceptance.judge import Lenders, fit_judged, halves, kept_rows
from kplan.acceptance.lent import Lent
from kplan.acceptance.match_steps import Shown
from kplan.acceptance.statistics import compare, recorded_k_at, shape_of, walk_steps
from kplan.errors import InputError
from kplan.workload import load_workload
from kplan.workload.figures import figures_of, known_by, lenders, plausible
from tests.acceptance.made import flat_model, set_of, steps_of, trace_of

REQUESTS = 600
LENGTHS = load_workload("gsm8k").sample_lengths(12, REQUESTS)[1]


def lent(name: str) -> dict[str, TraceModel]:
    workload, _, proposer = name.partition("-")
    return {name: load_workload(workload).model(proposer)}


def recorded(truth: TraceModel, k: int, lengths: np.ndarray = LENGTHS) -> TraceSet:
    return set_of(steps_of(truth.generate(31, lengths), k), truth.proposer)


def assert_alike(found: ProposerTrace, wanted: ProposerTrace, most_k: int) -> None:
    """Within 2%, .05 and 15% at every K up to that of the recording."""
    for k in range(1, most_k + 1):
        a, b = walk_shape(wanted, k), walk_shape(found, k)
        assert b.acceptance_length == pytest.approx(a.acceptance_length, rel=0.02), k
        assert b.lag1 == pytest.approx(a.lag1, abs=0.05), k
        assert b.request_sd == pytest.approx(a.request_sd, rel=0.15), k


@pytest.mark.parametrize(
    ("proposer", "k", "lender"),
    [("eagle3", 3, "sharegpt-eagle3"), ("eagle3", 7, "sharegpt-eagle3"), ("ngram", 5, "sharegpt-ngram")],
)
def test_steps_at_one_k_give_back_what_made_them_at_every_smaller_k(
    proposer: str, k: int, lender: str
) -> None:
    """Recorded on GSM8K's model, fitted with the model of another workload, judged on other requests."""
    truth = load_workload("gsm8k").model(proposer)
    model = fit_steps(recorded(truth, k), proposer, lent(lender))
    many = np.resize(LENGTHS, 8 * REQUESTS)
    assert_alike(model.generate(1, many), truth.generate(2, many), k)
    assert (model.known_k, model.proposer, model.provenance.kind) == (k, proposer, "fitted")
    assert model.facts["like"] == lender
    assert model.facts["k"] == [k]


def test_a_lookup_drafts_as_often_as_recorded() -> None:
    truth = load_workload("gsm8k").model("suffix")
    model = fit_steps(recorded(truth, 5), "suffix", lent("sharegpt-suffix"))
    many = np.resize(LENGTHS, 8 * REQUESTS)
    for k in (1, 3, 5):
        found, wanted = walk(model.generate(1, many), k), walk(truth.generate(2, many), k)
        assert found.drafted_per_step == pytest.approx(wanted.drafted_per_step, rel=0.04)


@pytest.mark.shared
def test_steps_of_half_a_recording_tell_the_other_half(shared_dir: Path) -> None:
    traces = load_traces(shared_dir / "data/acceptance_traces.parquet", "instructcoder")
    trace = traces.proposers["eagle3"]
    seen, unseen = halves(trace, kept_rows(traces))
    model = fit_steps(set_of(steps_of(select(trace, seen), 5), "eagle3"), "eagle3", lent("gsm8k-eagle3"))
    wanted = select(trace, unseen)
    assert_alike(model.generate(1, np.tile(wanted.output_len, 20)), wanted, 5)


def test_a_k_by_the_load_is_walked_as_it_was_recorded() -> None:
    """Ks of 1 and 4 by turns of 32 positions."""
    truth = load_workload("gsm8k").model("eagle3")
    trace = truth.generate(3, LENGTHS)
    asked = np.where(np.arange(len(trace.acc)) // 32 % 2, 4, 1).astype(np.uint8)
    model = fit_steps(set_of(steps_of(trace, asked), "eagle3"), "eagle3", lent("sharegpt-eagle3"))
    assert (model.facts["k"], model.known_k) == ([1, 4], 4)
    many = np.resize(LENGTHS, 8 * REQUESTS)
    assert_alike(model.generate(1, many), truth.generate(2, many), 4)


def test_a_k_that_follows_acceptance_is_refused() -> None:
    """After a step that accepted its first draft the server asks for 5 drafts, else for 1."""
    trace = flat_model([0.6]).generate(3, np.full(60, 200))
    acc, seen = np.ones_like(trace.acc), np.zeros_like(trace.acc)
    for start in trace.offsets[:-1]:
        c, k = 1, 1
        while c < 200:
            acc[start + c] = min(int(trace.acc[start + c]), k + 1, 200 - c)
            seen[start + c] = k + 1
            c, k = c + int(acc[start + c]), 5 if acc[start + c] > 1 else 1
    steps = replace(trace, acc=acc, seen=seen, recorded_k=5)
    with pytest.raises(InputError, match="record with a fixed K"):
        fit_steps(set_of(steps), "made", lent("sharegpt-eagle3"))


def test_requests_whose_steps_are_not_all_known_are_left_out_and_counted() -> None:
    trace = steps_of(flat_model([0.5]).generate(0, np.full(40, 60)), 3)
    assert trace.seen is not None
    seen, acc = trace.seen.copy(), trace.acc.copy()
    seen[: trace.offsets[5]] = 0  # five requests that could not be placed
    acc[: trace.offsets[5]] = 1
    seen[trace.offsets[6] + 1] = 0  # one whose first step is missing
    traces = set_of(replace(trace, seen=seen, acc=acc))
    assert known_steps(traces, "made").tolist() == [5, *range(7, 40)]
    loopy = np.zeros(40, np.bool_)
    loopy[39] = True
    assert known_steps(replace(traces, loopy=loopy), "made").tolist() == [5, *range(7, 39)]
    assert known_steps(replace(traces, loopy=loopy), "made", keep_loopy=True)[-1] == 39
    model = fit_steps(traces, "made", lent("gsm8k-eagle3"))
    assert (model.facts["requests"], model.facts["requests_left_out"]) == (34, 6)


def test_steps_are_known_where_they_are_those_of_a_walk() -> None:
    """A walk of two steps; one with a step beside it, past the end, not begun, broken off; one token."""
    rows = [[1, 2, 1, 1], [1, 2, 1, 1], [1, 2, 1, 2], [1, 1, 1, 1], [1, 2, 1, 1], [1]]
    seen = [[0, 3, 0, 1], [0, 3, 1, 1], [0, 3, 0, 3], [0, 0, 1, 1], [0, 3, 0, 0], [0]]
    trace = replace(trace_of(rows, 3), seen=np.array([s for row in seen for s in row], np.uint8))
    assert known_steps(set_of(trace), "made").tolist() == [0]


class Stands:
    """A lender that is moved to what it is told to be."""

    def __init__(self, model: TraceModel) -> None:
        self.name = model.proposer

    def moved(self, by: Lent, known_k: int) -> TraceModel:
        return replace(flat_model([0.5], known_k=known_k), facts={"between": by.between})


def lent_by(between: float) -> Lent:
    return Lent(np.zeros(20), between, 2 / 3, np.zeros(0), np.ones((1, 1)), 0.0, np.zeros(21))


@pytest.mark.parametrize(("like", "chosen"), [(None, "b"), ("c", "c")])
def test_the_lender_that_misses_least_lends_and_others_as_plausible_are_told(
    like: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a, b, c and d, which come to the recorded tokens a step within .05, exactly, within .05 and not."""
    misses = {"a": 9.04, "b": 3.0, "c": 5.06, "d": 4.0}
    factor = {name: 1 + number / 3 for number, name in enumerate(misses)}
    off = {"a": 0.05, "b": 0.0, "c": -0.05, "d": 0.0501}
    monkeypatch.setattr(fitting, "Lender", Stands)
    monkeypatch.setattr(fitting, "lent_to", lambda _, one: (lent_by(factor[one.name]), misses[one.name]))
    monkeypatch.setattr(fitting, "sampling_error", lambda *_: (0.0500001, lent_by(7.0), lent_by(8.0)))
    monkeypatch.setattr(fitting, "tokens_per_step", lambda _, one, __: 910 / 630 + off[one.name])
    rows = [[1, 2, 1, *[1] * 5]] * 70 + [[1, *[2, 1] * 7]] * 30  # steps of 1 and of 2 tokens
    traces = set_of(steps_of(trace_of(rows, 1), 1))
    lenders = {name: replace(flat_model([0.5]), proposer=name) for name in misses}
    model = fit_steps(traces, "made", lenders, like=like)
    facts = model.facts
    assert (facts["like"], facts["requests"], facts["requests_left_out"], facts["k"]) == (chosen, 100, 0, [1])
    # 70 x 6 + 30 x 7 steps of 70 x 7 + 30 x 14 tokens
    assert (facts["steps"], facts["tokens_per_step"], facts["tokens_per_step_error95"]) == (630, 1.4444, 0.05)
    assert model.known_k == 1
    told = [(row["name"], row["like"], row["between"]) for row in facts["plausible"]]
    beside = [name for name in ("a", "b", "c") if name != chosen]
    assert told == [
        *((f"as in {name}", name, round(factor[name], 4)) for name in beside),
        ("-0.050 tokens/step", chosen, 7.0),
        ("+0.050 tokens/step", chosen, 8.0),
    ]
    assert facts["misses"] == {"a": 9.0, "b": 3.0, "c": 5.1, "d": 4.0}
    assert (facts["between_factor"], facts["within_factor"]) == (round(factor[chosen], 4), 0.6667)
    assert model.provenance.note.endswith(f"as in {chosen}")


def following(right: int, wrong: int) -> TraceSet:
    """Pairs of steps: after an accepted draft K is 2 in ``right`` of 10 cases, else in ``wrong`` of 10."""
    rows, asked = [], []
    for accepted, twos in ((2, right), (1, wrong)):
        for case in range(10):
            rows.append([1, accepted, *[1] * 11])
            asked.append([1, *[1] * accepted, *[2 if case < twos else 1] * (12 - accepted)])
    return set_of(steps_of(trace_of(rows, 2), np.array(asked, np.uint8).ravel()))


def test_a_k_that_follows_acceptance_a_little_is_free() -> None:
    """And so is one that avoids it."""
    for right, wrong, free in ((5, 5, True), (0, 10, True), (10, 0, False)):
        traces = following(right, wrong)
        shown = Shown.of(traces.proposers["made"])
        if free:
            fitting._need_free_k(shown)
        else:
            with pytest.raises(InputError, match="correlation of K"):
                fitting._need_free_k(shown)


@pytest.mark.parametrize(
    ("requests", "length", "k", "named"),
    [(19, 100, 3, "requests: got 19"), (20, 10, 3, "steps that verified"), (30, 200, 21, "got 21, 1..20")],
)
def test_too_little_is_refused(requests: int, length: int, k: int, named: str) -> None:
    trace = replace(flat_model([0.5]).generate(0, np.full(requests, length)), recorded_k=k)
    with pytest.raises(InputError, match=named):
        fit_steps(set_of(steps_of(trace, k)), "made", lent("gsm8k-eagle3"))


def test_steps_have_the_shape_of_the_walk_that_took_them() -> None:
    trace = load_workload("gsm8k").model("ngram").generate(4, LENGTHS)
    steps = steps_of(trace, 4)
    taken = walk_steps(steps, recorded_k_at(steps))
    assert shape_of(taken, 4) == walk_shape(trace, 4)
    counted = walk(trace, 4)
    assert len(taken.tokens) == counted.steps
    assert taken.offered.sum() == counted.drafted
    (row,) = compare(steps, replace(trace, recorded_k=4))
    assert (row["acceptance_length_error"], row["lag1_error"], row["request_sd_error"]) == (0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="needs every position"):
        walk_shape(steps, 2)


def test_what_is_as_plausible_travels_with_the_model(tmp_path: Path) -> None:
    """Tokens per step come to the recorded ones with each lender, and to either end of their error."""
    truth = load_workload("gsm8k").model("eagle3")
    traces = recorded(truth, 3, LENGTHS[:120])
    model = fit_judged(traces, "eagle3", lent=Lenders({**lent("gsm8k-eagle3"), **lent("sharegpt-eagle3")}))
    assert model.facts["like"] == "gsm8k-eagle3"  # what made the steps shows them best
    assert [row["k"] for row in model.facts["holdout"]] == [3.0]
    assert abs(model.facts["in_sample"][0]["acceptance_length_error"]) < 0.01
    save_model(model, tmp_path / "m.json")
    error, length = model.facts["tokens_per_step_error95"], model.facts["tokens_per_step"]
    again = load_model(tmp_path / "m.json")
    assert figures_of(again) is None
    assert "steps of a server" in known_by(again)
    others = dict(plausible(again, load_workload("gsm8k")))
    expected = {
        "as in sharegpt-eagle3": 0.0,
        f"{-error:+.3f} tokens/step": -error,
        f"{error:+.3f} tokens/step": error,
    }
    assert list(others) == list(expected)
    sample = np.resize(LENGTHS[:120], 9600)
    for name, off in expected.items():
        assert walk(others[name].generate(1, sample), 3).acceptance_length == pytest.approx(
            length + off, rel=0.01
        )
    damaged = replace(again, facts={**again.facts, "plausible": [{"name": "x", "like": "gsm8k-eagle3"}]})
    with pytest.raises(InputError, match=r"facts\.plausible"):
        plausible(damaged, load_workload("gsm8k"))


def test_the_error_of_tokens_per_step_is_that_of_requests_as_clusters() -> None:
    """Half the requests accept nothing, half everything at K = 1: 100 steps of 1 token, or 50 of 2.

    Of 400 requests as many are of either kind as of a coin: tokens per step, 100 / (100 a + 50 (1 - a)) at a
    share a, move by -4/9 x 2 x ... = -8/9 per share, whose 95% error is 1.96 x .5 / 20 = .049.
    """
    lengths = np.full(400, 101)
    trace = flat_model([0.0, 1.0], classes=2).generate(0, lengths)
    model = fit_steps(set_of(steps_of(trace, 1)), "made", lent("sharegpt-eagle3"))
    assert model.facts["tokens_per_step_error95"] == pytest.approx(8 / 9 * 0.049, rel=0.05)


def test_what_lends_is_of_the_same_kind() -> None:
    heads = {f"{name}-eagle3" for name in ("gsm8k", "instructcoder", "sharegpt")}
    assert set(lenders("mtp").models) == heads
    assert set(lenders("mtp", "mtbench-eagle").models) == {*heads, "mtbench-eagle"}
    assert set(lenders("ngram-5-7").models) == {f"{name.partition('-')[0]}-ngram" for name in heads}
    with pytest.raises(InputError, match="is a head"):
        lenders("mtp", "gsm8k-ngram")
    with pytest.raises(InputError, match="is a lookup"):
        lenders("suffix", "gsm8k-eagle3")
