"""A fit put together: what it rests on, what is thinned, held, refused, and how its figures are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from kplan.errors import InputError
from kplan.latency.fit import MOST_ROWS, Measured, base_calibration, fit_calibration
from kplan.latency.fit_figures import (
    document,
    figures_of,
    file_source,
    fitted,
    short,
    with_figures,
    write_calibration,
)
from kplan.latency.fit_insitu import InSituFit
from kplan.latency.observed import Observation, Served, shape_row
from kplan.latency.published import load_host_timings
from kplan.profiles import Calibration, load_calibration, load_engine, load_hardware, load_model
from kplan.provenance import Figure, Kind, Provenance, file_digest, versions

HARDWARE, BASE = load_hardware("h100-sxm"), load_calibration("h100-sxm")
SERVED = Served(HARDWARE, load_model("llama-3.1-8b"), load_engine("vllm"))


def rows(count: int, source: str, proposer: str | None = None, seconds: float = 0.01) -> list[Observation]:
    """Decodes of one request and of two in turn, 7 tokens of context each."""
    found = []
    for number in range(count):
        requests = 1 + number % 2
        shape = shape_row(decode_requests=requests, decode_tokens=requests, decode_kv_tokens=7 * requests)
        found.append(
            Observation(source, f"line {number}", proposer, 0, seconds, np.array([shape]), np.ones(1))
        )
    return found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the in-situ fit is asked for; it predicts 12 ms for every row, and fits the host's step time."""
    asked: dict[str, object] = {}

    def fit_in_situ(
        served: Served, base: Calibration, rows: list[Observation], held: frozenset[str], *, partial: bool
    ) -> InSituFit:
        asked.update(rows=rows, held=held, partial=partial)
        step = fitted(1e-3, "log")
        found = with_figures(base, {"host.step_s": step})
        return InSituFit(found, frozenset(["host.step_s"]), (), ("a remark",), np.full(len(rows), 0.012))

    monkeypatch.setattr("kplan.latency.fit.fit_in_situ", fit_in_situ)
    return asked


def layer_table(folder: Path) -> Path:
    tokens = np.array([1, 8, 64, 256, 1024, 4096])
    latency = 1e3 * (7e-6 + tokens * 90_000 / (0.9 * HARDWARE.bandwidth_bytes_s.value))
    path = folder / "h_elementwise_x.csv"
    table = pd.DataFrame({"num_tokens": tokens, "bytes_per_token": 90_000, "latency_ms": latency})
    table.to_csv(path, index=False)
    return path


def test_rows_are_reported_by_file_and_proposer(seen: dict[str, object]) -> None:
    measured = [
        *rows(3, "a.csv, blake2b 0"),
        *rows(2, "a.csv, blake2b 0", "eagle"),
        *rows(2, "b.csv, blake2b 1"),
    ]
    fit = fit_calibration(HARDWARE, BASE, measured=Measured(SERVED, measured))
    assert [(line.name, line.rows) for line in fit.fits] == [
        ("a.csv, no drafts", 3),
        ("a.csv, eagle", 2),
        ("b.csv, no drafts", 2),
    ]
    assert [line.mape for line in fit.fits] == pytest.approx([0.2] * 3)
    first = fit.residuals[0]
    assert first.tokens is not None
    assert first.context is not None
    assert (list(first.tokens), list(first.context)) == ([1, 2, 1], [7, 7, 7])
    assert (list(first.measured_s), list(first.predicted_s)) == ([0.01] * 3, [0.012] * 3)
    assert (fit.notes, fit.paths) == (("a remark",), {"host.step_s"})
    assert (seen["held"], seen["partial"]) == (frozenset(), False)
    total = len(figures_of(fit.calibration))
    assert fit.calibration.summary == (
        f"fitted on 7 measured rows of llama-3.1-8b; {total - 1} figures not fitted"
    )
    source = "kplan calibrate: 7 measured rows of llama-3.1-8b"
    assert (fit.calibration.provenance.kind, fit.calibration.provenance.source) == (Kind.FITTED, source)


def test_tables_come_before_rows_which_leave_their_figures_alone(
    seen: dict[str, object], tmp_path: Path
) -> None:
    layer_table(tmp_path)
    fit = fit_calibration(
        HARDWARE, BASE, tables=tmp_path, measured=Measured(SERVED, rows(3, "a.csv")), partial=True
    )
    layer = {"elementwise.t0_s", "elementwise.bandwidth_eff"}
    assert fit.paths == layer | {"host.step_s"}
    assert (seen["held"], seen["partial"]) == (layer, True)
    assert [line.name for line in fit.fits] == ["elementwise", "a.csv, no drafts"]
    assert fit.calibration.provenance.source == (
        "kplan calibrate: kernel tables, 3 measured rows of llama-3.1-8b"
    )


def test_timings_of_another_gpu_are_left_alone(tmp_path: Path) -> None:
    layer_table(tmp_path)
    timings = load_host_timings().model_copy(update={"hardware": "other"})
    fit = fit_calibration(HARDWARE, BASE, tables=tmp_path, timings=timings)
    assert fit.calibration.provenance.source == "kplan calibrate: kernel tables"
    assert fit.calibration.host == BASE.host


def test_what_is_borrowed_says_so_until_it_is_fitted(seen: dict[str, object]) -> None:
    base = replace(BASE, borrowed_from="a100")
    fit = fit_calibration(HARDWARE, base, measured=Measured(SERVED, rows(3, "a.csv")))
    assert fit.notes[-1] == "what is not fitted is borrowed from a100"
    assert fit.calibration.summary.endswith(" figures borrowed from a100")
    assert fit.calibration.borrowed_from == ""


def test_only_named_figures_move(seen: dict[str, object]) -> None:
    measured = Measured(SERVED, rows(3, "a.csv"))
    fit_calibration(HARDWARE, BASE, measured=measured, only=["host.step_s", "gemm.p"])
    assert seen["held"] == figures_of(BASE).keys() - {"host.step_s", "gemm.p"}
    with pytest.raises(InputError, match=r"'host\.stepp_s', is no figure.*did you mean host\.step_s or"):
        fit_calibration(HARDWARE, BASE, measured=measured, only=["host.stepp_s"])
    with pytest.raises(InputError, match=r"is no figure of the base calibration$"):
        fit_calibration(HARDWARE, BASE, measured=measured, only=["xyzzy"])


def test_a_file_is_thinned_beyond_2000_rows(seen: dict[str, object]) -> None:
    measured = [*rows(MOST_ROWS, "a.csv, blake2b 0"), *rows(MOST_ROWS + 1, "b.csv, blake2b 1")]
    fit = fit_calibration(HARDWARE, BASE, measured=Measured(SERVED, measured))
    assert [line.rows for line in fit.fits] == [2000, 2000]
    assert fit.notes == ("b.csv has 2,001 rows: 2,000 of them were used", "a remark")
    kept = seen["rows"]
    assert isinstance(kept, list)
    places = [int(row.place.removeprefix("line ")) for row in kept]
    assert places[:2000] == list(range(2000))
    assert places[2000:] == sorted(set(places[2000:]))


@pytest.mark.parametrize(("seconds", "told"), [(0.0081, ""), (0.0079, "52%")])
def test_rows_that_the_fit_does_not_come_near_are_of_something_else(
    seen: dict[str, object], seconds: float, told: str
) -> None:
    """12 ms are predicted: half as much again as 8."""
    measured = Measured(SERVED, [*rows(3, "a.csv", seconds=0.012), *rows(3, "b.csv", seconds=seconds)])
    if told:
        with pytest.raises(
            InputError, match=f"mean error of b.csv, no drafts: got '{told}', no .* within 50%"
        ):
            fit_calibration(HARDWARE, BASE, measured=measured)
    else:
        assert fit_calibration(HARDWARE, BASE, measured=measured).fits[1].mape < 0.5


def test_a_fit_begins_at_the_gpu_s_own_calibration_or_at_a_borrowed_one(tmp_path: Path) -> None:
    assert base_calibration(HARDWARE) == BASE
    assert base_calibration(HARDWARE, "h100-sxm") == BASE
    lent = base_calibration(load_hardware("a100"), "h100-sxm")
    assert (lent.hardware, lent.borrowed_from) == ("a100", "h100-sxm")


KNOWN = Provenance(Kind.MEASURED, "Some paper: a table, p. 3", "a note")


def test_figures_are_found_and_replaced_by_their_paths() -> None:
    figures = figures_of(BASE)
    assert figures["gemm.t0_s"] is BASE.gemm.t0_s
    assert figures["host.pass_s.eagle"] is BASE.host.pass_s["eagle"]
    assert figures["all_reduce.2.t0_s"] is BASE.all_reduce[2].t0_s
    other = Figure(1.0, KNOWN)
    changed = with_figures(BASE, {"host.pass_s.eagle": other, "no.such": other})
    assert changed.host.pass_s["eagle"] == other
    assert changed == replace(
        BASE,
        host=replace(BASE.host, pass_s=BASE.host.pass_s | {"eagle": other}),  # type: ignore[operator]  # a dict
    )


def test_a_calibration_is_written_with_its_sources_by_short_keys(tmp_path: Path) -> None:
    """Sources that begin alike are numbered; a source that is cited twice has one key."""
    other, third = (replace(KNOWN, source=f"Some: other {text}", note="") for text in ("text", "thing"))
    changed = with_figures(
        BASE,
        {
            "gemm.t0_s": Figure(1e-6, KNOWN, 2e-7),
            "gemm.p": Figure(2.0, other),
            "gemm.flops_eff": Figure(0.5, third),
            "gemm.bandwidth_eff": Figure(0.5, KNOWN),
        },
    )
    written = document(changed)
    assert written["gemm"] == {
        "t0_s": {"value": 1e-6, "kind": "measured", "source": "some", "stderr": 2e-7, "note": "a note"},
        "bandwidth_eff": {"value": 0.5, "kind": "measured", "source": "some", "note": "a note"},
        "flops_eff": {"value": 0.5, "kind": "measured", "source": "some-2"},
        "p": {"value": 2.0, "kind": "measured", "source": "some-3"},
    }
    assert {key: written["sources"][key] for key in ("some", "some-2", "some-3")} == {
        "some": KNOWN.source,
        "some-2": third.source,
        "some-3": other.source,
    }
    assert "borrowed_from" not in written
    assert written["provenance"] == {
        "kind": BASE.provenance.kind.value,
        "source": BASE.provenance.source,
        "note": BASE.provenance.note,
    }
    assert "note" not in document(replace(BASE, provenance=other))["provenance"]
    assert list(written)[-2:] == ["sources", "provenance"]

    path = tmp_path / "own.yaml"
    write_calibration(changed, path)
    read = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert read["versions"] == versions()
    assert list(read)[1] == "hardware"
    assert load_calibration(path) == changed


def test_figures_are_rounded_to_six_digits_and_files_named_by_digest(tmp_path: Path) -> None:
    assert short(123_456_789.0) == 123_457_000.0
    assert short(0.00123456789) == 0.00123457
    figure = fitted(1.23456789, "s", 0.123456789, "n")
    assert figure == Figure(1.23457, Provenance(Kind.FITTED, "s", "n"), 0.123457)
    assert fitted(1.0, "s").stderr is None
    path = tmp_path / "a.csv"
    path.write_text("1\n")
    assert file_source(path) == f"a.csv, blake2b {file_digest(path)}"
    assert file_source(path, "a paper") == f"a.csv, blake2b {file_digest(path)}; a paper"
