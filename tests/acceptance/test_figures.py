"""Acceptance as figures: three kinds that are never taken for one another, and the totals they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kplan.acceptance import (
    AcceptanceFigures,
    FiguresKind,
    ImportOptions,
    load_acceptance,
    load_figures,
    load_traces,
    save_figures,
)
from kplan.errors import InputError
from tests.acceptance.made import MADE
from tests.acceptance.served import bench_result

EAGLE = ImportOptions("eagle")
NAN = float("nan")


def figures(kind: FiguresKind, values: tuple[float, ...], k: int = 3, **changes: Any) -> AcceptanceFigures:
    known = {"steps": None, "requests": None, "drafted": None, **changes}
    return AcceptanceFigures("eagle", kind, k, values, provenance=MADE, **known)


def test_the_same_acceptance_in_three_kinds() -> None:
    """10 steps: 4 accept nothing, 3 one draft, 1 two, 2 all three; tokens 1*4 + 2*3 + 3*1 + 4*2 = 21."""
    histogram = figures(FiguresKind.HISTOGRAM, (4, 3, 1, 2))
    marginal = figures(FiguresKind.MARGINAL, (0.6, 0.3, 0.2))
    conditional = figures(FiguresKind.CONDITIONAL, (0.6, 0.5, 2 / 3))
    for found in (histogram, marginal, conditional):
        assert found.marginal.tolist() == pytest.approx([0.6, 0.3, 0.2])
        assert found.acceptance_length == pytest.approx(2.1)


@pytest.mark.parametrize("kind", [FiguresKind.MARGINAL, FiguresKind.CONDITIONAL])
def test_figures_at_their_bounds_are_figures(kind: FiguresKind) -> None:
    """All right, or none; as many drafted as accepted, within a hundredth, or as K allows."""
    assert figures(kind, (1.0, 1.0, 0.0)).acceptance_length == 3.0
    assert figures(kind, (0.0,) * 3).acceptance_length == 1.0
    assert figures(kind, (0.5,) * 254, k=254).recorded_k == 254
    known = {"steps": 1000, "requests": None}
    for drafted in (1980, 2000, 3000):  # 2 x 1000 accepted
        assert figures(kind, (1.0, 1.0, 0.0), drafted=drafted, **known).every_step_full == (drafted == 3000)
    with pytest.raises(InputError, match="drafted: got 1979"):
        figures(kind, (1.0, 1.0, 0.0), drafted=1979, **known)
    with pytest.raises(InputError, match="drafted: got 3001"):
        figures(kind, (1.0, 1.0, 0.0), drafted=3001, **known)
    assert figures(kind, (1.0, 1.0, 0.0), steps=5).every_step_full is None
    assert figures(kind, (1.0, 1.0, 0.0), drafted=5).every_step_full is None


def test_what_percents_are_is_said_of_percents_alone() -> None:
    for value, said in ((100.0, True), (1.5, True), (100.5, False), (-3.0, False)):
        with pytest.raises(InputError) as error:
            figures(FiguresKind.MARGINAL, (value, 0.5, 0.2))
        assert ("divide percents" in str(error.value)) == said


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "percents": ({"kind": FiguresKind.MARGINAL, "values": (72.0, 45.0, 28.0)}, "divide percents by 100"),
    "nan": ({"kind": FiguresKind.MARGINAL, "values": (0.7, NAN, 0.2)}, "values[1]: got nan"),
    "negative": ({"kind": FiguresKind.CONDITIONAL, "values": (0.7, -0.1, 0.2)}, "values[1]: got -0.1"),
    "rising": ({"kind": FiguresKind.MARGINAL, "values": (0.6, 0.5, 0.7)}, "are these conditional shares?"),
    "few": ({"kind": FiguresKind.MARGINAL, "values": (0.6, 0.5)}, "got '2 values', K = 3 needs 3"),
    "few counts": ({"kind": FiguresKind.HISTOGRAM, "values": (4, 3, 1)}, "K = 3 needs 4"),
    "half a step": ({"kind": FiguresKind.HISTOGRAM, "values": (4, 3.5, 1, 0)}, "values[1]: got 3.5"),
    "no step": ({"kind": FiguresKind.HISTOGRAM, "values": (0, 0, 0, 0)}, "at least one step"),
    "other steps": ({"kind": FiguresKind.HISTOGRAM, "values": (4, 3, 1, 2), "steps": 9}, "holds 10"),
    "accepted more than drafted": (
        {"kind": FiguresKind.MARGINAL, "values": (0.6, 0.3, 0.2), "steps": 10, "drafted": 9},
        "drafted: got 9, 10 steps of K = 3 that accepted 11 verify 11..30",
    ),
    "drafted more than K": (
        {"kind": FiguresKind.HISTOGRAM, "values": (4, 3, 1, 2), "steps": 10, "drafted": 31},
        "drafted: got 31, 10 steps of K = 3 that accepted 11 verify 11..30",
    ),
    "K of a byte": ({"kind": FiguresKind.MARGINAL, "values": (0.5,) * 255, "k": 255}, "recorded K: got 255"),
    "below no step": ({"kind": FiguresKind.HISTOGRAM, "values": (4, -1, 1, 0)}, "values[1]: got -1"),
    "endless": ({"kind": FiguresKind.HISTOGRAM, "values": (4, float("inf"), 1, 0)}, "values[1]: got inf"),
    "K": ({"kind": FiguresKind.MARGINAL, "values": (), "k": 0}, "recorded K: got 0"),
}


@pytest.mark.parametrize(("given", "expected"), REFUSED.values(), ids=REFUSED)
def test_values_that_cannot_be_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as error:
        figures(**given)
    assert expected in str(error.value)


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    made = figures(FiguresKind.MARGINAL, (0.6, 0.3, 0.2), steps=10, requests=2, drafted=27, notes=("a note",))
    save_figures(made, tmp_path / "f.json")
    assert load_figures(tmp_path / "f.json") == made
    assert load_acceptance(tmp_path / "f.json") == made
    assert made.every_step_full is False


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": None}, "f.json, kind"),
        ({"kind": "mean"}, "f.json, kind"),
        ({"colour": 1}, "f.json, colour"),
        ({"schema_version": 2}, "schema_version: got 2"),
        ({"values": [0.6, "x", 0.2]}, "f.json, values.1"),
        ({"steps": -1}, "f.json, steps"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    save_figures(figures(FiguresKind.MARGINAL, (0.6, 0.3, 0.2)), tmp_path / "f.json")
    record = json.loads((tmp_path / "f.json").read_text()) | changes
    (tmp_path / "f.json").write_text(json.dumps({k: v for k, v in record.items() if v is not None}))
    with pytest.raises(InputError) as error:
        load_figures(tmp_path / "f.json")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("record", [{"error": "not found"}, {"request_id": "a", "tokens": [1]}])
def test_an_object_of_no_known_kind_is_told_what_is_accepted(record: dict[str, Any], tmp_path: Path) -> None:
    """Before --proposer is found fault with, which such a file does not say itself."""
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"r.json', kplan's own parquet, .* is accepted; none of their keys"):
        load_acceptance(tmp_path / "r.json", options=EAGLE)


def test_figures_are_no_traces_and_are_told_as_flags_of_a_fit(tmp_path: Path) -> None:
    save_figures(figures(FiguresKind.HISTOGRAM, (4, 3, 1, 2)), tmp_path / "f.json")
    flags = "--per-position 0.6000,0.3000,0.2000 --kind marginal --k 3"
    with pytest.raises(InputError, match=rf"holds figures \(histogram\) and no trace; .*{flags}"):
        load_traces(tmp_path / "f.json")
    with pytest.raises(InputError, match="--proposer: got 'eagle', the file says it itself"):
        load_acceptance(tmp_path / "f.json", options=EAGLE)


def bench(tmp_path: Path, record: dict[str, Any], *, pretty: bool = False) -> Any:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(record, indent=2 if pretty else None))
    return load_acceptance(path, options=EAGLE)


@pytest.mark.parametrize("pretty", [False, True])
def test_a_bench_result_gives_marginal_shares(tmp_path: Path, pretty: bool) -> None:
    found = bench(tmp_path, bench_result([0.6, 0.3, 0.2], 1000, 3000, 1100), pretty=pretty)
    assert (found.kind, found.values) == (FiguresKind.MARGINAL, (0.6, 0.3, 0.2))
    assert (found.steps, found.drafted, found.requests, found.every_step_full) == (1000, 3000, 40, True)
    assert found.acceptance_length == pytest.approx(2.1)  # its own spec_decode_acceptance_length
    assert not any("lower bounds" in note for note in found.notes)


def test_a_bench_result_under_a_table_says_that_its_shares_are_bounds(tmp_path: Path) -> None:
    found = bench(tmp_path, bench_result([0.6, 0.3, 0.2], 1000, 2400, 1100))
    assert found.every_step_full is False
    assert any("2.4 drafts a step" in note and "lower bounds" in note for note in found.notes)


KEY = "spec_decode_per_position_acceptance_rates"
BAD_RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "percents": (
        {KEY: [60.0, 30.0, 20.0]},
        f"{KEY}[0]: got '60.0', a share in 0..1 is needed; they are percents",
    ),
    "nan": ({KEY: [0.6, NAN, 0.2]}, f"{KEY}[1]: got 'nan'"),
    "text": ({KEY: "0.6"}, f"{KEY}: got '0.6'"),
    "truth": ({KEY: [True, 0.1, 0.0]}, f"{KEY}[0]: got 'True'"),
    "conditional": ({KEY: [0.6, 0.5, 0.5]}, "a sum of 1.6"),
    "rising": ({KEY: [0.2, 0.3, 0.6]}, "are these conditional shares?"),
    "too many drafts": ({"spec_decode_draft_tokens": 3001}, "3000 at most"),
    "no drafts": ({"spec_decode_num_drafts": 0}, "an integer in 1..2147483647"),
    "negative": ({"spec_decode_accepted_tokens": -1}, "an integer in 0..2147483647"),
    "nothing drafted": ({"spec_decode_draft_tokens": 0}, "an integer in 1..2147483647"),
    "no shares": ({KEY: []}, "a list with a share per draft"),
    "above one": (
        {KEY: [0.6, 1.01, 0.0]},
        f"{KEY}[1]: got '1.01', a share in 0..1 is needed; they are percents",
    ),
    "far above": ({KEY: [101.0, 0.0, 0.0]}, f"{KEY}[0]: got '101.0', a share in 0..1 is needed"),
    "below zero": ({KEY: [0.6, -0.1, 0.6]}, f"{KEY}[1]: got '-0.1', a share in 0..1 is needed"),
    "no counts": ({"spec_decode_accepted_tokens": None}, "spec_decode_accepted_tokens: got 'no such key'"),
}


@pytest.mark.parametrize(("changes", "expected"), BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_bench_result_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InputError) as error:
        bench(tmp_path, bench_result([0.6, 0.3, 0.2], 1000, 3000, 1100, **changes))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_an_aiperf_summary_gives_a_histogram(tmp_path: Path) -> None:
    pooled = {"0": 40, "1": 30, "3": 20, "2": 10}
    found = bench(tmp_path, {"schema_version": "1.0", "pooled_spec_decode_acceptance_histogram": pooled})
    assert (found.kind, found.values) == (FiguresKind.HISTOGRAM, (40.0, 30.0, 10.0, 20.0))
    assert found.marginal.tolist() == pytest.approx([0.6, 0.3, 0.2])
    assert any("K is taken to be" in note for note in found.notes)


@pytest.mark.parametrize(
    ("pooled", "expected"), [({"x": 1}, "got 'x'"), ({"-1": 1}, "got '-1'"), ({"0": 9}, "K")]
)
def test_an_aiperf_summary_without_sense_is_refused(
    tmp_path: Path, pooled: dict[str, int], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        bench(tmp_path, {"pooled_spec_decode_acceptance_histogram": pooled})
