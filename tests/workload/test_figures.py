"""Models from figures alone: they show the figures, say what is assumed, and admit what else would do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kplan.acceptance import load_model, save_model, walk
from kplan.acceptance.model import TraceModel
from kplan.cli.app import run
from kplan.errors import InputError
from kplan.workload import load_workload
from kplan.workload.figures import FigureKind, Figures, figures_of, from_figures, plausible

MARGINAL = Figures(FigureKind.MARGINAL, (0.72, 0.45, 0.28), 3, 0.005)
CONDITIONAL = Figures(FigureKind.CONDITIONAL, (0.72, 0.625, 0.28 / 0.45), 3)
MEAN = Figures(FigureKind.MEAN, (2.3,), 3, 0.05)


def shown(model: TraceModel) -> list[float]:
    """Share of steps that accept drafts 1..d at K = 3, over requests of another seed."""
    _, output_len = load_workload("sharegpt").sample_lengths(77, 8000)
    stats = walk(model.generate(4242, output_len), 3)
    return [float(n) / stats.steps for n in stats.accepted_by_depth]


@pytest.mark.parametrize("figures", [MARGINAL, CONDITIONAL])
def test_acceptance_by_position_is_met(figures: Figures) -> None:
    model = from_figures(figures, "eagle3", load_workload("sharegpt"))
    assert shown(model) == pytest.approx([0.72, 0.45, 0.28], rel=0.01)
    assert model.known_k == 3


@pytest.mark.parametrize("like", ["sharegpt-eagle3", "gsm8k-eagle3"])
def test_a_mean_acceptance_length_is_met_whoever_lends_the_rest(like: str) -> None:
    model = from_figures(MEAN, "mine", load_workload("sharegpt"), like=like)
    assert 1 + sum(shown(model)) == pytest.approx(2.3, rel=0.01)
    assert model.proposer == "mine"
    assert (model.provenance.kind, like in model.provenance.note) == ("assumed", True)


def test_a_head_that_is_nearly_always_right_is_met() -> None:
    """No shift of the drafts that a step before did not confirm comes so far: 0.83 at depth 2."""
    high = Figures(FigureKind.MARGINAL, (0.96, 0.92, 0.88), 3, 0.005)
    assert shown(from_figures(high, "mine", load_workload("sharegpt"))) == pytest.approx(
        high.values, rel=0.01
    )


def test_published_figures_are_called_so() -> None:
    model = from_figures(MARGINAL, "eagle3", load_workload("gsm8k"), source="a paper, Table 2")
    assert (model.provenance.kind, model.provenance.source) == ("published", "a paper, Table 2")


def test_other_models_show_the_same_figures_and_differ_in_the_rest(tmp_path: Path) -> None:
    lengths = load_workload("sharegpt")
    save_model(from_figures(MARGINAL, "eagle3", lengths), tmp_path / "m.json")
    model = load_model(tmp_path / "m.json")
    assert figures_of(model) == MARGINAL
    others = dict(plausible(model, lengths))
    assert list(others) == [
        "as in gsm8k-eagle3", "as in instructcoder-eagle3", "figures -0.005", "figures +0.005",
    ]  # fmt: skip
    wanted = {"figures -0.005": [0.715, 0.445, 0.275], "figures +0.005": [0.725, 0.455, 0.285]}
    for name, other in others.items():
        assert shown(other) == pytest.approx(wanted.get(name, [0.72, 0.45, 0.28]), rel=0.01)
    sample = np.full(200, 300)
    assert not np.array_equal(
        others["as in gsm8k-eagle3"].generate(1, sample).acc, model.generate(1, sample).acc
    )


def test_a_recording_leaves_nothing_open() -> None:
    workload = load_workload("sharegpt")
    assert plausible(workload.model("eagle3"), workload) == []


def test_facts_written_by_hand_are_named() -> None:
    model = load_workload("sharegpt").model("eagle3")
    with pytest.raises(InputError, match=r"facts\.figures"):
        figures_of(TraceModel(**{**model.__dict__, "facts": {"figures": {"kind": "odd"}}}))


BAD = {
    "kind": ("--per-position .7,.4 --k 2", "marginal or conditional"),
    "k": ("--per-position .7,.4 --kind marginal", "--k"),
    "count": ("--per-position .7,.4 --kind marginal --k 3", "3 needed at K = 3"),
    "rises": ("--per-position .4,.7 --kind marginal --k 2", "or is it conditional?"),
    "share": (
        "--per-position 70,40 --kind conditional --k 2",
        "got 70.0, more than 0 and less than 1 is possible; divide percents",
    ),
    "nan": ("--mean-acceptance-length nan --k 2", "finite"),
    "mean": ("--mean-acceptance-length 3.5 --k 2", "got 3.5, more than 1 and less than 3 is possible"),
    "all": ("--mean-acceptance-length 3 --k 2", "got 3.0, more than 1 and less than 3 is possible"),
    "none": ("--per-position .7,0 --kind marginal --k 2", "got 0.0, more than 0 and less than 1"),
    "flat": ("--per-position .5,.5,.5 --kind marginal --k 3", "got 'out of reach'"),
    "judged": ("--mean-acceptance-length 2 --k 2 --judge-order", "goes with a FILE, not with figures"),
    "text": ("--per-position a,b --kind marginal --k 2", "numbers parted by commas"),
    "deep": ("--mean-acceptance-length 2 --k 21", "1..20"),
    "lookup": ("--mean-acceptance-length 2 --k 2 --like gsm8k-ngram", "finds a match"),
    "like": ("--mean-acceptance-length 2 --k 2 --like gsm8k", "WORKLOAD-PROPOSER"),
    "nothing": ("", "give a trace FILE"),
    "both": ("nowhere.parquet --mean-acceptance-length 2 --k 2", "give a trace FILE"),
    "file": ("nowhere.parquet --k 2", "goes with figures"),
    "mean kind": ("--mean-acceptance-length 2 --k 2 --kind marginal", "goes with --per-position"),
}


@pytest.mark.parametrize(("flags", "named"), BAD.values(), ids=BAD)
def test_figures_that_say_too_little_are_refused(
    flags: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.json"
    assert run(["traces", "fit", *flags.split(), "--proposer", "eagle3", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not out.exists()


def test_figures_become_a_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--mean-acceptance-length", "2.3", "--k", "3", "--like", "gsm8k-eagle3", "--proposer", "mtp"]
    assert run(["traces", "fit", *flags, "--out", str(tmp_path / "chat.yaml")]) == 0
    assert "assumed as in gsm8k-eagle3: the shape by depth" in capsys.readouterr().out
    made = load_workload(tmp_path / "chat.yaml")
    assert (made.name, list(made.models)) == ("chat", ["mtp"])
    assert figures_of(made.model("mtp")) == MEAN
    np.testing.assert_array_equal(made.lengths.output_tokens, load_workload("gsm8k").lengths.output_tokens)
